"""Constructs given props that cannot work, by programs that use the library without the settings."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Network
from typing import Any, cast

import aws_cdk as cdk
import pytest
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks

from ray_llm_eks.cluster import Cluster
from ray_llm_eks.device_plugins import DevicePlugins
from ray_llm_eks.efa_node_group import EfaNodeGroup
from ray_llm_eks.errors import ConfigurationError
from ray_llm_eks.instances import instance_facts
from ray_llm_eks.lustre_model_cache import LustreModelCache
from ray_llm_eks.model_cache import NodeLocalModelCache
from ray_llm_eks.network import ExistingSubnet, ImportedNetwork, Network
from ray_llm_eks.ray_llm_service import RayLlmService
from ray_llm_eks.serve_config import ServeConfig
from ray_llm_eks.system_node_group import SystemNodeGroup
from ray_llm_eks.worker_pods import WorkerNodes
from tests.unit.rules.example import pd_config, text_of

SUBNET = ExistingSubnet(subnet_id="subnet-1", zone="us-west-2a")
OTHER = ExistingSubnet(subnet_id="subnet-2", zone="us-west-2b")


class Existing:
    """What constructs are given: a stack with an existing VPC and cluster."""

    def __init__(self) -> None:
        self.stack = cdk.Stack(cdk.App(), "Test")
        self.network = Network.from_existing(
            self.stack, "Network", vpc_id="vpc-1", private_subnets=[SUBNET, OTHER], gpu_subnet=SUBNET
        )
        self.cluster = eks.Cluster.from_cluster_attributes(self.stack, "Cluster", cluster_name="c")

    def service(
        self, roles: tuple[str, ...] = ("prefill", "decode"), image: str = "example.com/ray:2.58.0", **props: Any
    ) -> None:
        nodes = WorkerNodes(facts=instance_facts("g6.8xlarge"), max_nodes=2, node_role="gpu")
        RayLlmService(
            self.stack,
            "X",
            cluster=self.cluster,
            serve_config=ServeConfig.parse(text_of(pd_config())),
            nodes=dict.fromkeys(roles, nodes),
            cache=NodeLocalModelCache(self.stack, "Cache"),
            ray_version="2.58.0",
            image=image,
            **props,
        )

    def nodes(self, **props: Any) -> None:
        subnets = [self.network.gpu_subnet]
        EfaNodeGroup(self.stack, "X", cluster=self.cluster, vpc=self.network.vpc, subnets=subnets, **props)

    def system(self, **props: Any) -> None:
        SystemNodeGroup(self.stack, "X", cluster=self.cluster, network=self.network, **props)

    def lustre(self, **props: Any) -> None:
        LustreModelCache(
            self.stack,
            "X",
            cluster=self.cluster,
            vpc=self.network.vpc,
            subnet=self.network.gpu_subnet,
            nodes=ec2.SecurityGroup.from_security_group_id(self.stack, "Nodes", "sg-1"),
            **props,
        )

    def imported(self, *zones: str) -> None:
        subnets = [ExistingSubnet(subnet_id=f"subnet-{zone}", zone=zone) for zone in zones]
        ImportedNetwork(self.stack, "X", vpc_id="vpc-1", private_subnets=subnets, gpu_subnet=subnets[0])


BAD: list[tuple[Callable[[Existing], object], str]] = [
    (lambda e: Network(e.stack, "X", nat_gateways=0), "nat_gateways must be 1 or 2, not 0"),
    (lambda e: Network(e.stack, "X", gpu_zone="nowhere"), "'nowhere' is neither one zone name"),
    (lambda e: Network(e.stack, "X", cidr=IPv4Network("127.0.0.0/16")), "no VPC may have 127.0.0.0/16"),
    (lambda e: Network(e.stack, "X", cidr=IPv4Network("10.0.0.0/8")), "10.0.0.0/8 is a /8"),
    (lambda e: e.imported("us-west-2a", "us-west-2a"), "at least two zones"),
    (lambda e: e.imported("us-west-2a", "usw2-az2"), "all zones as names or all as ids"),
    (lambda e: Cluster(e.stack, "X", network=e.network, kubernetes_version="latest"), "not a Kubernetes version"),
    (lambda e: Cluster(e.stack, "X", network=e.network, cluster_name="a b"), "'a b' is not a name"),
    (lambda e: Cluster(e.stack, "X", network=e.network, kubectl_layer_package="36"), "cluster.kubectl_layer 36"),
    (
        lambda e: Cluster(e.stack, "X", network=e.network, public_access_cidrs=[IPv4Network("192.168.0.0/24")]),
        "192.168.0.0/24, which no address on the internet has",
    ),
    (lambda e: e.system(min_nodes=5), "not 5, 1, 2"),
    (lambda e: e.system(instance_type="m7i.huge"), "'m7i.huge' is not known"),
    (lambda e: e.nodes(max_nodes=1), "not 2, 2, 1"),
    (lambda e: e.nodes(instance_type="g6.xlarge"), "no EFA interface"),
    (lambda e: e.lustre(capacity_gib=0), "capacity_gib 0"),
    (lambda e: e.lustre(throughput_per_tib=300), "throughput_per_tib 300"),
    (
        lambda e: DevicePlugins(e.stack, "X", cluster=e.cluster, efa_devices=cast(Any, "x")),
        "efa_devices must be device-plugin",
    ),
    (lambda e: e.service(roles=("prefill",)), "nodes names none for decode"),
    (lambda e: e.service(namespace="default"), "namespace that others use"),
    (lambda e: e.service(service_name="a" * 48), "at most 47"),
    (lambda e: e.service(image="ray:latest"), "pin the image"),
    (lambda e: e.service(model_s3_uri="bucket/model"), "not an S3 prefix"),
    (lambda e: e.service(hugging_face_token_secret="a b"), "Secrets Manager"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message for _, message in BAD])
def test_props_that_cannot_work(make: Callable[[Existing], object], message: str) -> None:
    existing = Existing()
    with pytest.raises(ConfigurationError, match=message):
        make(existing)
