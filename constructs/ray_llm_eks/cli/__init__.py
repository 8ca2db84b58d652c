"""The console script ``ray-llm``."""

from .main import main

__all__ = ["main"]
