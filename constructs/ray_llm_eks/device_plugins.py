"""What makes GPUs and EFA interfaces visible to pods."""

from __future__ import annotations

from typing import Any, Literal

from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from .charts import EFA_DEVICE_PLUGIN, EFA_DRA_DRIVER, NVIDIA_DEVICE_PLUGIN, install
from .labels import GPU_TAINT

EfaDevices = Literal["device-plugin", "dra"]

_TOLERATES_GPU_TAINT = {"key": GPU_TAINT, "operator": "Exists", "effect": "NoSchedule"}

NVIDIA_VALUES: dict[str, Any] = {
    # A list replaces the chart's own, so its first entry is repeated.
    "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}, _TOLERATES_GPU_TAINT],
    "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
}
"""The chart's affinity is left alone: the node group carries the label it asks for."""

EFA_VALUES: dict[str, Any] = {"tolerations": [_TOLERATES_GPU_TAINT]}
"""For both EFA charts: without it they run on no tainted node, silently. Their instance-type lists are left alone."""


class DevicePlugins(Construct):
    """The NVIDIA device plugin, and either the AWS EFA device plugin or the EFA DRA driver, as pinned Helm charts.

    Both run as DaemonSets in kube-system on the nodes of an :class:`EfaNodeGroup`. Their charts' defaults would
    leave them on no node at all, without an error; the values here are tested against the charts.
    """

    def __init__(
        self, scope: Construct, id: str, *, cluster: eks.ICluster, efa_devices: EfaDevices = "device-plugin"
    ) -> None:
        """Installs the charts.

        Args:
            scope: the construct that owns them.
            id: its id within the scope.
            cluster: where they are installed.
            efa_devices: "device-plugin" (default; pods request vpc.amazonaws.com/efa) or "dra" (Kubernetes 1.34 or
                later; pods claim devices of class efa.networking.k8s.aws).
        """
        super().__init__(scope, id)
        install(
            self,
            "Nvidia",
            NVIDIA_DEVICE_PLUGIN,
            cluster=cluster,
            namespace="kube-system",
            values=NVIDIA_VALUES,
            wait=False,
        )
        install(
            self,
            "Efa",
            EFA_DRA_DRIVER if efa_devices == "dra" else EFA_DEVICE_PLUGIN,
            cluster=cluster,
            namespace="kube-system",
            values=EFA_VALUES,
            wait=False,
        )
