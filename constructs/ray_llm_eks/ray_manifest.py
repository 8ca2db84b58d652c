"""The RayService manifest, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .labels import EFA_RESOURCE, GPU_RESOURCE, GPU_TAINT, NODE_ROLE, POD_ROLE
from .model_cache import ModelCache
from .worker_pods import WorkerGroup

SERVE_PORT = 8000
DASHBOARD_PORT = 8265
AGENT_PORT = 52365

HEAD_CPU = "2"
HEAD_MEMORY = "8Gi"
"""Requests of the head in AWS's own manifests for this image."""

SHARED_MEMORY_GIB = 16
OBJECT_STORE_BYTES = 4 << 30
"""Ray's object store lives in /dev/shm and carries requests only, no KV cache; its default is 30 % of memory."""

EFA_CLAIM = "efa"
FETCH_SCRIPTS = "fetch-scripts"
FETCH_SCRIPTS_PATH = "/opt/ray-llm-eks"


@dataclass(frozen=True, kw_only=True)
class RayServiceSpec:
    """All that the manifest is made from."""

    name: str
    namespace: str
    service_account: str
    serve_config: str
    """The Serve config file's own text."""
    image: str
    ray_version: str
    groups: Sequence[WorkerGroup]
    cache: ModelCache
    fetch_arguments: Sequence[str]
    """Arguments of fetch_model.py; empty where there is nothing to fetch."""
    fetch_config_map: str
    efa_devices: Literal["device-plugin", "dra"] = "device-plugin"
    upgrade_strategy: Literal["None", "NewCluster"] = "None"


def ray_service(spec: RayServiceSpec) -> dict[str, Any]:
    """The RayService: a head without GPU on the system nodes, one worker group a role on the GPU nodes."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": spec.name, "namespace": spec.namespace},
        "spec": {
            "serveConfigV2": spec.serve_config,
            "upgradeStrategy": {"type": spec.upgrade_strategy},
            # The head has no Serve replicas, so requests need not pass through it.
            "excludeHeadPodFromServeSvc": True,
            "rayClusterConfig": {
                "rayVersion": spec.ray_version,
                # Whoever reaches the dashboard or the job API runs code: KubeRay makes a token and asks for it.
                "authOptions": {"mode": "token"},
                "headGroupSpec": _head(spec),
                "workerGroupSpecs": [_worker_group(spec, group) for group in spec.groups],
            },
        },
    }


def efa_claim_template(namespace: str, role: str, devices: int) -> dict[str, Any]:
    """A ResourceClaimTemplate for EFA devices of the EFA DRA driver."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"{EFA_CLAIM}-{role}", "namespace": namespace},
        "spec": {
            "spec": {
                "devices": {
                    "requests": [
                        {
                            "name": EFA_CLAIM,
                            "exactly": {
                                "deviceClassName": "efa.networking.k8s.aws",
                                "allocationMode": "ExactCount",
                                "count": devices,
                            },
                        }
                    ]
                }
            }
        },
    }


def _head(spec: RayServiceSpec) -> dict[str, Any]:
    probe = _http_probe("/api/healthz", AGENT_PORT)
    container = {
        "name": "ray-head",
        "image": spec.image,
        "imagePullPolicy": "IfNotPresent",
        "ports": [
            {"name": "gcs-server", "containerPort": 6379},
            {"name": "dashboard", "containerPort": DASHBOARD_PORT},
            {"name": "client", "containerPort": 10001},
            {"name": "serve", "containerPort": SERVE_PORT},
        ],
        "resources": {
            "requests": {"cpu": HEAD_CPU, "memory": HEAD_MEMORY},
            "limits": {"memory": HEAD_MEMORY},
        },
        "livenessProbe": {**probe, "initialDelaySeconds": 30, "failureThreshold": 24},
        "readinessProbe": {**probe, "initialDelaySeconds": 10, "failureThreshold": 3},
        "lifecycle": _pre_stop(),
        "securityContext": _security_context(),
    }
    return {
        # No CPUs for actors: replicas run on the workers, where a lost head does not take them along.
        "rayStartParams": {"num-cpus": "0", "num-gpus": "0", "dashboard-host": "0.0.0.0"},
        "template": {
            "metadata": {"labels": {POD_ROLE: "head"}},
            "spec": {
                "serviceAccountName": spec.service_account,
                "automountServiceAccountToken": False,
                "nodeSelector": {NODE_ROLE: "system"},
                "securityContext": _pod_security_context(),
                "containers": [container],
                "terminationGracePeriodSeconds": 60,
            },
        },
    }


def _worker_group(spec: RayServiceSpec, group: WorkerGroup) -> dict[str, Any]:
    facts = group.nodes.facts
    return {
        "groupName": group.role,
        "replicas": group.pods,
        "minReplicas": group.pods,
        "maxReplicas": group.pods,
        "rayStartParams": {
            "num-cpus": str(group.cpus),
            "num-gpus": str(facts.gpus),
            "object-store-memory": str(OBJECT_STORE_BYTES),
            # Serve deployments ask for this resource, so that each lands on its own group.
            "resources": f"'{{\"{group.role}\": {facts.gpus}}}'",
        },
        "template": {
            "metadata": {"labels": {POD_ROLE: group.role}},
            "spec": _worker_pod(spec, group),
        },
    }


