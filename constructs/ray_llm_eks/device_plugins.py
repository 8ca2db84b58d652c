"""What makes GPUs and EFA interfaces visible to pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from .charts import EFA_DEVICE_PLUGIN, EFA_DRA_DRIVER, NVIDIA_DEVICE_PLUGIN, Chart, install
from .errors import ConfigurationError
from .instances import instance_facts
from .labels import GPU_TAINT

EfaDevices = Literal["device-plugin", "dra"]

_EFA_CHARTS: Mapping[EfaDevices, Chart] = {"device-plugin": EFA_DEVICE_PLUGIN, "dra": EFA_DRA_DRIVER}

_TOLERATES_GPU_TAINT = {"key": GPU_TAINT, "operator": "Exists", "effect": "NoSchedule"}

NVIDIA_VALUES: dict[str, Any] = {
    # A list replaces the chart's own, so its first entry is repeated.
    "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}, _TOLERATES_GPU_TAINT],
    "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
}
"""The chart's affinity is left alone: the node group carries the label it asks for."""

EFA_VALUES: dict[str, Any] = {"tolerations": [_TOLERATES_GPU_TAINT]}
"""For both EFA charts: without it they run on no tainted node, silently. Their instance-type lists are left alone."""


def check_efa_devices(instance_type: str, efa_devices: EfaDevices) -> None:
    """Refuses a type that the chosen EFA chart does not list: its DaemonSet would run on none of these nodes, silently.

    Raises:
        ConfigurationError: the type is not in the chart's list; the message says what to choose instead.
    """
    facts = instance_facts(instance_type)
    listed = {"device-plugin": facts.efa_device_plugin, "dra": facts.efa_dra_driver}
    if listed[efa_devices]:
        return
    chart = _EFA_CHARTS[efa_devices]
    other: EfaDevices = "dra" if efa_devices == "device-plugin" else "device-plugin"
    raise ConfigurationError(
        f"gpu.efa_devices: {efa_devices} gives no EFA to {instance_type}: chart {chart.name} {chart.version} does not "
        "list this type, so its DaemonSet would start no pod there and say nothing. "
        + (f"Use gpu.efa_devices: {other}, whose chart lists it" if listed[other] else "Use another gpu.instance_type")
    )


class DevicePlugins(Construct):
    """The NVIDIA device plugin, and either the AWS EFA device plugin or the EFA DRA driver, as pinned Helm charts.

    Both run as DaemonSets in kube-system on the nodes of an :class:`EfaNodeGroup`. Their charts' defaults would
    leave them on no node at all, without an error; the values here are tested against the charts.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        cluster: eks.ICluster,
        efa_devices: EfaDevices = "device-plugin",
        instance_types: Sequence[str] = (),
    ) -> None:
        """Installs the charts.

        Args:
            scope: the construct that owns them.
            id: its id within the scope.
            cluster: where they are installed.
            efa_devices: "device-plugin" (default; pods request vpc.amazonaws.com/efa) or "dra" (Kubernetes 1.34 or
                later; pods claim devices of class efa.networking.k8s.aws).
            instance_types: the types of the GPU nodes, to be checked against the chart's list; default none.

        Raises:
            ConfigurationError: the EFA chart does not list one of the types.
        """
        super().__init__(scope, id)
        if efa_devices not in _EFA_CHARTS:
            raise ConfigurationError(f"{self.node.path}: efa_devices must be {' or '.join(_EFA_CHARTS)}")
        for instance_type in instance_types:
            check_efa_devices(instance_type, efa_devices)
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
            _EFA_CHARTS[efa_devices],
            cluster=cluster,
            namespace="kube-system",
            values=EFA_VALUES,
            wait=False,
        )
