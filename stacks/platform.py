"""What changes rarely: network, cluster, system nodes, operator."""

from __future__ import annotations

from aws_cdk import Stack
from constructs import Construct

from ray_llm_eks.cluster import Cluster
from ray_llm_eks.kuberay import KubeRayOperator
from ray_llm_eks.network import AnyNetwork, ExistingSubnet, ImportedNetwork, Network
from ray_llm_eks.settings import Settings
from ray_llm_eks.system_node_group import SystemNodeGroup


class PlatformStack(Stack):
    """VPC, EKS cluster, add-ons, system node group, KubeRay operator."""

    def __init__(self, scope: Construct, id: str, *, settings: Settings) -> None:
        super().__init__(
            scope,
            id,
            description="ray-llm-eks: network, EKS cluster, system nodes, KubeRay operator",
            termination_protection=settings.termination_protection,
        )
        self.network = self._network(settings)
        self.cluster = Cluster(
            self,
            "Eks",
            network=self.network,
            cluster_name=settings.cluster.name,
            kubernetes_version=settings.cluster.kubernetes_version,
            kubectl_layer_package=settings.cluster.kubectl_layer,
            admin_arns=settings.cluster.admin_arns,
            public_access_cidrs=settings.cluster.public_access_cidrs,
            allow_public_access_from_anywhere=settings.cluster.allow_public_access_from_anywhere,
            addon_versions=settings.cluster.addon_versions,
        )
        system_nodes = SystemNodeGroup(
            self,
            "SystemNodes",
            cluster=self.cluster.cluster,
            network=self.network,
            instance_type=settings.system_nodes.instance_type,
            min_nodes=settings.system_nodes.min_nodes,
            desired_nodes=settings.system_nodes.desired_nodes,
            max_nodes=settings.system_nodes.max_nodes,
        )
        system_nodes.node.add_dependency(*self.cluster.node_prerequisites)
        self.cluster.add_addons_that_need_nodes(system_nodes)
        operator = KubeRayOperator(self, "KubeRay", cluster=self.cluster.cluster)
        operator.node.add_dependency(system_nodes)

    def _network(self, settings: Settings) -> AnyNetwork:
        vpc = settings.network.vpc
        if vpc is None:
            return Network(
                self,
                "Network",
                cidr=settings.network.cidr,
                gpu_zone=settings.gpu.zone,
                nat_gateways=settings.network.nat_gateways,
                interface_endpoints=settings.network.interface_endpoints,
                flow_logs=settings.network.flow_logs,
            )
        return ImportedNetwork(
            self,
            "Network",
            vpc_id=vpc.vpc_id,
            private_subnets=[ExistingSubnet(subnet_id=subnet.id, zone=subnet.zone) for subnet in vpc.private_subnets],
            gpu_subnet=ExistingSubnet(subnet_id=vpc.gpu_subnet.id, zone=vpc.gpu_subnet.zone),
        )
