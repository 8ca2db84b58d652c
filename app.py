"""Composition root: settings in, stacks out."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import aws_cdk as cdk

from ray_llm_eks.errors import ConfigurationError, DocumentError
from ray_llm_eks.model_facts import ModelFacts, model_from_config
from ray_llm_eks.rules import check_serve_config
from ray_llm_eks.rules.app_deployment import deployment_of
from ray_llm_eks.serve_config import ServeConfig
from ray_llm_eks.settings import CONTEXT_KEY, Settings, load_settings
from stacks.accelerators import AcceleratorsStack
from stacks.platform import PlatformStack
from stacks.serving import ServingStack

HERE = Path(__file__).parent


def build(app: cdk.App, settings: Settings) -> None:
    """Adds the three stacks to the app.

    Raises:
        ConfigurationError: a setting or the Serve config cannot work.
    """
    serve_config = load_serve_config(settings)
    if settings.gpu.decode and "decode" not in {role.name for role in serve_config.roles}:
        raise ConfigurationError(
            f"gpu.decode: {serve_config.path} has no decode engine, so these nodes would stand idle; remove gpu.decode"
        )
    model = load_model(settings)
    # Before anything is written; the service's construct checks again and shows what is no error.
    check_serve_config(serve_config, deployment_of(settings), settings.rules.silence, model=model).raise_errors()

    platform = PlatformStack(app, f"{settings.prefix}Platform", settings=settings)
    accelerators = AcceleratorsStack(app, f"{settings.prefix}Accelerators", settings=settings, platform=platform)
    ServingStack(
        app,
        f"{settings.prefix}Serving",
        settings=settings,
        serve_config=serve_config,
        model=model,
        platform=platform,
        accelerators=accelerators,
    )


def load_serve_config(settings: Settings) -> ServeConfig:
    """The Serve config that the settings name, under the name that a person would use."""
    path = HERE / settings.serving.serve_config
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    try:
        return ServeConfig.load(path)
    except DocumentError as error:
        raise ConfigurationError(f"serving.serve_config: {error}") from None


def load_model(settings: Settings) -> ModelFacts | None:
    """The shape of the model that the settings name a config.json for."""
    name = settings.rules.model_config_file
    try:
        return model_from_config(HERE / name) if name else None
    except ConfigurationError as error:
        raise ConfigurationError(f"rules.model_config_file: {error}") from None


def main() -> int:
    """Synthesizes; returns the exit status."""
    defaults = json.loads((HERE / "cdk.json").read_text("utf-8"))["context"]
    # The CDK command line names the folder; `python app.py` alone writes where `cdk synth` would.
    folder = Path(os.environ.get("CDK_OUTDIR", "cdk.out"))
    before = _contents(folder)
    app = cdk.App(context=defaults, outdir=str(folder))
    try:
        build(app, load_settings(app.node.try_get_context(CONTEXT_KEY), defaults.get(CONTEXT_KEY)))
    except ConfigurationError as error:
        # The CDK copies files there while constructs are made.
        for path in _contents(folder) - before:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        print(f"error: {error}", file=sys.stderr)
        return 1
    app.synth()
    return 0


def _contents(folder: Path) -> set[Path]:
    return set(folder.iterdir()) if folder.is_dir() else set()


if __name__ == "__main__":
    sys.exit(main())
