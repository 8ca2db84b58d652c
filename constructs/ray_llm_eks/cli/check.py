"""``ray-llm check``: the rules on files alone, without the CDK, an account or a network."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, cast

import typer

from ray_llm_eks.errors import ConfigurationError, DocumentError
from ray_llm_eks.instances import instance_facts
from ray_llm_eks.model_facts import ModelFacts, model_from_config
from ray_llm_eks.rules import Deployment, Finding, Report, Severity, check_serve_config
from ray_llm_eks.rules.app_deployment import deployment_of
from ray_llm_eks.rules.machine import UNREADABLE, json_text, sarif_text
from ray_llm_eks.serve_config import ServeConfig
from ray_llm_eks.settings import CONTEXT_KEY, Settings, load_settings

EXIT_ERRORS = 1
EXIT_UNREADABLE = 2


class Format(StrEnum):
    """How findings are printed."""

    HUMAN = "human"
    JSON = "json"
    SARIF = "sarif"


def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Ray Serve config files.", show_default=False)],
    instance_type: Annotated[
        str | None, typer.Option(help="EC2 type of the GPU nodes; default: the app's settings.", show_default=False)
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="GPU nodes in all; default: the app's settings.", show_default=False)
    ] = None,
    model_config: Annotated[
        Path | None,
        typer.Option(help="The model's config.json; default: a profile by the model's name.", show_default=False),
    ] = None,
    format: Annotated[Format, typer.Option(help="How findings are printed.")] = Format.HUMAN,
) -> None:
    """Check Serve configs against the hardware.

    Exit status: 0 no error, 1 an error was found, 2 a file cannot be read or the command is used wrongly.
    """
    try:
        settings = _settings()
        deployment = _deployment(settings, instance_type, nodes)
        model_file = model_config or settings.rules.model_config_file
        model = model_from_config(Path(model_file)) if model_file else None
    except ConfigurationError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_UNREADABLE) from None
    results = [check_file(path, deployment, model, settings.rules.silence) for path in files]
    # The name of a file may be no UTF-8.
    typer.echo(_printed([result.report for result in results], format).encode("utf-8", "replace").decode())
    if any(result.unreadable for result in results):
        raise typer.Exit(EXIT_UNREADABLE)
    if any(result.report.errors for result in results):
        raise typer.Exit(EXIT_ERRORS)


@dataclass(frozen=True, kw_only=True)
class FileResult:
    """The report of one file, and whether it could be read at all."""

    report: Report
    unreadable: bool = False


def check_file(
    path: Path,
    deployment: Deployment,
    model: ModelFacts | None = None,
    silenced: Mapping[str, str] | None = None,
) -> FileResult:
    """Checks one file; one that cannot be read gives a report with one error."""
    try:
        config = ServeConfig.load(path)
    except DocumentError as error:
        return FileResult(report=_unreadable(path, error), unreadable=True)
    return FileResult(report=check_serve_config(config, deployment, silenced, model=model))


def _unreadable(path: Path, error: DocumentError) -> Report:
    finding = Finding(
        rule=UNREADABLE,
        severity=Severity.ERROR,
        file=str(path),
        line=error.line,
        column=error.column,
        width=1,
        path=(),
        message=error.reason,
        consequence="Ray cannot read the file either, or would read it otherwise than it looks.",
        fix="Correct the file.",
        source="PyYAML's safe loader, as Ray uses it.",
    )
    return Report(file=str(path), source="", findings=(finding,))


def _deployment(settings: Settings, instance_type: str | None, nodes: int | None) -> Deployment:
    """The deployment of the settings, with what the command line says."""
    deployment = deployment_of(settings)
    pools = deployment.pools
    if instance_type is not None:
        pools = {"*": replace(pools["*"], facts=instance_facts(instance_type))}
    if nodes is not None:
        # One number: the roles share the nodes.
        pools = {"*": replace(pools["*"], min_nodes=nodes, max_nodes=nodes)}
    return replace(deployment, pools=pools)


def _settings() -> Settings:
    """The app's settings: cdk.json of the current folder if there is one, else the defaults."""
    file = Path("cdk.json")
    if not file.is_file():
        return Settings()
    try:
        whole: object = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read the settings in {file.absolute()}: {error}") from None
    context = cast(dict[str, object], whole).get("context", {}) if isinstance(whole, dict) else whole
    if not isinstance(context, dict):
        raise ConfigurationError(f"cannot read the settings in {file.absolute()}: it holds no context")
    return load_settings(cast(dict[str, object], context).get(CONTEXT_KEY))


def _printed(reports: list[Report], format: Format) -> str:
    if format is Format.JSON:
        return json_text(reports)
    if format is Format.SARIF:
        return sarif_text(reports)
    from ray_llm_eks.rules.human import human_text

    return human_text(reports)


if __name__ == "__main__":
    sys.exit(typer.run(check))
