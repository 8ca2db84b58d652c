"""The service: namespace, service account, permissions, RayService."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Literal

from aws_cdk import ArnFormat, Stack, Token
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from . import forms
from .device_plugins import check_efa_devices
from .errors import ConfigurationError
from .model_cache import ModelCache
from .model_facts import ModelFacts
from .principals import pod_identity_principal
from .ray_manifest import RayServiceSpec, efa_claim_template, ray_service
from .rule_annotations import annotate
from .rules import Deployment, NodePool, check_serve_config
from .serve_config import ServeConfig
from .worker_pods import WorkerNodes, worker_groups

SERVICE_ACCOUNT = "ray-llm"
FETCH_CONFIG_MAP = "fetch-model"


class RayLlmService(Construct):
    """One Ray Serve application on the cluster, from its Serve config file.

    Attributes:
        role: the IAM role of the pods, through EKS Pod Identity; grant it what the application needs.
        ray_service: the manifest's construct; it is deleted before the namespace.
        endpoint: the service's name and port inside the cluster, host:port.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        cluster: eks.ICluster,
        serve_config: ServeConfig,
        nodes: Mapping[str, WorkerNodes],
        cache: ModelCache,
        image: str,
        ray_version: str,
        namespace: str = "inference",
        service_name: str = "ray-llm",
        efa_devices: Literal["device-plugin", "dra"] = "device-plugin",
        upgrade_strategy: Literal["None", "NewCluster"] = "None",
        hugging_face_token_secret: str | None = None,
        model_s3_uri: str | None = None,
        silenced_rules: Mapping[str, str] | None = None,
        model: ModelFacts | None = None,
    ) -> None:
        """Makes the namespace and all in it.

        Args:
            scope: the construct that owns it.
            id: its id within the scope.
            cluster: a cluster with the KubeRay operator and the Pod Identity agent.
            serve_config: the application.
            nodes: where each role of the Serve config runs, by role name (prefill, decode, llm).
            cache: the model cache.
            image: the serving image, by version tag or digest.
            ray_version: Ray's version in it.
            namespace: default "inference"; made, and deleted with everything in it.
            service_name: of the RayService; default "ray-llm".
            efa_devices: how pods get EFA, as given to ``DevicePlugins``.
            upgrade_strategy: KubeRay's answer to a changed pod template. "None" (default) changes the Serve config in
                place only; "NewCluster" needs every GPU twice.
            hugging_face_token_secret: name or full ARN of a Secrets Manager secret with a token; default none.
            model_s3_uri: S3 prefix of the model's files, copied to the absolute path that the Serve config names as
                model_source; default none, models come from the Hugging Face Hub.
            silenced_rules: reasons by rule id; what such a rule finds is shown and does not count.
            model: the model's shape, where no profile knows it (``model_facts.model_from_config``).

        Raises:
            ConfigurationError: the rules find an error in the Serve config (all findings are told), no role found in
                it, no or too few nodes for a role, a name of no valid form, an instance type that the EFA chart does
                not list, or a model_source that does not go with model_s3_uri.
        """
        super().__init__(scope, id)
        for check, name in (
            (forms.namespace, namespace),
            (forms.service_name, service_name),
            (forms.pinned_image, image),
            (forms.secret, hugging_face_token_secret),
            (forms.s3_prefix, model_s3_uri),
        ):
            if name is not None and not Token.is_unresolved(name):
                check(name)
        if missing := {role.name for role in serve_config.roles} - nodes.keys():
            raise ConfigurationError(f"{self.node.path}: nodes names none for {', '.join(sorted(missing))}")
        deployment = Deployment(
            pools={
                role: NodePool(name=at.node_role, facts=at.facts, min_nodes=0, max_nodes=at.max_nodes)
                for role, at in nodes.items()
            },
            image=image,
            ray_version=ray_version,
            upgrade_strategy=upgrade_strategy,
            has_hub_token=hugging_face_token_secret is not None,
            stages_from_s3=model_s3_uri is not None,
            model_mount=cache.mount_path,
        )
        report = check_serve_config(serve_config, deployment, silenced_rules, model=model)
        report.raise_errors()
        annotate(self, report)
        if not serve_config.roles:
            raise ConfigurationError(
                f"{serve_config.path}: no application of ray.serve.llm's builders, so the worker pods cannot be sized"
            )
        groups = worker_groups(serve_config.roles, dict(nodes))
        for group in groups:
            check_efa_devices(group.nodes.facts.name, efa_devices)
        fetch = _fetch_arguments(serve_config, cache, model_s3_uri, hugging_face_token_secret)

        namespace_manifest = self._manifest(
            "Namespace", cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        )
        self.role, pod_identity = self._role(cluster, namespace, hugging_face_token_secret, model_s3_uri)
        objects: dict[str, dict[str, Any]] = {
            "ServiceAccount": {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": SERVICE_ACCOUNT, "namespace": namespace},
            }
        }
        if claim := cache.claim(namespace):
            objects["ModelCacheClaim"] = claim
        if fetch:
            objects["FetchModel"] = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": FETCH_CONFIG_MAP, "namespace": namespace},
                "data": {"fetch_model.py": (files("ray_llm_eks.fetch") / "fetch_model.py").read_text("utf-8")},
            }
        if efa_devices == "dra":
            for group in groups:
                objects[f"EfaClaim-{group.role}"] = efa_claim_template(
                    namespace, group.role, group.nodes.facts.efa_interfaces
                )
        self.ray_service = self._manifest(
            "RayService",
            cluster,
            ray_service(
                RayServiceSpec(
                    name=service_name,
                    namespace=namespace,
                    service_account=SERVICE_ACCOUNT,
                    serve_config=serve_config.text,
                    image=image,
                    ray_version=ray_version,
                    groups=groups,
                    cache=cache,
                    fetch_arguments=fetch,
                    fetch_config_map=FETCH_CONFIG_MAP,
                    efa_devices=efa_devices,
                    upgrade_strategy=upgrade_strategy,
                )
            ),
        )
        self.ray_service.node.add_dependency(pod_identity)
        for name, manifest in objects.items():
            construct = self._manifest(name, cluster, manifest)
            construct.node.add_dependency(namespace_manifest)
            self.ray_service.node.add_dependency(construct)
        # On deletion the RayService goes first; deleting the namespace then waits until its pods are gone.
        self.ray_service.node.add_dependency(namespace_manifest)
        self.endpoint = f"{service_name}-serve-svc.{namespace}:8000"

    def _manifest(self, id: str, cluster: eks.ICluster, manifest: dict[str, Any]) -> eks.KubernetesManifest:
        return eks.KubernetesManifest(self, id, cluster=cluster, manifest=[manifest])

    def _role(
        self, cluster: eks.ICluster, namespace: str, secret: str | None, s3_uri: str | None
    ) -> tuple[iam.Role, Construct]:
        role = iam.Role(
            self,
            "Role",
            assumed_by=pod_identity_principal(),
            description=f"Pods of {namespace}/{SERVICE_ACCOUNT} on EKS",
        )
        if secret:
            arn = (
                secret
                if secret.startswith("arn:")
                # A secret's ARN ends in six random characters that its name does not tell.
                else Stack.of(self).format_arn(
                    service="secretsmanager",
                    resource="secret",
                    resource_name=f"{secret}-??????",
                    arn_format=ArnFormat.COLON_RESOURCE_NAME,
                )
            )
            role.add_to_policy(iam.PolicyStatement(actions=["secretsmanager:GetSecretValue"], resources=[arn]))
        if s3_uri:
            bucket, prefix = _bucket_and_prefix(s3_uri)
            partition = Stack.of(self).partition
            role.add_to_policy(
                iam.PolicyStatement(actions=["s3:GetObject"], resources=[f"arn:{partition}:s3:::{bucket}/{prefix}/*"])
            )
            role.add_to_policy(
                iam.PolicyStatement(
                    actions=["s3:ListBucket"],
                    resources=[f"arn:{partition}:s3:::{bucket}"],
                    conditions={"StringLike": {"s3:prefix": [f"{prefix}/*"]}},
                )
            )
        association = eks.CfnPodIdentityAssociation(
            self,
            "PodIdentity",
            cluster_name=cluster.cluster_name,
            namespace=namespace,
            service_account=SERVICE_ACCOUNT,
            role_arn=role.role_arn,
        )
        # Pods that started before the association would have no credentials.
        association.node.add_dependency(role)
        return role, association


def _fetch_arguments(serve_config: ServeConfig, cache: ModelCache, s3_uri: str | None, secret: str | None) -> list[str]:
    arguments = [argument for model in serve_config.hub_models for argument in ("--hub", model)]
    if s3_uri:
        targets = {role.model_source for role in serve_config.roles}
        target = next(iter(targets)) if len(targets) == 1 else None
        if not target or not target.startswith(f"{cache.mount_path}/"):
            raise ConfigurationError(
                f"{serve_config.path}: with serving.model_s3_uri, model_source of every role must be the same path "
                f"below {cache.mount_path}, for example {cache.mount_path}/models/my-model; it is "
                f"{', '.join(sorted(str(t) for t in targets))}"
            )
        arguments += ["--s3", s3_uri, "--into", target]
    if arguments and secret:
        arguments += ["--token-secret", secret]
    return arguments


def _bucket_and_prefix(uri: str) -> tuple[str, str]:
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    return bucket, prefix.strip("/")
