"""How large the Ray worker pods of a role are, and how many: one pod takes one node whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .errors import ConfigurationError
from .instances import InstanceFacts
from .serve_config import Role

DAEMONSET_CPU_M = 1000
DAEMONSET_MEMORY_MIB = 2048
"""Left free on every GPU node for DaemonSets: vpc-cni, kube-proxy, Pod Identity agent, device plugins, CSI driver, node
monitoring agent and a log collector request well under this together."""


@dataclass(frozen=True, kw_only=True)
class WorkerNodes:
    """The nodes that a role's workers run on."""

    facts: InstanceFacts
    max_nodes: int
    node_role: str
    """Value of the node label ``ray-llm-eks/node-role``."""


@dataclass(frozen=True, kw_only=True)
class WorkerGroup:
    """The worker pods of one role; each pod has a node to itself."""

    role: str
    pods: int
    nodes: WorkerNodes

    @property
    def cpus(self) -> int:
        """CPU request in whole CPUs: the node's allocatable less what DaemonSets need."""
        return (self.nodes.facts.allocatable_cpu_m - DAEMONSET_CPU_M) // 1000

    @property
    def memory_gib(self) -> int:
        """Memory request and limit in GiB, likewise."""
        return (self.nodes.facts.allocatable_memory_mib - DAEMONSET_MEMORY_MIB) // 1024


def pods_needed(roles: Iterable[Role], gpus_per_node: int) -> int:
    """Whole nodes that the replicas of these roles need.

    A replica that fits on a node is not split over two; one that does not takes as many whole nodes as it needs.
    """
    pods, free = 0, 0
    for role in roles:
        for _ in range(role.replicas):
            if role.gpus_per_replica > gpus_per_node:
                pods += -(-role.gpus_per_replica // gpus_per_node)
                continue
            if free < role.gpus_per_replica:
                pods, free = pods + 1, gpus_per_node
            free -= role.gpus_per_replica
    return pods


def worker_groups(roles: Iterable[Role], nodes: dict[str, WorkerNodes]) -> list[WorkerGroup]:
    """One group of worker pods for each role name.

    Args:
        roles: the roles of a Serve config; several of one name (an application with several models) share a group.
        nodes: where each role name runs.

    Raises:
        ConfigurationError: more nodes are needed than a node group may have; those pods would stay Pending.
    """
    by_name: dict[str, list[Role]] = {}
    for role in roles:
        by_name.setdefault(role.name, []).append(role)
    groups = [
        WorkerGroup(role=name, pods=pods_needed(members, nodes[name].facts.gpus), nodes=nodes[name])
        for name, members in by_name.items()
    ]
    needed: dict[str, int] = {}
    for group in groups:
        needed[group.nodes.node_role] = needed.get(group.nodes.node_role, 0) + group.pods
    for group in groups:
        total, there = needed[group.nodes.node_role], group.nodes.max_nodes
        if total > there:
            parts = " + ".join(f"{g.pods} for {g.role}" for g in groups if g.nodes.node_role == group.nodes.node_role)
            raise ConfigurationError(
                f"the Serve config needs {total} nodes of {group.nodes.facts.name} ({parts}; with "
                f"{group.nodes.facts.gpus} GPU{'s' if group.nodes.facts.gpus > 1 else ''}), but the node group has at "
                f"most {there}: the rest would stay Pending for ever. Raise gpu.max_nodes and gpu.desired_nodes, "
                "take a larger gpu.instance_type, or lower num_replicas"
            )
    return groups
