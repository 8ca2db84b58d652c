"""The CPU nodes."""

from __future__ import annotations

from aws_cdk import Tags
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from .acknowledgements import acknowledge_node_role
from .errors import ConfigurationError
from .instances import check_node_counts, instance_facts
from .labels import NODE_ROLE
from .network import AnyNetwork

AL2023_ROOT_DEVICE = "/dev/xvda"


class SystemNodeGroup(Construct):
    """A managed group of CPU nodes for the Ray head, the KubeRay operator and the add-ons.

    AL2023, labelled ``ray-llm-eks/node-role: system``, IMDSv2 only and out of reach of pods, encrypted gp3 root.
    Session Manager reaches the nodes, which is also the way to a private API endpoint.

    Attributes:
        node_group: the ``aws_eks_v2.Nodegroup``.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        cluster: eks.ICluster,
        network: AnyNetwork,
        instance_type: str = "m7i.xlarge",
        min_nodes: int = 1,
        desired_nodes: int = 1,
        max_nodes: int = 2,
        root_volume_gib: int = 80,
    ) -> None:
        """Makes the node group.

        Args:
            scope: the construct that owns it.
            id: its id within the scope.
            cluster: the cluster that the nodes join.
            network: its private subnets hold the nodes.
            instance_type: a CPU type; default m7i.xlarge (4 vCPU, 16 GiB), which holds the Ray head (2 CPU, 8 GiB)
                and the add-ons. The head's image is some 10 GB, hence the root volume.
            min_nodes: default 1.
            desired_nodes: default 1.
            max_nodes: default 2, so that an update can replace a node.
            root_volume_gib: default 80.

        Raises:
            ConfigurationError: an unknown instance type, one with GPUs, or node counts out of order.
        """
        super().__init__(scope, id)
        if instance_facts(instance_type).gpus:
            raise ConfigurationError(f"{self.node.path}: {instance_type} has GPUs; system nodes are CPU nodes")
        check_node_counts(self.node.path, min_nodes, desired_nodes, max_nodes)
        template = ec2.LaunchTemplate(
            self,
            "LaunchTemplate",
            require_imdsv2=True,
            http_put_response_hop_limit=1,
            block_devices=[
                ec2.BlockDevice(
                    device_name=AL2023_ROOT_DEVICE,
                    volume=ec2.BlockDeviceVolume.ebs(
                        root_volume_gib, encrypted=True, volume_type=ec2.EbsDeviceVolumeType.GP3
                    ),
                )
            ],
        )
        Tags.of(template).add("Name", f"{self.node.path}")
        assert template.launch_template_id is not None
        self.node_group = eks.Nodegroup(
            self,
            "NodeGroup",
            cluster=cluster,
            ami_type=eks.NodegroupAmiType.AL2023_X86_64_STANDARD,
            instance_types=[ec2.InstanceType(instance_type)],
            launch_template_spec=eks.LaunchTemplateSpec(
                id=template.launch_template_id, version=template.latest_version_number
            ),
            subnets=ec2.SubnetSelection(subnets=list(network.private_subnets)),
            labels={NODE_ROLE: "system"},
            min_size=min_nodes,
            desired_size=desired_nodes,
            max_size=max_nodes,
            enable_node_auto_repair=True,
        )
        self.node_group.role.add_managed_policy(
            iam.ManagedPolicy.from_aws_managed_policy_name("AmazonSSMManagedInstanceCore")
        )
        acknowledge_node_role(self)
