"""A model cache on EFS."""

from __future__ import annotations

from aws_cdk import Fn, RemovalPolicy
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_efs as efs
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from .model_cache import VOLUME, ModelCache, csi_driver, static_volume, static_volume_claim

NFS = ec2.Port.tcp(2049)

NOMINAL_CAPACITY_GIB = 1024
"""EFS grows by itself; Kubernetes wants a number all the same."""


class EfsModelCache(ModelCache):
    """EFS with elastic throughput and one mount target, in the GPU nodes' zone: paid by what is stored and read.

    Encrypted at rest and in transit, open only to the nodes on NFS's port.

    Attributes:
        file_system: the ``aws_efs.IFileSystem``.
        security_group: the file system's, or None where an existing one was given.
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
        removal_policy: RemovalPolicy = RemovalPolicy.DESTROY,
        existing: efs.IFileSystem | None = None,
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
            removal_policy: DESTROY (default) or RETAIN.
            existing: a file system to use instead of a new one; it must have a mount target in the nodes' zone.
            install_csi_driver: False where the cluster already has aws-efs-csi-driver.
            csi_driver_version: default EKS's own for the Kubernetes version.
        """
        super().__init__(scope, id, pod_volume={"persistentVolumeClaim": {"claimName": VOLUME}})
        self.security_group: ec2.SecurityGroup | None = None
        if existing is None:
            self.security_group = ec2.SecurityGroup(
                self, "SecurityGroup", vpc=vpc, allow_all_outbound=False, description="Model cache on EFS"
            )
            self.file_system: efs.IFileSystem = efs.FileSystem(
                self,
                "FileSystem",
                vpc=vpc,
                vpc_subnets=ec2.SubnetSelection(subnets=[subnet]),
                security_group=self.security_group,
                encrypted=True,
                throughput_mode=efs.ThroughputMode.ELASTIC,
                # The security group is the fence; nodes mount without IAM authorization.
                allow_anonymous_access=True,
                removal_policy=removal_policy,
            )
            self.security_group.connections.allow_from(nodes, NFS, "NFS from the GPU nodes")
        else:
            self.file_system = existing
        volume_name = Fn.join("-", [VOLUME, self.file_system.file_system_id])
        self.claim_spec = static_volume_claim(volume_name, NOMINAL_CAPACITY_GIB)
        static_volume(
            self,
            cluster=cluster,
            volume_name=volume_name,
            capacity_gib=NOMINAL_CAPACITY_GIB,
            mount_options=["tls"],
            csi={"driver": "efs.csi.aws.com", "volumeHandle": self.file_system.file_system_id},
        )
        if install_csi_driver:
            csi_driver(
                self,
                cluster=cluster,
                addon_name="aws-efs-csi-driver",
                version=csi_driver_version,
                service_account="efs-csi-controller-sa",
                permissions=iam.PolicyStatement(
                    actions=[
                        "elasticfilesystem:DescribeFileSystems",
                        "elasticfilesystem:DescribeMountTargets",
                    ],
                    resources=[self.file_system.file_system_arn],
                ),
            )
