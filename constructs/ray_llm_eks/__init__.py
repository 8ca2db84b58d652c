"""AWS CDK constructs for large language models on Amazon EKS, prefill and decode on different GPU nodes."""

from importlib.metadata import version

__version__ = version("ray-llm-eks")
