"""A model cache on FSx for Lustre."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from aws_cdk import CfnResource, Fn, RemovalPolicy, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_fsx as fsx
from aws_cdk import aws_iam as iam
from constructs import Construct

from .errors import ConfigurationError
from .model_cache import VOLUME, ModelCache, csi_driver, static_volume, static_volume_claim

PORTS = ((988, 988), (1018, 1023))
"""LNET's TCP ports; the file system cannot even be created where 988 is closed (FSx for Lustre User Guide)."""

THROUGHPUTS = (125, 250, 500, 1000)
"""MB/s per TiB of PERSISTENT_2 on SSD."""


@dataclass(frozen=True, kw_only=True)
class ExistingLustre:
    """A file system that exists already, as ``aws fsx describe-file-systems`` tells it."""

    file_system_id: str
    dns_name: str
    mount_name: str


class LustreModelCache(ModelCache):
    """FSx for Lustre in the GPU nodes' zone: the fastest when several nodes load weights.

    PERSISTENT_2 on SSD, Lustre 2.15 (AL2023 cannot mount 2.10, the API's default), encrypted at rest, open only to
    the nodes and only on LNET's ports, mounted with ``flock``. The nodes need the Lustre client:
    ``EfaNodeGroup(lustre_client=True)``.

    Attributes:
        file_system: the ``aws_fsx.CfnFileSystem``, or None where an existing one was given.
        security_group: the file system's, likewise.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        cluster: eks.ICluster,
        vpc: ec2.IVpc,
        subnet: ec2.ISubnet,
        nodes: ec2.ISecurityGroup,
        capacity_gib: int = 1200,
        throughput_per_tib: int = 250,
        removal_policy: RemovalPolicy = RemovalPolicy.DESTROY,
        existing: ExistingLustre | None = None,
        install_csi_driver: bool = True,
        csi_driver_version: str | None = None,
    ) -> None:
        """Makes the file system, its PersistentVolume and the CSI driver add-on.

        Args:
            scope: the construct that owns it.
            id: its id within the scope.
            cluster: where pods use it.
            vpc: the VPC of the security group.
            subnet: the GPU nodes' subnet.
            nodes: a security group of the GPU nodes; the only one let in.
            capacity_gib: 1200 (default), 2400 or a multiple of 2400.
            throughput_per_tib: 125, 250 (default), 500 or 1000 MB/s per TiB.
            removal_policy: of the file system and its security group; DESTROY (default) or RETAIN.
            existing: a file system to use instead of a new one; its security group must let the nodes in.
            install_csi_driver: False where the cluster already has aws-fsx-csi-driver.
            csi_driver_version: default EKS's own for the Kubernetes version.

        Raises:
            ConfigurationError: a capacity or throughput that FSx does not take.
        """
        if capacity_gib != 1200 and (capacity_gib < 2400 or capacity_gib % 2400):
            raise ConfigurationError(f"{id}: capacity_gib {capacity_gib} must be 1200, 2400 or a multiple of 2400")
        if throughput_per_tib not in THROUGHPUTS:
            raise ConfigurationError(f"{id}: throughput_per_tib {throughput_per_tib} must be one of {THROUGHPUTS}")
        super().__init__(
            scope, id, pod_volume={"persistentVolumeClaim": {"claimName": VOLUME}}, needs_lustre_client=True
        )
        self.security_group: ec2.SecurityGroup | None = None
        self.file_system: fsx.CfnFileSystem | None = None
        if existing is None:
            self.security_group = self._security_group(vpc, nodes, removal_policy)
            self.file_system = self._file_system(subnet, self.security_group, capacity_gib, throughput_per_tib)
            self.file_system.apply_removal_policy(removal_policy)
            existing = ExistingLustre(
                file_system_id=self.file_system.ref,
                dns_name=self.file_system.attr_dns_name,
                mount_name=self.file_system.attr_lustre_mount_name,
            )
        volume_name = Fn.join("-", [VOLUME, existing.file_system_id])
        self.claim_spec = static_volume_claim(volume_name, capacity_gib)
        static_volume(
            self,
            cluster=cluster,
            volume_name=volume_name,
            capacity_gib=capacity_gib,
            mount_options=["flock"],
            csi={
                "driver": "fsx.csi.aws.com",
                "volumeHandle": existing.file_system_id,
                "volumeAttributes": {"dnsname": existing.dns_name, "mountname": existing.mount_name},
            },
        )
        if install_csi_driver:
            csi_driver(
                self,
                cluster=cluster,
                addon_name="aws-fsx-csi-driver",
                version=csi_driver_version,
                service_account="fsx-csi-controller-sa",
                permissions=iam.PolicyStatement(
                    actions=["fsx:DescribeFileSystems"],
                    resources=[
                        Stack.of(self).format_arn(
                            service="fsx", resource="file-system", resource_name=existing.file_system_id
                        )
                    ],
                ),
            )

    def _security_group(
        self, vpc: ec2.IVpc, nodes: ec2.ISecurityGroup, removal_policy: RemovalPolicy
    ) -> ec2.SecurityGroup:
        group = ec2.SecurityGroup(
            self,
            "SecurityGroup",
            vpc=vpc,
            allow_all_outbound=False,
            description="Model cache on FSx for Lustre",
        )
        for first, last in PORTS:
            port = ec2.Port.tcp_range(first, last) if first != last else ec2.Port.tcp(first)
            # Lustre servers and clients open connections to each other.
            group.add_ingress_rule(group, port, "Lustre between its servers")
            group.add_egress_rule(group, port, "Lustre between its servers")
        # A file system that is kept holds its group (EC2 would refuse to delete it) and needs these rules.
        for kept in group.node.find_all():
            if CfnResource.is_cfn_resource(kept):
                cast(CfnResource, kept).apply_removal_policy(removal_policy)
        for first, last in PORTS:
            port = ec2.Port.tcp_range(first, last) if first != last else ec2.Port.tcp(first)
            group.connections.allow_from(nodes, port, "Lustre from the GPU nodes")
            group.connections.allow_to(nodes, port, "Lustre to the GPU nodes")
        return group

    def _file_system(
        self, subnet: ec2.ISubnet, group: ec2.ISecurityGroup, capacity_gib: int, throughput_per_tib: int
    ) -> fsx.CfnFileSystem:
        # The L2 opens ports 988 to 1023 of the security group to itself, more than Lustre needs.
        file_system = fsx.CfnFileSystem(
            self,
            "FileSystem",
            file_system_type="LUSTRE",
            file_system_type_version="2.15",
            storage_type="SSD",
            storage_capacity=capacity_gib,
            subnet_ids=[subnet.subnet_id],
            security_group_ids=[group.security_group_id],
            lustre_configuration=fsx.CfnFileSystem.LustreConfigurationProperty(
                deployment_type="PERSISTENT_2", per_unit_storage_throughput=throughput_per_tib
            ),
        )
        # Creation fails if the rules are not there yet.
        file_system.node.add_dependency(group)
        return file_system
