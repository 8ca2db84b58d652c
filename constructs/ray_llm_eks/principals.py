"""IAM principals, typed as the interface that roles take.

jsii declares the parameter names of IPrincipal otherwise than its own classes do, so a type checker needs the cast.
"""

from __future__ import annotations

from typing import cast

from aws_cdk import aws_iam as iam


def ec2_principal() -> iam.IPrincipal:
    """EC2 instances."""
    return cast(iam.IPrincipal, iam.ServicePrincipal("ec2.amazonaws.com"))


def account_principal(account: str) -> iam.IPrincipal:
    """Whoever an account's own administrators let assume a role."""
    return cast(iam.IPrincipal, iam.AccountPrincipal(account))


def pod_identity_principal() -> iam.IPrincipal:
    """Pods, through EKS Pod Identity, which tags its sessions."""
    pods = cast(iam.IPrincipal, iam.ServicePrincipal("pods.eks.amazonaws.com"))
    return cast(iam.IPrincipal, iam.SessionTagsPrincipal(pods))
