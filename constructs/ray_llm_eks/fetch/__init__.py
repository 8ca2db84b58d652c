"""The program that fills the model cache; it runs in the serving image, not where CDK runs."""
