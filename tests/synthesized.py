"""Synthesizes the app once for each settings, in this process, and shares the result between tests."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import aws_cdk as cdk
from aws_cdk.assertions import Template

import app as app_module
from ray_llm_eks.assembly import Assembly, Stack
from ray_llm_eks.settings import load_settings

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"
"""Reference data beside the checkout; tests that need it skip where it is absent."""

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "defaults": {},
    "production": {
        "profile": "production",
        "cluster": {
            "admin_arns": ["arn:aws:iam::111122223333:role/PlatformTeam"],
            "public_access_cidrs": ["203.0.113.0/24"],
        },
        "gpu": {"zone": "usw2-az2"},
        "serving": {"hugging_face_token_secret": "hub/token"},
    },
    "imported": {
        "network": {
            "vpc": {
                "vpc_id": "vpc-0123456789abcdef0",
                "private_subnets": [
                    {"id": "subnet-0aaaaaaaaaaaaaaa1", "zone": "us-west-2a"},
                    {"id": "subnet-0aaaaaaaaaaaaaaa2", "zone": "us-west-2b"},
                ],
                "gpu_subnet": {"id": "subnet-0aaaaaaaaaaaaaaa3", "zone": "us-west-2c"},
            }
        },
        "cache": {"kind": "node-local"},
    },
}
"""The three settings that snapshots, policies and schemas are checked for."""

STACKS = ("Platform", "Accelerators", "Serving")


def build(settings: Mapping[str, Any], outdir: str | None = None) -> cdk.App:
    """The app with these settings, as app.py makes it, not synthesized yet."""
    context = json.loads((ROOT / "cdk.json").read_text("utf-8"))["context"]
    app = cdk.App(context=context, outdir=outdir)
    app_module.build(app, load_settings(settings))
    return app


@cache
def _assembly(settings: str) -> Assembly:
    folder = tempfile.mkdtemp(prefix="ray-llm-test-")
    build(json.loads(settings), folder).synth()
    return Assembly.load(Path(folder))


def assembly(settings: str | Mapping[str, Any] = "defaults") -> Assembly:
    """The synthesized app for settings named in SETTINGS, or for others."""
    value = SETTINGS[settings] if isinstance(settings, str) else settings
    return _assembly(json.dumps(value, sort_keys=True))


def stack(name: str, settings: str | Mapping[str, Any] = "defaults") -> Stack:
    """One stack of it, by the name without prefix: Platform, Accelerators or Serving."""
    return next(s for s in assembly(settings).stacks if s.name == f"RayLlm{name}")


def template(name: str, settings: str | Mapping[str, Any] = "defaults") -> Template:
    """The stack's template, for assertions."""
    return Template.from_json(stack(name, settings).template)


def manifest(kind: str, settings: str | Mapping[str, Any] = "defaults") -> dict[str, Any]:
    """The one Kubernetes object of a kind that the app applies."""
    found = [m for s in assembly(settings).stacks for m in s.manifests() if m["kind"] == kind]
    assert len(found) == 1, f"{len(found)} objects of kind {kind}"
    return found[0]
