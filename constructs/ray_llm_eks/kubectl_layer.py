"""Chooses the kubectl layer package for a Kubernetes version."""

from __future__ import annotations

import importlib
from typing import Any

from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from .errors import ConfigurationError
from .forms import matching

PUBLISHED_MINORS = range(29, 38)
"""Minor versions with a package ``aws-cdk.lambda-layer-kubectl-vNN`` on PyPI (looked up 2026-12-01)."""


def candidate_minors(kubernetes_version: str) -> list[int]:
    """The published layers within kubectl's supported skew of one minor version, best first.

    Raises:
        ConfigurationError: none is published for this version.
    """
    matching(kubernetes_version, r"1\.\d\d", 'a Kubernetes version such as "1.36"')
    minor = int(kubernetes_version.partition(".")[2])
    minors = [m for m in (minor, minor + 1, minor - 1) if m in PUBLISHED_MINORS]
    if not minors:
        raise ConfigurationError(
            f"cluster.kubernetes_version {kubernetes_version}: no kubectl layer within one minor version is published "
            f"(known: v{PUBLISHED_MINORS[0]} to v{PUBLISHED_MINORS[-1]}); choose a version from "
            f"1.{PUBLISHED_MINORS[0] - 1} to 1.{PUBLISHED_MINORS[-1] + 1}"
        )
    return minors


def kubectl_layer(
    scope: Construct, id: str, *, kubernetes_version: str, force: str | None = None
) -> lambda_.ILayerVersion:
    """The Lambda layer with kubectl and Helm for a cluster of this version.

    Args:
        scope: the construct that owns the layer.
        id: the layer's id within it.
        kubernetes_version: for example "1.36".
        force: take this package whatever the version, for example "v29"; the caller answers for the skew.

    Raises:
        ConfigurationError: no published layer is within one minor version, or none of those is installed.
    """
    if force and force not in [f"v{minor}" for minor in PUBLISHED_MINORS]:
        raise ConfigurationError(
            f"cluster.kubectl_layer {force}: the published layers are v{PUBLISHED_MINORS[0]} to v{PUBLISHED_MINORS[-1]}"
        )
    minors = [int(force.removeprefix("v"))] if force else candidate_minors(kubernetes_version)
    for minor in minors:
        try:
            module: Any = importlib.import_module(f"aws_cdk.lambda_layer_kubectl_v{minor}")
        except ModuleNotFoundError:
            continue
        return getattr(module, f"KubectlV{minor}Layer")(scope, id)
    packages = " or ".join(f"aws-cdk.lambda-layer-kubectl-v{minor}" for minor in minors)
    raise ConfigurationError(
        f"Kubernetes {kubernetes_version} needs a kubectl layer that is not installed: "
        f"pip install {packages}, and add it to requirements.txt"
    )
