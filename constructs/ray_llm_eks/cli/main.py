"""The commands of ``ray-llm``; each is a thin layer over a module of the library, imported when it is called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ray_llm_eks import __version__
from ray_llm_eks.errors import ConfigurationError

app = typer.Typer(
    help="Large language models on Amazon EKS, prefill and decode on different GPU nodes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Runs the command line; a user's mistake ends with one message and status 1."""
    try:
        app()
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ray-llm-eks {__version__}")
        raise typer.Exit


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version


@app.command()
def synth(
    context: Annotated[
        list[str] | None,
        typer.Option("-c", "--context", metavar="KEY=VALUE", help="Context for the CDK, such as ray-llm='{…}'."),
    ] = None,
    app_folder: Annotated[
        Path, typer.Option("--app", help="Folder of cdk.json and app.py.", file_okay=False, exists=True)
    ] = Path(),
) -> None:
    """Synthesize the app into cdk.out and say what a deployment would create. Needs no AWS account."""
    from .synth import synthesize

    synthesize(app_folder, context or [])


def _add_rehearse() -> None:
    from .rehearse import rehearse

    app.command()(rehearse)


_add_rehearse()
