"""Findings of the AwsSolutions rules (cdk-nag) that hold for a reason, written where a reviewer sees them.

They live in the construct tree and cost nothing where nobody runs those rules.
"""

from __future__ import annotations

from aws_cdk import Acknowledgment, Validations
from constructs import IConstruct


def acknowledge(construct: IConstruct, *findings: str, reason: str) -> None:
    """Acknowledges findings for a construct and all in it.

    Args:
        construct: where.
        findings: such as "AwsSolutions-VPC7"; one that has details names them in brackets.
        reason: why it is right as it is.
    """
    Validations.of(construct).acknowledge(*(Acknowledgment(id=finding, reason=reason) for finding in findings))


def managed_policy(name: str) -> str:
    """The finding that a role has this AWS managed policy."""
    return f"AwsSolutions-IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/{name}]"


def acknowledge_node_role(construct: IConstruct) -> None:
    """Acknowledges the managed policies of a node role."""
    acknowledge(
        construct,
        *map(
            managed_policy,
            (
                "AmazonEKSWorkerNodePolicy",
                "AmazonEKS_CNI_Policy",
                "AmazonEC2ContainerRegistryReadOnly",
                "AmazonEC2ContainerRegistryPullOnly",
                "AmazonSSMManagedInstanceCore",
            ),
        ),
        reason="EKS documents these managed policies for node roles, and AWS extends them when nodes need more.",
    )
