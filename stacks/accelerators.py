"""What changes with the hardware: GPU nodes, device plugins, model cache."""

from __future__ import annotations

from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from ray_llm_eks.device_plugins import DevicePlugins
from ray_llm_eks.efa_node_group import EfaNodeGroup, EfaSecurityGroup
from ray_llm_eks.efs_model_cache import EfsModelCache
from ray_llm_eks.lustre_model_cache import LustreModelCache
from ray_llm_eks.model_cache import ModelCache, NodeLocalModelCache
from ray_llm_eks.settings import GpuNodeSettings, Settings
from ray_llm_eks.worker_pods import WorkerNodes

from .platform import PlatformStack


class AcceleratorsStack(Stack):
    """Placement group, EFA security group, GPU node groups, device plugins, model cache."""

    def __init__(self, scope: Construct, id: str, *, settings: Settings, platform: PlatformStack) -> None:
        super().__init__(
            scope,
            id,
            description="ray-llm-eks: GPU nodes with EFA, device plugins, model cache",
            termination_protection=settings.termination_protection,
        )
        self._settings, self._platform = settings, platform
        self._efa = EfaSecurityGroup(self, "Efa", vpc=platform.network.vpc).security_group
        self._placement_group: ec2.IPlacementGroup | None = None
        self.cache = self._cache()
        self.nodes = self._node_group("GpuNodes", settings.gpu, "gpu")
        self.decode_nodes = (
            self._node_group("DecodeNodes", settings.gpu.decode, "decode") if settings.gpu.decode else None
        )
        DevicePlugins(
            self,
            "DevicePlugins",
            cluster=platform.cluster.cluster,
            efa_devices=settings.gpu.efa_devices,
            instance_types=[group.facts.name for group in (self.nodes, self.decode_nodes) if group],
        )

    @property
    def worker_nodes(self) -> dict[str, WorkerNodes]:
        """Where the workers of each role run."""
        shared = WorkerNodes(facts=self.nodes.facts, max_nodes=self._settings.gpu.max_nodes, node_role="gpu")
        decode = shared
        if self.decode_nodes and self._settings.gpu.decode:
            decode = WorkerNodes(
                facts=self.decode_nodes.facts,
                max_nodes=self._settings.gpu.decode.max_nodes,
                node_role="decode",
            )
        return {"prefill": shared, "decode": decode, "llm": shared}

    def _node_group(self, id: str, nodes: GpuNodeSettings, role_label: str) -> EfaNodeGroup:
        shares_placement_group = nodes.placement_group_name is None and nodes.capacity_reservation_id is None
        if shares_placement_group and self._placement_group is None:
            self._placement_group = ec2.PlacementGroup(
                self, "PlacementGroup", strategy=ec2.PlacementGroupStrategy.CLUSTER
            )
        return EfaNodeGroup(
            self,
            id,
            cluster=self._platform.cluster.cluster,
            vpc=self._platform.network.vpc,
            subnets=[self._platform.network.gpu_subnet],
            instance_type=nodes.instance_type,
            role_label=role_label,
            min_nodes=nodes.min_nodes,
            desired_nodes=nodes.desired_nodes,
            max_nodes=nodes.max_nodes,
            capacity=nodes.capacity,
            capacity_reservation_id=nodes.capacity_reservation_id,
            placement_group=self._placement_group if shares_placement_group else None,
            placement_group_name=nodes.placement_group_name,
            security_group=self._efa,
            lustre_client=self.cache.needs_lustre_client,
            root_volume_gib=nodes.root_volume_gib,
        )

    def _cache(self) -> ModelCache:
        cache, network = self._settings.cache, self._platform.network
        versions = self._settings.cluster.addon_versions
        removal_policy = RemovalPolicy.RETAIN if cache.retain else RemovalPolicy.DESTROY
        match cache.kind:
            case "fsx-lustre":
                return LustreModelCache(
                    self,
                    "ModelCache",
                    cluster=self._platform.cluster.cluster,
                    vpc=network.vpc,
                    subnet=network.gpu_subnet,
                    nodes=self._efa,
                    capacity_gib=cache.capacity_gib,
                    throughput_per_tib=cache.throughput_per_tib,
                    removal_policy=removal_policy,
                    csi_driver_version=versions.get("aws-fsx-csi-driver"),
                )
            case "efs":
                return EfsModelCache(
                    self,
                    "ModelCache",
                    cluster=self._platform.cluster.cluster,
                    vpc=network.vpc,
                    subnet=network.gpu_subnet,
                    nodes=self._efa,
                    removal_policy=removal_policy,
                    csi_driver_version=versions.get("aws-efs-csi-driver"),
                )
            case "node-local":
                return NodeLocalModelCache(self, "ModelCache")
