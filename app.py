"""Composition root: settings in, stacks out."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import aws_cdk as cdk

from ray_llm_eks.errors import ConfigurationError
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
    serve_config = ServeConfig.load(HERE / settings.serving.serve_config)
    platform = PlatformStack(app, f"{settings.prefix}Platform", settings=settings)
    accelerators = AcceleratorsStack(app, f"{settings.prefix}Accelerators", settings=settings, platform=platform)
    ServingStack(
        app,
        f"{settings.prefix}Serving",
        settings=settings,
        serve_config=serve_config,
        platform=platform,
        accelerators=accelerators,
    )


def main() -> int:
    """Synthesizes; returns the exit status."""
    defaults = json.loads((HERE / "cdk.json").read_text("utf-8"))["context"]
    # The CDK command line names the folder; `python app.py` alone writes where `cdk synth` would.
    app = cdk.App(context=defaults, outdir=None if "CDK_OUTDIR" in os.environ else "cdk.out")
    try:
        build(app, load_settings(app.node.try_get_context(CONTEXT_KEY), defaults.get(CONTEXT_KEY)))
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    app.synth()
    return 0


if __name__ == "__main__":
    sys.exit(main())
