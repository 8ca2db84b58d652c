"""Commands of ``ray-llm``; each is a thin layer over a module of the library."""

from __future__ import annotations

import typer

app = typer.Typer()


def main() -> None:
    """Runs the command line."""
    app()
