"""The GPU nodes: one zone, one placement group, EFA interfaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from aws_cdk import CfnTag, Fn
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from .acknowledgements import acknowledge_node_role
from .errors import ConfigurationError
from .instances import InstanceFacts, check_node_counts, efa_gpu_instance_names, instance_facts
from .labels import GPU_PRESENT, GPU_TAINT, INSTANCE_TYPE, NODE_ROLE
from .node_user_data import node_user_data
from .principals import ec2_principal
from .system_node_group import AL2023_ROOT_DEVICE

Capacity = Literal["on-demand", "spot", "capacity-block"]


class EfaSecurityGroup(Construct):
    """The security group that lets EFA traffic pass: everything from and to itself, and nothing else.

    ========= ========== ======== ==========================================
    direction protocol   peer     why
    ========= ========== ======== ==========================================
    ingress   all        itself   EFA asks for it; SRD is no TCP
    egress    all        itself   likewise
    ========= ========== ======== ==========================================

    Nodes also carry the cluster security group, which brings what the cluster needs.

    Attributes:
        security_group: the group.
    """

    def __init__(self, scope: Construct, id: str, *, vpc: ec2.IVpc) -> None:
        """Makes the group.

        Args:
            scope: the construct that owns it.
            id: its id within the scope.
            vpc: the VPC of the nodes.
        """
        super().__init__(scope, id)
        self.security_group = ec2.SecurityGroup(
            self,
            "Group",
            vpc=vpc,
            allow_all_outbound=False,
            description="EFA: all traffic between the GPU nodes",
        )
        all_traffic = ec2.Port.all_traffic()
        self.security_group.add_ingress_rule(self.security_group, all_traffic, "EFA between the GPU nodes")
        self.security_group.add_egress_rule(self.security_group, all_traffic, "EFA between the GPU nodes")


class EfaNodeGroup(Construct):
    """A managed group of GPU nodes that exchange the KV cache over EFA.

    All nodes are in one subnet (EFA cannot cross zones) and in a cluster placement group. The launch template's
    network interfaces are EFA, as many as the instance type has, with the EFA and the cluster security group inside
    each interface: beside them they would be refused, and without the cluster's the nodes would never join.

    Nodes are tainted ``nvidia.com/gpu=true:NoSchedule``, labelled by role and instance type, and have IMDSv2 out of
    reach of pods. An update ends the old nodes before it starts new ones, since spare GPUs are rarely to be had.

    Attributes:
        node_group: the ``aws_eks_v2.CfnNodegroup``.
        security_group: the EFA security group.
        placement_group_name: the placement group that the nodes are in, or None.
        facts: the hardware facts of the instance type.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        cluster: eks.ICluster,
        vpc: ec2.IVpc,
        subnets: Sequence[ec2.ISubnet],
        instance_type: str = "g6.8xlarge",
        role_label: str = "gpu",
        min_nodes: int = 2,
        desired_nodes: int = 2,
        max_nodes: int = 2,
        capacity: Capacity = "on-demand",
        capacity_reservation_id: str | None = None,
        placement_group: ec2.IPlacementGroup | None = None,
        placement_group_name: str | None = None,
        security_group: ec2.ISecurityGroup | None = None,
        lustre_client: bool = False,
        root_volume_gib: int = 200,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Makes the node group.

        Args:
            scope: the construct that owns it.
            id: its id within the scope.
            cluster: the cluster that the nodes join.
            vpc: the VPC of the security group.
            subnets: exactly one private subnet, since EFA cannot cross zones.
            instance_type: a GPU type with EFA; default g6.8xlarge (one L4, one EFA interface).
            role_label: value of the node label ``ray-llm-eks/node-role``; default "gpu".
            min_nodes: default 2.
            desired_nodes: default 2.
            max_nodes: default 2.
            capacity: "on-demand" (default), "spot" or "capacity-block".
            capacity_reservation_id: reservation or block to run in; default none.
            placement_group: a cluster placement group to share; default: a new one, or none with a reservation.
            placement_group_name: the name of an existing one, such as a reservation's own.
            security_group: an EFA security group to share; default a new one.
            lustre_client: install the Lustre client, which a cache on FSx for Lustre needs; default False.
            root_volume_gib: encrypted gp3; default 200.
            labels: further node labels.

        Raises:
            ConfigurationError: a type without GPU or EFA, a subnet count other than one, node counts out of order, a
                reservation together with Spot, a Capacity Block without its reservation, or two placement groups.
        """
        super().__init__(scope, id)
        self.facts = instance_facts(instance_type)
        self._check(subnets, min_nodes, desired_nodes, max_nodes, capacity, capacity_reservation_id)
        if placement_group and placement_group_name:
            raise ConfigurationError(f"{self.node.path}: give placement_group or placement_group_name, not both")

        self.security_group: ec2.ISecurityGroup = (
            security_group or EfaSecurityGroup(self, "Efa", vpc=vpc).security_group
        )
        if placement_group_name is None and placement_group is None and capacity_reservation_id is None:
            placement_group = ec2.PlacementGroup(self, "PlacementGroup", strategy=ec2.PlacementGroupStrategy.CLUSTER)
        self.placement_group_name = placement_group.placement_group_name if placement_group else placement_group_name
        template = self._launch_template(cluster, capacity, capacity_reservation_id, lustre_client, root_volume_gib)
        role = iam.Role(
            self,
            "NodeRole",
            assumed_by=ec2_principal(),
            managed_policies=[
                iam.ManagedPolicy.from_aws_managed_policy_name(name)
                for name in (
                    "AmazonEKSWorkerNodePolicy",
                    "AmazonEC2ContainerRegistryPullOnly",
                    "AmazonEKS_CNI_Policy",
                    "AmazonSSMManagedInstanceCore",
                )
            ],
        )
        # The L2 Nodegroup has no update strategy, and MINIMAL is what fixed GPU capacity needs.
        self.node_group = eks.CfnNodegroup(
            self,
            "NodeGroup",
            cluster_name=cluster.cluster_name,
            node_role=role.role_arn,
            subnets=[subnet.subnet_id for subnet in subnets],
            ami_type="AL2023_x86_64_NVIDIA",
            capacity_type=capacity.upper().replace("-", "_"),
            launch_template=eks.CfnNodegroup.LaunchTemplateSpecificationProperty(
                id=template.ref, version=template.attr_latest_version_number
            ),
            scaling_config=eks.CfnNodegroup.ScalingConfigProperty(
                min_size=min_nodes, desired_size=desired_nodes, max_size=max_nodes
            ),
            labels={
                **(labels or {}),
                NODE_ROLE: role_label,
                INSTANCE_TYPE: instance_type,
                GPU_PRESENT: "true",
            },
            taints=[eks.CfnNodegroup.TaintProperty(key=GPU_TAINT, value="true", effect="NO_SCHEDULE")],
            update_config=eks.CfnNodegroup.UpdateConfigProperty(max_unavailable=1, update_strategy="MINIMAL"),
            node_repair_config=eks.CfnNodegroup.NodeRepairConfigProperty(enabled=True),
        )
        acknowledge_node_role(role)
        self.node_group.node.add_dependency(self.security_group)

    def _check(
        self,
        subnets: Sequence[ec2.ISubnet],
        min_nodes: int,
        desired_nodes: int,
        max_nodes: int,
        capacity: Capacity,
        capacity_reservation_id: str | None,
    ) -> None:
        path, name = self.node.path, self.facts.name
        if not self.facts.gpus or not self.facts.efa_interfaces:
            raise ConfigurationError(
                f"{path}: {name} has no {'GPU' if not self.facts.gpus else 'EFA interface'}; "
                f"types that have both, cheapest first: {', '.join(efa_gpu_instance_names()[:6])}"
            )
        if len(subnets) != 1:
            raise ConfigurationError(
                f"{path}: exactly one subnet in one zone, not {len(subnets)}; EFA traffic cannot cross zones"
            )
        check_node_counts(path, min_nodes, desired_nodes, max_nodes)
        if capacity == "spot" and capacity_reservation_id:
            raise ConfigurationError(
                f"{path}: Spot instances cannot run in capacity reservation {capacity_reservation_id}"
            )
        if capacity == "capacity-block" and not (capacity_reservation_id and self.facts.capacity_block):
            raise ConfigurationError(
                f"{path}: a Capacity Block needs capacity_reservation_id and a type that is sold so; {name} "
                f"{'is' if self.facts.capacity_block else 'is not'}"
            )

    def _launch_template(
        self,
        cluster: eks.ICluster,
        capacity: Capacity,
        reservation: str | None,
        lustre_client: bool,
        root_volume_gib: int,
    ) -> ec2.CfnLaunchTemplate:
        groups = [self.security_group.security_group_id, cluster.cluster_security_group_id]
        user_data = node_user_data(local_disks=self.facts.nvme_gb > 0, lustre_client=lustre_client)
        props = ec2.CfnLaunchTemplate
        # The L2 LaunchTemplate cannot describe network interfaces.
        return ec2.CfnLaunchTemplate(
            self,
            "LaunchTemplate",
            launch_template_data=props.LaunchTemplateDataProperty(
                instance_type=self.facts.name,
                network_interfaces=efa_interfaces(self.facts, groups),
                placement=(
                    props.PlacementProperty(group_name=self.placement_group_name) if self.placement_group_name else None
                ),
                capacity_reservation_specification=(
                    props.CapacityReservationSpecificationProperty(
                        capacity_reservation_target=props.CapacityReservationTargetProperty(
                            capacity_reservation_id=reservation
                        )
                    )
                    if reservation
                    else None
                ),
                instance_market_options=(
                    props.InstanceMarketOptionsProperty(market_type="capacity-block")
                    if capacity == "capacity-block"
                    else None
                ),
                metadata_options=props.MetadataOptionsProperty(http_tokens="required", http_put_response_hop_limit=1),
                block_device_mappings=[
                    props.BlockDeviceMappingProperty(
                        device_name=AL2023_ROOT_DEVICE,
                        ebs=props.EbsProperty(
                            volume_size=root_volume_gib,
                            volume_type="gp3",
                            encrypted=True,
                            delete_on_termination=True,
                        ),
                    )
                ],
                user_data=Fn.base64(user_data),
                tag_specifications=[
                    props.TagSpecificationProperty(resource_type=kind, tags=[CfnTag(key="Name", value=self.node.path)])
                    for kind in ("instance", "volume")
                ],
            ),
        )


def efa_interfaces(
    facts: InstanceFacts, security_group_ids: Sequence[str]
) -> list[ec2.CfnLaunchTemplate.NetworkInterfaceProperty]:
    """The network interfaces of a launch template with all the EFA that an instance type has.

    The first interface is the node's own (IP traffic and, where its card has EFA, EFA); further ones are EFA only, so
    that they take no IP addresses. DeviceIndex is 0 on the first card and 1 on the others.

    Args:
        facts: the instance type.
        security_group_ids: go into every interface.
    """
    cards = range(facts.efa_first_card, facts.efa_first_card + facts.efa_interfaces)
    return [
        ec2.CfnLaunchTemplate.NetworkInterfaceProperty(
            network_card_index=card,
            device_index=0 if card == 0 else 1,
            interface_type=("efa" if card in cards else "interface") if card == 0 else "efa-only",
            groups=list(security_group_ids),
            delete_on_termination=True,
        )
        for card in sorted({0, *cards})
    ]
