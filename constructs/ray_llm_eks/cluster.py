"""The EKS cluster and its add-ons."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network
from typing import cast

from aws_cdk import Annotations, CfnElement, CfnOutput, RemovalPolicy, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import Construct, IDependable

from .acknowledgements import acknowledge, managed_policy
from .addons import CSI_DRIVERS, eks_addon
from .errors import ConfigurationError
from .forms import dns_label, matching, public_access
from .kubectl_layer import kubectl_layer
from .network import AnyNetwork
from .principals import account_principal

BEFORE_NODES = ("vpc-cni", "kube-proxy", "eks-pod-identity-agent")
"""Add-ons whose DaemonSets a node needs in order to become Ready."""

AFTER_NODES = ("coredns", "metrics-server", "eks-node-monitoring-agent")
"""Add-ons that are only ACTIVE once pods of theirs run."""


class Cluster(Construct):
    """An EKS cluster in standard support, with its add-ons, that only the given addresses and principals reach.

    Secrets are encrypted with a key of its own, all control-plane logs go to a log group that is deleted with the
    cluster, and Kubernetes admin rights are EKS access entries. Node groups are constructs of their own.

    Attributes:
        cluster: the ``aws_eks_v2.ICluster``.
        node_prerequisites: what node groups must wait for: without vpc-cni a node never becomes Ready.
        admin_role: the role made for administrators, or None where ``admin_arns`` were given.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        network: AnyNetwork,
        kubernetes_version: str = "1.36",
        cluster_name: str = "ray-llm",
        kubectl_layer_package: str | None = None,
        admin_arns: Sequence[str] = (),
        public_access_cidrs: Sequence[IPv4Network] = (),
        allow_public_access_from_anywhere: bool = False,
        addon_versions: Mapping[str, str] | None = None,
    ) -> None:
        """Makes the cluster.

        Args:
            scope: the construct that owns it.
            id: its id within the scope.
            network: where its network interfaces and kubectl's Lambda function are.
            kubernetes_version: one in standard support; default 1.36 (standard support until 2027-08-02).
            cluster_name: unique in an account and region; default "ray-llm".
            kubectl_layer_package: force a kubectl layer such as "v29"; default by Kubernetes version.
            admin_arns: IAM roles or users that become cluster admins. Default: a new role, which those in this
                account who may assume roles can assume.
            public_access_cidrs: addresses that may reach the public API endpoint; default none: private only.
            allow_public_access_from_anywhere: must be True for 0.0.0.0/0.
            addon_versions: versions by add-on name; default EKS's own default for the Kubernetes version.

        Raises:
            ConfigurationError: 0.0.0.0/0 without the flag, no kubectl layer, or a version of an unknown add-on.
        """
        super().__init__(scope, id)
        self._addon_versions = dict(addon_versions or {})
        unknown = self._addon_versions.keys() - {*BEFORE_NODES, *AFTER_NODES, *CSI_DRIVERS}
        if unknown:
            raise ConfigurationError(
                f"{self.node.path}: addon_versions names {', '.join(sorted(unknown))}; the add-ons installed here are "
                f"{', '.join((*BEFORE_NODES, *AFTER_NODES, *CSI_DRIVERS))}"
            )
        for version in self._addon_versions.values():
            matching(version, r"v\d+\.\d+\.\d+-eksbuild\.\d+", "a version in addon_versions (v1.12.4-eksbuild.1)")
        cidrs = [str(cidr) for cidr in public_access_cidrs]
        public_access(public_access_cidrs, from_anywhere=allow_public_access_from_anywhere)
        dns_label(cluster_name)
        log_group = logs.LogGroup(
            self,
            "ControlPlaneLogs",
            log_group_name=f"/aws/eks/{cluster_name}/cluster",
            retention=logs.RetentionDays.ONE_MONTH,
            removal_policy=RemovalPolicy.DESTROY,
        )
        cluster = eks.Cluster(
            self,
            "Cluster",
            cluster_name=cluster_name,
            version=eks.KubernetesVersion.of(kubernetes_version),
            vpc=network.vpc,
            vpc_subnets=[ec2.SubnetSelection(subnets=list(network.private_subnets))],
            endpoint_access=(
                eks.EndpointAccess.PUBLIC_AND_PRIVATE.only_from(*cidrs) if cidrs else eks.EndpointAccess.PRIVATE
            ),
            default_capacity_type=eks.DefaultCapacityType.NODEGROUP,
            default_capacity=0,
            bootstrap_cluster_creator_admin_permissions=False,
            bootstrap_self_managed_addons=False,
            secrets_encryption_key=kms.Key(
                self, "SecretsKey", enable_key_rotation=True, removal_policy=RemovalPolicy.DESTROY
            ),
            cluster_logging=list(eks.ClusterLoggingTypes),
            kubectl_provider_options=eks.KubectlProviderOptions(
                kubectl_layer=kubectl_layer(
                    self, "KubectlLayer", kubernetes_version=kubernetes_version, force=kubectl_layer_package
                ),
                private_subnets=list(network.private_subnets),
            ),
            output_config_command=False,
        )
        # jsii declares ICluster wider than its own Cluster.
        self.cluster = cast(eks.ICluster, cluster)
        resource = cluster.node.default_child
        assert isinstance(resource, eks.CfnCluster)
        # The L2 has no upgrade policy; EKS's default, EXTENDED, costs $0.60 an hour once standard support ends.
        resource.upgrade_policy = eks.CfnCluster.UpgradePolicyProperty(support_type="STANDARD")
        resource.node.add_dependency(log_group)
        self._acknowledge(cluster)
        self.admin_role = self._admins(cluster, admin_arns)
        self._outputs(cluster_name, cidrs)

        # kubectl's function must keep its way out until the last manifest is deleted.
        self.cluster.node.add_dependency(network)
        self.node_prerequisites: list[IDependable] = [self._addon(name) for name in BEFORE_NODES]

    def add_addons_that_need_nodes(self, nodes: IDependable) -> None:
        """Adds CoreDNS, metrics-server and the node monitoring agent, to be created after ``nodes``.

        Their pods need a node to run on; created earlier they would block the deployment until a time-out.
        """
        for name in AFTER_NODES:
            self._addon(name).node.add_dependency(nodes)

    @staticmethod
    def _acknowledge(cluster: eks.Cluster) -> None:
        acknowledge(
            cluster.role,
            managed_policy("AmazonEKSClusterPolicy"),
            reason="EKS asks for this policy on a cluster's role.",
        )
        acknowledge(
            cluster.node.find_child("KubectlProvider"),
            managed_policy("service-role/AWSLambdaBasicExecutionRole"),
            managed_policy("service-role/AWSLambdaVPCAccessExecutionRole"),
            managed_policy("AmazonEC2ContainerRegistryReadOnly"),
            *_kubectl_provider_findings(cluster),
            "AwsSolutions-L1",
            reason="The functions that run kubectl and Helm are the CDK's own, with its policies and its runtime.",
        )
        Annotations.of(cluster).acknowledge_warning(
            "@aws-cdk/aws-eks:clusterMustManuallyTagSubnet", "nothing here lets Kubernetes make load balancers"
        )

    def _addon(self, name: str) -> eks.CfnAddon:
        return eks_addon(self, name, cluster=self.cluster, addon_name=name, version=self._addon_versions.get(name))

    def _admins(self, cluster: eks.Cluster, admin_arns: Sequence[str]) -> iam.Role | None:
        if admin_arns:
            for index, arn in enumerate(admin_arns):
                cluster.grant_cluster_admin(f"Admin{index}", arn)
            return None
        role = iam.Role(
            self,
            "AdminRole",
            assumed_by=account_principal(Stack.of(self).account),
            description="Kubernetes administrators of the cluster; assume it with aws eks update-kubeconfig --role-arn",
        )
        role.add_to_policy(iam.PolicyStatement(actions=["eks:DescribeCluster"], resources=[self.cluster.cluster_arn]))
        cluster.grant_cluster_admin("Admin", role.role_arn)
        return role

    def _outputs(self, cluster_name: str, cidrs: Sequence[str]) -> None:
        command = f"aws eks update-kubeconfig --name {cluster_name} --region {Stack.of(self).region}"
        if self.admin_role:
            command += f" --role-arn {self.admin_role.role_arn}"
        CfnOutput(self, "Kubeconfig", value=command, description="Writes the kubectl configuration")
        if not cidrs:
            CfnOutput(
                self,
                "ApiEndpoint",
                value=self.cluster.cluster_endpoint,
                description="Private: reach it through a system node (docs/reach-the-cluster.md), "
                "or set cluster.public_access_cidrs to your own address",
            )


def _kubectl_provider_findings(cluster: eks.Cluster) -> list[str]:
    """The findings that name logical ids of the CDK's kubectl function."""
    function = cluster.node.find_child("KubectlProvider").node.find_child("Handler")
    stack = Stack.of(cluster)
    handler = cast(CfnElement, function.node.default_child)
    findings = [f"AwsSolutions-IAM5[Resource::<{stack.resolve(handler.logical_id)}.Arn>:*]"]
    if condition := function.node.try_find_child("HasEcrPublic"):
        policy = "AmazonElasticContainerRegistryPublicReadOnly"
        arn = {"Fn::Join": ["", ["arn:", {"Ref": "AWS::Partition"}, f":iam::aws:policy/{policy}"]]}
        name = stack.resolve(cast(CfnElement, condition).logical_id)
        choice = {"Fn::If": [name, arn, {"Ref": "AWS::NoValue"}]}
        findings.append(f"AwsSolutions-IAM4[Policy::{json.dumps(choice, separators=(',', ':'))}]")
    return findings
