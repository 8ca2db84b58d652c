"""The commands of ``ray-llm``: thin layers over the library. The CDK is imported only where it is needed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ray_llm_eks import __version__
from ray_llm_eks.errors import ConfigurationError

from .check import check
from .rehearse import rehearse
from .rules import rules

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


app.command()(check)
app.command()(rules)
app.command()(rehearse)
