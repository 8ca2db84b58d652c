"""The Helm charts that are installed, pinned, and how they are installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aws_cdk import Duration
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A Helm chart by name, version and repository."""

    name: str
    version: str
    repository: str


NVIDIA_DEVICE_PLUGIN = Chart(
    name="nvidia-device-plugin", version="0.20.0", repository="https://nvidia.github.io/k8s-device-plugin"
)
EFA_DEVICE_PLUGIN = Chart(
    name="aws-efa-k8s-device-plugin", version="v0.5.30", repository="https://aws.github.io/eks-charts"
)
EFA_DRA_DRIVER = Chart(name="aws-dranet", version="1.0.0", repository="https://aws.github.io/eks-charts")
KUBERAY_OPERATOR = Chart(
    name="kuberay-operator", version="1.7.0", repository="https://ray-project.github.io/kuberay-helm/"
)


def install(
    scope: Construct,
    id: str,
    chart: Chart,
    *,
    cluster: eks.ICluster,
    namespace: str,
    values: Mapping[str, Any],
    wait: bool,
    create_namespace: bool = False,
) -> eks.HelmChart:
    """Installs a chart under its own name, with the longest time-out that the provider allows (15 minutes).

    Args:
        scope: the construct that owns the release.
        id: its id within the scope.
        chart: what to install.
        cluster: where.
        namespace: where in the cluster.
        values: Helm values.
        wait: let the deployment wait for its pods; useless for DaemonSets without nodes.
        create_namespace: default False.
    """
    return eks.HelmChart(
        scope,
        id,
        cluster=cluster,
        chart=chart.name,
        release=chart.name,
        version=chart.version,
        repository=chart.repository,
        namespace=namespace,
        create_namespace=create_namespace,
        values=values,
        wait=wait,
        timeout=Duration.minutes(15),
    )
