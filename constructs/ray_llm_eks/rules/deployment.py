"""What a Serve config is deployed on, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ray_llm_eks.instances import InstanceFacts, gpu_facts

DEFAULT_WORKER_ENVIRONMENT: Mapping[str, str] = {"FI_PROVIDER": "efa", "VLLM_SSM_CONV_STATE_LAYOUT": "DS"}
"""What the RayService construct sets on every worker, as far as rules look at it."""


@dataclass(frozen=True, kw_only=True)
class NodePool:
    """One group of GPU nodes."""

    name: str
    facts: InstanceFacts
    max_nodes: int
    min_nodes: int = 0
    efa: bool = True
    """Whether the group's network interfaces are EFA where the instance type has it."""

    @property
    def has_efa(self) -> bool:
        """Whether pods on these nodes get EFA devices."""
        return self.efa and self.facts.efa_interfaces > 0

    @property
    def accelerator(self) -> str | None:
        """Ray's name of the GPU; None where Ray has none."""
        return gpu_facts(self.facts.gpu).ray if self.facts.gpu else None


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Nodes by role, and what the rules need to know of the cluster around them."""

    pools: Mapping[str, NodePool]
    """The node group of each role (prefill, decode, llm); roles may share one. ``*`` stands for all others."""
    image: str = ""
    ray_version: str = ""
    upgrade_strategy: str = "None"
    """KubeRay's upgradeStrategy: None, NewCluster or NewClusterWithIncrementalUpgrade."""
    has_hub_token: bool = False
    stages_from_s3: bool = False
    """Whether the model is copied from S3 into the path that the Serve config names."""
    model_mount: str = "/mnt/model-cache"
    """Where the model cache volume is mounted in worker pods."""
    worker_environment: Mapping[str, str] = field(default_factory=lambda: DEFAULT_WORKER_ENVIRONMENT)

    def pool(self, role: str) -> NodePool:
        """The node group that a role runs on."""
        return self.pools[role] if role in self.pools else self.pools["*"]


def one_pool(facts: InstanceFacts, nodes: int, *, efa: bool = True) -> Deployment:
    """A deployment in which all roles share one node group of a fixed size."""
    return Deployment(pools={"*": NodePool(name="gpu", facts=facts, min_nodes=nodes, max_nodes=nodes, efa=efa)})
