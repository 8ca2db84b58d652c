"""The deployable units that app.py composes."""
