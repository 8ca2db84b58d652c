"""Two GPU nodes with EFA and a model cache for a cluster that a platform team has already."""

from __future__ import annotations

from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks

from ray_llm_eks import (
    DevicePlugins,
    EfaNodeGroup,
    EfaSecurityGroup,
    LustreModelCache,
    RayLlmService,
    ServeConfig,
    WorkerNodes,
)

HERE = Path(__file__).parent


def build(app: cdk.App) -> cdk.Stack:
    """The stack. Names and ids are those of the existing VPC and cluster."""
    stack = cdk.Stack(app, "Inference")
    vpc = ec2.Vpc.from_vpc_attributes(stack, "Vpc", vpc_id="vpc-0123456789abcdef0", availability_zones=["us-west-2b"])
    subnet = ec2.Subnet.from_subnet_attributes(
        stack,
        "Subnet",
        subnet_id="subnet-0123456789abcdef0",
        availability_zone="us-west-2b",
        route_table_id="rtb-0123456789abcdef0",
    )
    cluster = eks.Cluster.from_cluster_attributes(
        stack,
        "Cluster",
        cluster_name="platform",
        cluster_security_group_id="sg-0123456789abcdef0",
        vpc=vpc,
        # Of the CDK stack that made the cluster: the function that runs kubectl there.
        kubectl_provider=eks.KubectlProvider.from_kubectl_provider_attributes(
            stack,
            "Kubectl",
            service_token="arn:aws:lambda:us-west-2:111122223333:function:platform-kubectl-on-event",
        ),
    )
    fabric = EfaSecurityGroup(stack, "Efa", vpc=vpc)
    cache = LustreModelCache(stack, "Cache", cluster=cluster, vpc=vpc, subnet=subnet, nodes=fabric.security_group)
    nodes = EfaNodeGroup(
        stack,
        "GpuNodes",
        cluster=cluster,
        vpc=vpc,
        subnets=[subnet],
        instance_type="g6e.8xlarge",
        security_group=fabric.security_group,
        lustre_client=cache.needs_lustre_client,
    )
    DevicePlugins(stack, "DevicePlugins", cluster=cluster)
    workers = WorkerNodes(facts=nodes.facts, max_nodes=2, node_role="gpu")
    RayLlmService(
        stack,
        "Service",
        cluster=cluster,
        serve_config=ServeConfig.load(HERE / ".." / ".." / "serve_configs" / "qwen3.5-9b-pd.yaml"),
        nodes={"prefill": workers, "decode": workers},
        cache=cache,
        image="public.ecr.aws/deep-learning-containers/ray:serve-llm-cuda-v1.0.0",
        ray_version="2.58.0",
    )
    return stack


if __name__ == "__main__":
    app = cdk.App()
    build(app)
    app.synth()