def _worker_pod(spec: RayServiceSpec, group: WorkerGroup) -> dict[str, Any]:
    claims = spec.efa_devices == "dra"
    pod: dict[str, Any] = {
        "serviceAccountName": spec.service_account,
        "automountServiceAccountToken": False,
        "nodeSelector": {NODE_ROLE: group.nodes.node_role},
        "tolerations": [{"key": GPU_TAINT, "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": _apart_from_other_workers(),
        "securityContext": _pod_security_context(),
        "initContainers": _fetch_container(spec, group),
        "containers": [_worker_container(spec, group)],
        "volumes": [
            spec.cache.pod_volume,
            {
                "name": "shared-memory",
                "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHARED_MEMORY_GIB}Gi"},
            },
            {"name": FETCH_SCRIPTS, "configMap": {"name": spec.fetch_config_map}},
        ],
        "terminationGracePeriodSeconds": 120,
    }
    if claims:
        pod["resourceClaims"] = [{"name": EFA_CLAIM, "resourceClaimTemplateName": f"{EFA_CLAIM}-{group.role}"}]
    if not spec.fetch_arguments:
        del pod["initContainers"]
        pod["volumes"].pop()
    return pod


def _worker_container(spec: RayServiceSpec, group: WorkerGroup) -> dict[str, Any]:
    facts = group.nodes.facts
    devices: dict[str, str] = {GPU_RESOURCE: str(facts.gpus)}
    resources: dict[str, Any] = {}
    if spec.efa_devices == "dra":
        resources["claims"] = [{"name": EFA_CLAIM}]
    else:
        devices[EFA_RESOURCE] = str(facts.efa_interfaces)
    memory = f"{group.memory_gib}Gi"
    resources["requests"] = {"cpu": str(group.cpus), "memory": memory, **devices}
    resources["limits"] = {"memory": memory, **devices}
    return {
        "name": "ray-worker",
        "image": spec.image,
        "imagePullPolicy": "IfNotPresent",
        "ports": [{"name": "serve", "containerPort": SERVE_PORT}],
        "env": _worker_environment(spec, group),
        "resources": resources,
        "volumeMounts": [
            spec.cache.volume_mount,
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
        "livenessProbe": {
            **_http_probe("/api/healthz", AGENT_PORT),
            "initialDelaySeconds": 30,
            "failureThreshold": 24,
        },
        # Serve's proxy answers here only once this node has a running replica and should get requests.
        "readinessProbe": {
            **_http_probe("/-/healthz", SERVE_PORT),
            "initialDelaySeconds": 10,
            "failureThreshold": 3,
        },
        "lifecycle": _pre_stop(),
        "securityContext": _security_context(locked_memory=True),
    }


def _worker_environment(spec: RayServiceSpec, group: WorkerGroup) -> list[dict[str, Any]]:
    values = {
        **spec.cache.environment(group.role),
        "FI_PROVIDER": "efa",
        "FI_EFA_FORK_SAFE": "1",
        # Hybrid models (Qwen3.5 and relatives): NIXL moves the convolution state in this layout only.
        "VLLM_SSM_CONV_STATE_LAYOUT": "DS",
        "VLLM_NO_USAGE_STATS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    if spec.fetch_arguments:
        # The weights are there before an engine starts; a second download by each engine would be a mistake.
        values["HF_HUB_OFFLINE"] = "1"
    return [
        *({"name": name, "value": value} for name, value in values.items()),
        {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]


def _fetch_container(spec: RayServiceSpec, group: WorkerGroup) -> list[dict[str, Any]]:
    hub_home = spec.cache.environment(group.role)["HF_HOME"]
    return [
        {
            "name": "fetch-model",
            "image": spec.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["python3", f"{FETCH_SCRIPTS_PATH}/fetch_model.py"],
            "args": ["--cache", spec.cache.mount_path, *spec.fetch_arguments],
            "env": [{"name": "HF_HOME", "value": hub_home}],
            "resources": {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "8Gi"}},
            "volumeMounts": [
                spec.cache.volume_mount,
                {"name": FETCH_SCRIPTS, "mountPath": FETCH_SCRIPTS_PATH, "readOnly": True},
            ],
            "securityContext": _security_context(),
        }
    ]


def _apart_from_other_workers() -> dict[str, Any]:
    """One worker pod a node: roles that share a node would send the KV cache through shared memory, not EFA."""
    return {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "labelSelector": {
                        "matchExpressions": [
                            {"key": POD_ROLE, "operator": "NotIn", "values": ["head"]},
                            {"key": POD_ROLE, "operator": "Exists"},
                        ]
                    },
                    "topologyKey": "kubernetes.io/hostname",
                }
            ]
        }
    }


def _http_probe(path: str, port: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": port}, "periodSeconds": 5, "timeoutSeconds": 5}


def _pre_stop() -> dict[str, Any]:
    return {"preStop": {"exec": {"command": ["ray", "stop"]}}}


def _pod_security_context() -> dict[str, Any]:
    return {"seccompProfile": {"type": "RuntimeDefault"}}


def _security_context(*, locked_memory: bool = False) -> dict[str, Any]:
    capabilities: dict[str, Any] = {"drop": ["ALL"]}
    if locked_memory:
        # libfabric registers memory with the EFA device, which locks it.
        capabilities["add"] = ["IPC_LOCK"]
    return {"allowPrivilegeEscalation": False, "privileged": False, "capabilities": capabilities}
