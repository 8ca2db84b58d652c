"""The RayService and what surrounds it: what the templates promise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from aws_cdk.assertions import Match

from ray_llm_eks.errors import ConfigurationError
from ray_llm_eks.instances import instance_facts
from ray_llm_eks.serve_config import Role
from ray_llm_eks.worker_pods import WorkerNodes, pods_needed, worker_groups
from tests.synthesized import ROOT, assembly, build, manifest, stack, template

DRA = {"gpu": {"efa_devices": "dra"}}


def cluster_config(settings: Any = "defaults") -> dict[str, Any]:
    return manifest("RayService", settings)["spec"]["rayClusterConfig"]


def workers(settings: Any = "defaults") -> dict[str, dict[str, Any]]:
    return {group["groupName"]: group for group in cluster_config(settings)["workerGroupSpecs"]}


def worker_pod(role: str = "prefill", settings: Any = "defaults") -> dict[str, Any]:
    return workers(settings)[role]["template"]["spec"]


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in pod["containers"][0]["env"]}


def resource_of(kind: str, settings: Any = "defaults") -> str:
    """The logical id of the manifest resource that applies an object of this kind."""
    serving = stack("Serving", settings)
    [found] = [
        name
        for name, r in serving.resources.items()
        if r["Type"] == "Custom::AWSCDK-EKS-KubernetesResource"
        and f'"kind":"{kind}"' in json.dumps(r).replace("\\", "")
    ]
    return found


class TestRayService:
    def test_the_serve_config_is_the_files_own_text(self) -> None:
        text = (ROOT / "serve_configs" / "qwen3.5-9b-pd.yaml").read_text("utf-8")
        assert manifest("RayService")["spec"]["serveConfigV2"] == text

    def test_head(self) -> None:
        head = cluster_config()["headGroupSpec"]
        assert head["rayStartParams"]["num-gpus"] == "0"
        pod = head["template"]["spec"]
        assert pod["nodeSelector"] == {"ray-llm-eks/node-role": "system"}
        assert "tolerations" not in pod
        assert "nvidia.com/gpu" not in str(pod)

    def test_one_worker_group_a_role(self) -> None:
        assert set(workers()) == {"prefill", "decode"}
        for role, group in workers().items():
            assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == 1
            assert group["rayStartParams"]["resources"] == f"'{{\"{role}\": 1}}'"

    def test_the_serve_config_asks_for_each_roles_own_resource(self) -> None:
        config = yaml.safe_load(manifest("RayService")["spec"]["serveConfigV2"])
        args = config["applications"][0]["args"]
        for role in ("prefill", "decode"):
            assert args[f"{role}_config"]["placement_group_config"]["bundles"][0][role] > 0

    def test_worker_pods_fit_their_node(self) -> None:
        facts = instance_facts("g6.8xlarge")
        container = worker_pod()["containers"][0]
        requests = container["resources"]["requests"]
        assert requests["nvidia.com/gpu"] == "1"
        assert requests["vpc.amazonaws.com/efa"] == "1"
        assert int(requests["cpu"]) * 1000 <= facts.allocatable_cpu_m
        assert int(requests["memory"].removesuffix("Gi")) * 1024 <= facts.allocatable_memory_mib
        assert container["resources"]["limits"]["memory"] == requests["memory"]

    def test_worker_pods_tolerate_the_taint_select_the_label_and_keep_apart(self) -> None:
        pod = worker_pod()
        assert pod["nodeSelector"] == {"ray-llm-eks/node-role": "gpu"}
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
        [term] = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"

    def test_environment(self) -> None:
        env = environment(worker_pod())
        assert env["FI_PROVIDER"] == "efa"
        assert env["VLLM_SSM_CONV_STATE_LAYOUT"] == "DS"
        assert env["VLLM_HOST_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
        # It ends the process on an EFA without RDMA read; libfabric decides by itself.
        assert "FI_EFA_USE_DEVICE_RDMA" not in env

    def test_weights_and_compile_caches_are_on_the_cache_volume(self) -> None:
        pod = worker_pod()
        env = environment(pod)
        mount = {m["name"]: m["mountPath"] for m in pod["containers"][0]["volumeMounts"]}["model-cache"]
        for name in (
            "HF_HOME",
            "VLLM_CACHE_ROOT",
            "TRITON_CACHE_DIR",
            "TORCHINDUCTOR_CACHE_DIR",
            "FLASHINFER_WORKSPACE_BASE",
        ):
            assert env[name].startswith(f"{mount}/"), name
        decode = environment(worker_pod("decode"))
        assert decode["HF_HOME"] == env["HF_HOME"]
        assert decode["VLLM_CACHE_ROOT"] != env["VLLM_CACHE_ROOT"]

    def test_shared_memory_is_sized_and_counts_within_the_limit(self) -> None:
        pod = worker_pod()
        volume = {v["name"]: v for v in pod["volumes"]}["shared-memory"]
        assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
        assert {"name": "shared-memory", "mountPath": "/dev/shm"} in pod["containers"][0]["volumeMounts"]

    @pytest.mark.parametrize("settings", ["defaults", "imported", DRA], ids=str)
    def test_security_contexts(self, settings: Any) -> None:
        config = cluster_config(settings)
        pods = [config["headGroupSpec"], *config["workerGroupSpecs"]]
        for pod in (group["template"]["spec"] for group in pods):
            assert not pod.get("hostNetwork")
            assert pod["automountServiceAccountToken"] is False
            for container in (*pod["containers"], *pod.get("initContainers", ())):
                context = container["securityContext"]
                assert context["allowPrivilegeEscalation"] is False
                assert context["capabilities"]["drop"] == ["ALL"]
                assert context["capabilities"].get("add", ["IPC_LOCK"]) == ["IPC_LOCK"]

    def test_probes_and_pre_stop(self) -> None:
        container = worker_pod()["containers"][0]
        assert container["readinessProbe"]["httpGet"] == {"path": "/-/healthz", "port": 8000}
        assert container["livenessProbe"]["httpGet"]["port"] == 52365
        assert container["lifecycle"]["preStop"]["exec"]["command"] == ["ray", "stop"]

    def test_ray_asks_for_a_token(self) -> None:
        assert cluster_config()["authOptions"] == {"mode": "token"}

    def test_the_upgrade_strategy_cannot_wait_for_gpus_that_do_not_exist(self) -> None:
        assert manifest("RayService")["spec"]["upgradeStrategy"] == {"type": "None"}

    def test_the_image_is_pinned(self) -> None:
        images = {c["image"] for c in (*worker_pod()["containers"], *worker_pod()["initContainers"])}
        assert images == {"public.ecr.aws/deep-learning-containers/ray:serve-llm-cuda-v1.0.0"}

    def test_efa_by_resource_claim(self) -> None:
        pod = worker_pod(settings=DRA)
        resources = pod["containers"][0]["resources"]
        assert "vpc.amazonaws.com/efa" not in resources["requests"]
        assert resources["claims"] == [{"name": "efa"}]
        assert pod["resourceClaims"] == [{"name": "efa", "resourceClaimTemplateName": "efa-prefill"}]
        templates = [m for s in assembly(DRA).stacks for m in s.manifests() if m["kind"] == "ResourceClaimTemplate"]
        assert {t["metadata"]["name"] for t in templates} == {"efa-prefill", "efa-decode"}

    def test_decode_on_its_own_nodes(self) -> None:
        two = {"gpu": {"decode": {"instance_type": "g6e.8xlarge", "min_nodes": 1, "desired_nodes": 1}}}
        assert worker_pod("decode", two)["nodeSelector"] == {"ray-llm-eks/node-role": "decode"}
        assert worker_pod("prefill", two)["nodeSelector"] == {"ray-llm-eks/node-role": "gpu"}


class TestFetch:
    def test_every_worker_fetches_before_its_engine_starts(self) -> None:
        [container] = worker_pod()["initContainers"]
        assert container["args"] == ["--cache", "/mnt/model-cache", "--hub", "Qwen/Qwen3.5-9B"]
        script = manifest("ConfigMap")["data"]["fetch_model.py"]
        assert script == Path(ROOT, "constructs/ray_llm_eks/fetch/fetch_model.py").read_text("utf-8")
        assert environment(worker_pod())["HF_HUB_OFFLINE"] == "1"

    def test_the_token_is_read_with_pod_identity_from_one_secret(self) -> None:
        [container] = worker_pod(settings="production")["initContainers"]
        assert container["args"][-2:] == ["--token-secret", "hub/token"]
        [policy] = stack("Serving", "production").of_type("AWS::IAM::Policy")
        [statement] = policy["PolicyDocument"]["Statement"]
        assert statement["Action"] == "secretsmanager:GetSecretValue"
        assert str(statement["Resource"]).endswith(":secret:hub/token-??????']]}")

    def test_pods_have_no_permission_without_need(self) -> None:
        template("Serving").resource_count_is("AWS::IAM::Policy", 0)

    def test_the_association_is_there_before_the_pods(self) -> None:
        resources = stack("Serving").resources
        [association] = [n for n, r in resources.items() if r["Type"] == "AWS::EKS::PodIdentityAssociation"]
        assert association in resources[resource_of("RayService")]["DependsOn"]
        template("Serving").has_resource_properties(
            "AWS::EKS::PodIdentityAssociation", {"Namespace": "inference", "ServiceAccount": "ray-llm"}
        )


class TestOrder:
    def test_the_ray_service_goes_first_and_the_namespace_last(self) -> None:
        resources = stack("Serving").resources
        namespace = resource_of("Namespace")
        for name, resource in resources.items():
            if resource["Type"] == "Custom::AWSCDK-EKS-KubernetesResource" and name != namespace:
                assert namespace in resource["DependsOn"], name
        others = {n for n, r in resources.items() if "KubernetesResource" in r["Type"]} - {resource_of("RayService")}
        assert others <= set(resources[resource_of("RayService")]["DependsOn"])

    def test_the_stacks_are_deployed_in_order(self) -> None:
        platform, accelerators, serving = assembly().stacks
        assert (platform.name, platform.dependencies) == ("RayLlmPlatform", ())
        assert (accelerators.name, accelerators.dependencies) == ("RayLlmAccelerators", ("RayLlmPlatform",))
        assert serving.name == "RayLlmServing"
        assert set(serving.dependencies) == {"RayLlmPlatform", "RayLlmAccelerators"}

    def test_a_changed_serve_config_touches_the_serving_stack_only(self, tmp_path: Path) -> None:
        changed = tmp_path / "changed.yaml"
        text = (ROOT / "serve_configs" / "qwen3.5-9b-pd.yaml").read_text("utf-8")
        changed.write_text(text.replace("max_model_len: 4096", "max_model_len: 2048"))
        settings = {"serving": {"serve_config": str(changed)}}
        for name in ("Platform", "Accelerators"):
            assert stack(name, settings).template == stack(name).template
        assert stack("Serving", settings).template != stack("Serving").template


def role(name: str, replicas: int, gpus: int = 1) -> Role:
    return Role(name=name, model_id="m", model_source=None, replicas=replicas, gpus_per_replica=gpus)


@pytest.mark.parametrize(
    ("roles", "gpus_per_node", "pods"),
    [
        ([role("llm", 2)], 1, 2),
        ([role("llm", 2)], 4, 1),
        ([role("llm", 3, 2)], 4, 2),
        ([role("llm", 1, 8)], 4, 2),
        ([role("llm", 2, 3)], 4, 2),
        ([role("llm", 1, 2), role("llm", 1, 2)], 4, 1),
    ],
)
def test_pods_needed(roles: list[Role], gpus_per_node: int, pods: int) -> None:
    assert pods_needed(roles, gpus_per_node) == pods


def test_more_nodes_than_there_are_is_refused() -> None:
    nodes = WorkerNodes(facts=instance_facts("g6.8xlarge"), max_nodes=2, node_role="gpu")
    worker_groups([role("prefill", 1), role("decode", 1)], {"prefill": nodes, "decode": nodes})
    with pytest.raises(ConfigurationError, match=r"needs 3 nodes of g6.8xlarge \(2 for prefill \+ 1 for decode"):
        worker_groups([role("prefill", 2), role("decode", 1)], {"prefill": nodes, "decode": nodes})


class TestS3:
    def test_staging_from_a_prefix(self, tmp_path: Path) -> None:
        settings = {"serving": {"serve_config": self.config(tmp_path), "model_s3_uri": "s3://bucket/models/qwen"}}
        [container] = worker_pod(settings=settings)["initContainers"]
        assert container["args"][2:] == [
            "--s3",
            "s3://bucket/models/qwen",
            "--into",
            "/mnt/model-cache/models/qwen",
        ]
        template("Serving", settings).has_resource_properties(
            "AWS::IAM::Policy",
            {
                "PolicyDocument": Match.object_like(
                    {
                        "Statement": [
                            Match.object_like({"Action": "s3:GetObject"}),
                            Match.object_like(
                                {
                                    "Action": "s3:ListBucket",
                                    "Condition": {"StringLike": {"s3:prefix": ["models/qwen/*"]}},
                                }
                            ),
                        ]
                    }
                )
            },
        )
        get, _ = stack("Serving", settings).of_type("AWS::IAM::Policy")[0]["PolicyDocument"]["Statement"]
        assert str(get["Resource"]).endswith(":s3:::bucket/models/qwen/*']]}")

    def test_a_path_outside_the_cache_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="same path below /mnt/model-cache"):
            build({"serving": {"model_s3_uri": "s3://bucket/models/qwen"}})

    def config(self, folder: Path) -> str:
        text = (ROOT / "serve_configs" / "qwen3.5-9b-pd.yaml").read_text("utf-8")
        file = folder / "s3.yaml"
        file.write_text(text.replace("model_source: Qwen/Qwen3.5-9B", "model_source: /mnt/model-cache/models/qwen"))
        return str(file)
