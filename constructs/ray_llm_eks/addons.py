"""EKS managed add-ons and the IAM roles of their pods."""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

CSI_DRIVERS = ("aws-fsx-csi-driver", "aws-efs-csi-driver")
"""Storage drivers that a model cache can bring along."""


def eks_addon(
    scope: Construct,
    id: str,
    *,
    cluster: eks.ICluster,
    addon_name: str,
    version: str | None = None,
    roles: Mapping[str, iam.Role] | None = None,
) -> eks.CfnAddon:
    """An EKS add-on.

    Args:
        scope: the construct that owns it.
        id: its id within the scope.
        cluster: where it is installed.
        addon_name: EKS's name of it, for example "vpc-cni".
        version: for example "v1.20.4-eksbuild.1"; default: EKS's default for the cluster's Kubernetes version.
        roles: IAM role by service account of the add-on, through EKS Pod Identity.
    """
    # The L2 Addon has neither pod identity associations nor a way to resolve conflicts.
    return eks.CfnAddon(
        scope,
        id,
        addon_name=addon_name,
        addon_version=version,
        cluster_name=cluster.cluster_name,
        resolve_conflicts="OVERWRITE",
        pod_identity_associations=[
            eks.CfnAddon.PodIdentityAssociationProperty(role_arn=role.role_arn, service_account=account)
            for account, role in (roles or {}).items()
        ]
        or None,
    )
