"""Facts about EC2 instance types: GPUs, EFA interfaces, what a node offers to pods, price.

The numbers and their sources are in ``facts/instances.toml``.
"""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, cast

from .errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class InstanceFacts:
    """What one instance type has, in the units of its field names; see ``facts/instances.toml`` for sources."""

    name: str
    vcpus: int
    memory_mib: int
    network_cards: int
    network_gbps: float
    allocatable_cpu_m: int
    """CPU a kubelet offers to pods, in millicores (AL2023 nodeadm reservations)."""
    allocatable_memory_mib: int
    """Memory a kubelet offers to pods; a low estimate."""
    max_pods: int
    gpu: str | None = None
    gpus: int = 0
    gpu_memory_mib: int = 0
    """Memory of one GPU as its driver reports it."""
    efa_interfaces: int = 0
    """EFA interfaces the type can have; 0 where it has no EFA."""
    efa_first_card: int = 0
    """First network card that carries EFA."""
    rdma_read: bool = False
    rdma_write: bool = False
    gpudirect_rdma: Literal["yes", "no", "unknown"] = "no"
    efa_device_plugin: bool = True
    """Whether the EFA device plugin's chart, as pinned in ``charts.py``, lists the type."""
    efa_dra_driver: bool = True
    """Whether the EFA DRA driver's chart, as pinned in ``charts.py``, lists the type."""
    nvme_gb: int = 0
    """Instance store in all, decimal gigabytes; 0 where there is none."""
    usd_per_hour: float | None = None
    """On-Demand Linux price in us-east-1; None where the source lists none."""
    capacity_block: bool = False


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """What one GPU model is called in Ray, and its CUDA compute capability."""

    compute_capability: str
    ray: str | None = None
    """Ray's ``accelerator_type``; None where Ray 2.58 has no name for it."""


@cache
def _data() -> dict[str, dict[str, dict[str, Any]]]:
    return tomllib.loads((files("ray_llm_eks") / "facts" / "instances.toml").read_text("utf-8"))


@cache
def instance_names() -> tuple[str, ...]:
    """All instance types in the facts file, sorted."""
    return tuple(sorted(_data()["instances"]))


@cache
def efa_gpu_instance_names() -> tuple[str, ...]:
    """The instance types that have both a GPU and EFA, cheapest first (unknown prices last)."""
    facts = [f for f in map(instance_facts, instance_names()) if f.gpus and f.efa_interfaces]
    return tuple(f.name for f in sorted(facts, key=lambda f: f.usd_per_hour or float("inf")))


@cache
def instance_facts(name: str) -> InstanceFacts:
    """The facts of an instance type.

    Raises:
        ConfigurationError: the type is not in the facts file; the message lists the nearest names.
    """
    try:
        return InstanceFacts(name=name, **_data()["instances"][name])
    except KeyError:
        near = difflib.get_close_matches(name, instance_names(), n=3, cutoff=0.3)
        hint = f"nearest known types: {', '.join(near)}" if near else f"known: {', '.join(instance_names())}"
        raise ConfigurationError(
            f"instance type {name!r} is not known; {hint}. "
            "(A type that exists but is missing here: add it to facts/instances.toml with its source.)"
        ) from None


def check_node_counts(path: str, min_nodes: int, desired_nodes: int, max_nodes: int) -> None:
    """Refuses the size of a node group that EKS would refuse.

    Raises:
        ConfigurationError: the numbers are out of order, or no node is desired.
    """
    if not 0 <= min_nodes <= desired_nodes <= max_nodes or desired_nodes < 1:
        raise ConfigurationError(
            f"{path}: 0 <= min_nodes <= desired_nodes <= max_nodes and at least one desired node, "
            f"not {min_nodes}, {desired_nodes}, {max_nodes}"
        )


@cache
def gpu_facts(gpu: str) -> GpuFacts:
    """The facts of a GPU model as ``InstanceFacts.gpu`` names it."""
    return GpuFacts(**cast(dict[str, str], _data()["gpus"][gpu]))
