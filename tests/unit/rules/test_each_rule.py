"""Every rule: a file that breaks it, the nearest file that does not, and what is printed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ray_llm_eks.rules import ALL_RULES, Deployment, Severity
from tests.unit.rules.example import (
    G6,
    Change,
    Config,
    aggregated_config,
    both,
    engine,
    kwargs,
    on,
    pd_config,
    put,
    report_of,
    transfer,
    two_pools,
)

DENSE = "Qwen/Qwen3-8B"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A rule, what breaks it, and what nearly does."""

    rule: str
    message: str
    """Part of the printed message."""
    breaks: Change
    passes: Change = lambda config: None
    base: Callable[[], Config] = pd_config
    nodes: Deployment = G6
    passing_nodes: Deployment | None = None
    severity: Severity = Severity.ERROR
    name: str = ""


def dense() -> Config:
    return pd_config(DENSE)


def set_in(role: str, *path: Any) -> Change:
    return lambda config: put(engine(config, role), *path)


def argument(name: str, value: Any, role: str = "decode") -> Change:
    return lambda config: put(kwargs(config, role), name, value)


def arguments(**values: Any) -> Change:
    return both(lambda config: config["engine_kwargs"].update(values))


def kv(role: str = "decode", **changes: Any) -> Change:
    return lambda config: put(kwargs(config, role), "kv_transfer_config", transfer(**changes))


def extra(role: str = "decode", **values: Any) -> Change:
    return kv(role, kv_connector_extra_config=values)


def both_extra(**values: Any) -> Change:
    return arguments(kv_transfer_config=transfer(kv_connector_extra_config=values))


def environment(name: str, value: Any, role: str = "decode") -> Change:
    return set_in(role, "runtime_env", "env_vars", name, value)


def all_of(*changes: Change) -> Change:
    return lambda config: [change(config) for change in changes]


def second_application(name: str = "other", **changes: Any) -> Change:
    def add(config: Config) -> None:
        other = copy.deepcopy(config["applications"][0])
        other.update({"name": name, "import_path": "my.app:build", "args": {}, **changes})
        config["applications"].append(other)

    return add


def unbind(config: Config) -> None:
    for role in ("prefill", "decode"):
        del engine(config, role)["placement_group_config"]


def without(*path: Any, role: str = "decode") -> Change:
    def remove(config: Config) -> None:
        target: Any = engine(config, role)
        for key in path[:-1]:
            target = target[key]
        del target[path[-1]]

    return remove


def token(text: str) -> str:
    # Put together here, so that no scanner takes the test for a leak.
    return "hf" + "_" + text * 8


CASES = [
    # The file
    Case(
        rule="ray-schema",
        message="Ray knows no key model_lodaing_config here; did you mean model_loading_config?",
        breaks=set_in("decode", "model_lodaing_config", {"model_id": "x"}),
    ),
    Case(
        rule="ray-schema",
        name="type",
        message="model_id: input should be a valid string, not 9",
        breaks=all_of(set_in("prefill", "model_loading_config", "model_id", 9)),
        passes=both(lambda config: put(config, "model_loading_config", "model_id", "9")),
    ),
    Case(
        rule="ray-schema",
        name="missing",
        message="model_id is missing",
        breaks=set_in("prefill", "model_loading_config", {"model_source": "Qwen/Qwen3.5-9B"}),
    ),
    Case(
        rule="ray-schema",
        name="bundles-twice",
        message="give either bundles or bundle_per_worker",
        breaks=set_in("decode", "placement_group_config", "bundle_per_worker", {"GPU": 1, "decode": 1}),
    ),
    Case(
        rule="ray-schema",
        name="strategy",
        message="input should be 'PACK', 'SPREAD', 'STRICT_PACK' or 'STRICT_SPREAD', not 'pack'",
        breaks=set_in("decode", "placement_group_config", "strategy", "pack"),
        passes=set_in("decode", "placement_group_config", "strategy", "PACK"),
    ),
    Case(
        rule="ray-schema",
        name="replicas-order",
        message="max_replicas 1 is less than min_replicas 2",
        breaks=set_in("decode", "deployment_config", {"autoscaling_config": {"min_replicas": 2, "max_replicas": 1}}),
        passes=set_in("decode", "deployment_config", {"autoscaling_config": {"min_replicas": 1, "max_replicas": 1}}),
    ),
    Case(
        rule="ray-schema",
        name="metrics",
        message="disable_log_stats cannot be true while log_engine_metrics is on",
        breaks=argument("disable_log_stats", True),
        passes=all_of(argument("disable_log_stats", True), set_in("decode", "log_engine_metrics", False)),
    ),
    Case(
        rule="ignored-key",
        severity=Severity.WARNING,
        message="Ray Serve does not know the key max_replica and drops it; did you mean max_replicas?",
        breaks=set_in("decode", "deployment_config", {"autoscaling_config": {"max_replica": 1}}),
        passes=set_in("decode", "deployment_config", {"autoscaling_config": {"max_replicas": 1}}),
    ),
    Case(
        rule="ignored-key",
        name="application",
        severity=Severity.WARNING,
        message="does not know the key route_prefx and drops it; did you mean route_prefix?",
        breaks=lambda config: put(config["applications"][0], "route_prefx", "/v2"),
        passes=lambda config: put(config["applications"][0], "route_prefix", "/v2"),
    ),
    Case(
        rule="deployment-option",
        message="a Serve deployment has no option replicas; did you mean num_replicas?",
        breaks=set_in("decode", "deployment_config", {"replicas": 1}),
        passes=set_in("decode", "deployment_config", {"num_replicas": 1}),
    ),
    Case(
        rule="deployment-option",
        name="bundles",
        message="placement_group_bundles cannot be given in deployment_config",
        breaks=set_in("decode", "deployment_config", "placement_group_bundles", [{"GPU": 1}]),
    ),
    Case(
        rule="deployment-option",
        name="number-and-scaling",
        message="num_replicas and autoscaling_config exclude each other",
        breaks=set_in("decode", "deployment_config", "autoscaling_config", {"max_replicas": 1}),
        passes=set_in(
            "decode", "deployment_config", {"num_replicas": "auto", "autoscaling_config": {"max_replicas": 1}}
        ),
    ),
    Case(
        rule="deployment-option",
        name="label-selectors",
        message="2 label selectors for 1 bundles",
        breaks=set_in("decode", "deployment_config", "placement_group_bundle_label_selector", [{}, {}]),
        passes=set_in("decode", "deployment_config", "placement_group_bundle_label_selector", [{"role": "decode"}]),
    ),
    Case(
        rule="deployment-option",
        name="no-replica",
        message="num_replicas is 0",
        breaks=set_in("decode", "deployment_config", "num_replicas", 0),
    ),
    Case(
        rule="application-clash",
        message="another application has the route_prefix '/' already",
        breaks=second_application(),
        passes=second_application(route_prefix="/other"),
    ),
    Case(
        rule="application-clash",
        name="name",
        message="another application has the name 'llm' already",
        breaks=second_application("llm", route_prefix="/other"),
        passes=second_application("other", route_prefix=None),
    ),
    Case(
        rule="environment-text",
        message="NCCL_DEBUG_LEVEL is read as 1 (int), not as text",
        breaks=environment("NCCL_DEBUG_LEVEL", 1),
        passes=environment("NCCL_DEBUG_LEVEL", "1"),
    ),
    Case(
        rule="environment-replaced",
        severity=Severity.WARNING,
        message="HF_HUB_OFFLINE does not reach decode, which has env_vars of its own",
        breaks=all_of(
            lambda config: put(config["applications"][0], "runtime_env", {"env_vars": {"HF_HUB_OFFLINE": "1"}}),
            environment("NCCL_DEBUG", "INFO"),
        ),
        passes=lambda config: put(config["applications"][0], "runtime_env", {"env_vars": {"HF_HUB_OFFLINE": "1"}}),
    ),
    Case(
        rule="not-checked",
        severity=Severity.INFO,
        message="the arguments of ray.serve.llm:build_pd_openai_ap are not checked; did you mean",
        breaks=lambda config: put(config["applications"][0], "import_path", "ray.serve.llm:build_pd_openai_ap"),
    ),
    # Engine arguments
    Case(
        rule="unknown-engine-argument",
        message="task is no engine argument of vLLM 0.26.0; nearest: runner",
        breaks=argument("task", "generate"),
        passes=argument("runner", "generate"),
    ),
    Case(
        rule="unknown-engine-argument",
        name="dashes",
        message="max-model-len is no engine argument of vLLM 0.26.0; nearest: max_model_len",
        breaks=argument("max-model-len", 4096),
    ),
    Case(
        rule="engine-argument-value",
        message="dtype: 'bfloat' is none of auto, bfloat16, float, float16, float32, half; did you mean",
        breaks=arguments(dtype="bfloat"),
        passes=arguments(dtype="auto"),
    ),
    Case(
        rule="engine-argument-value",
        name="kind",
        message="max_num_seqs: must be a whole number, not 'many'",
        breaks=argument("max_num_seqs", "many"),
        passes=argument("max_num_seqs", 16),
    ),
    Case(
        rule="engine-argument-value",
        name="number-in-quotes",
        severity=Severity.WARNING,
        message="max_num_seqs: must be a whole number, not '16'",
        breaks=argument("max_num_seqs", "16"),
        passes=argument("max_num_seqs", 16),
    ),
    Case(
        rule="engine-argument-value",
        name="too-small",
        message="tensor_parallel_size: must be at least 1, not 0",
        breaks=argument("tensor_parallel_size", 0),
        passes=argument("tensor_parallel_size", 1),
    ),
    Case(
        rule="engine-argument-value",
        name="size-in-quotes",
        message="tensor_parallel_size: must be a whole number, not '1'",
        breaks=argument("tensor_parallel_size", "1"),
        passes=argument("tensor_parallel_size", 1),
    ),
    Case(
        rule="deployment-option",
        name="replicas-per-node",
        message="max_replicas_per_node cannot be given",
        breaks=set_in("decode", "deployment_config", "max_replicas_per_node", 1),
    ),
    Case(
        rule="reserved-engine-argument",
        message="model cannot be an engine argument here",
        breaks=argument("model", "Qwen/Qwen3.5-9B"),
    ),
    Case(
        rule="executor-backend",
        message="distributed_executor_backend 'mp' cannot be used under Ray Serve LLM",
        breaks=argument("distributed_executor_backend", "mp"),
        passes=argument("distributed_executor_backend", "ray"),
    ),
    Case(
        rule="executor-backend",
        name="null",
        message="distributed_executor_backend None cannot be used",
        breaks=argument("distributed_executor_backend", None),
        passes=all_of(
            argument("distributed_executor_backend", "mp"),
            set_in("decode", "placement_group_config", {"bundles": [{"CPU": 1}]}),
        ),
    ),
    Case(
        rule="memory-utilization",
        message="gpu_memory_utilization is 90",
        breaks=argument("gpu_memory_utilization", 90),
        passes=argument("gpu_memory_utilization", 1.0),
    ),
    Case(
        rule="memory-utilization",
        name="zero",
        message="gpu_memory_utilization is 0",
        breaks=argument("gpu_memory_utilization", 0),
    ),
    # GPU memory
    Case(
        rule="does-not-fit",
        message="decode does not fit the L4 of g6.8xlarge: of 19.81 GiB it takes weights 16.80 GiB, activations 0.28 "
        "GiB",
        breaks=argument("max_model_len", 131072),
        passes=arguments(max_model_len=65536),
    ),
    Case(
        rule="does-not-fit",
        name="automatic-length",
        message="one request of 262144 tokens needs",
        breaks=without("engine_kwargs", "max_model_len"),
        passes=arguments(max_model_len=-1),
    ),
    Case(
        rule="does-not-fit",
        name="weights",
        message="nothing is left for the cache (short of",
        base=lambda: pd_config("Qwen/Qwen3-14B"),
        breaks=lambda config: None,
        passes=arguments(quantization="fp8"),
    ),
    Case(
        rule="few-requests-fit",
        severity=Severity.WARNING,
        message="requests of 32768 tokens fit the L4 of g6.8xlarge",
        breaks=arguments(max_model_len=32768),
        passes=arguments(max_model_len=16384),
    ),
    Case(
        rule="state-blocks",
        message="max_num_seqs 256 (vLLM's default here) is more than the 70 cache blocks that fit the L4 of g6.8xlarge",
        breaks=without("engine_kwargs", "max_num_seqs"),
        passes=all_of(without("engine_kwargs", "max_num_seqs"), argument("enforce_eager", True)),
    ),
    Case(
        rule="context-too-long",
        message="max_model_len 262145 is beyond the 262144 positions of Qwen/Qwen3.5-9B",
        nodes=on("p5en.48xlarge"),
        breaks=arguments(max_model_len=262145),
        passes=arguments(max_model_len=262144),
    ),
    Case(
        rule="model-unknown",
        severity=Severity.INFO,
        message="the shape of acme/chatter is not known: its memory is not estimated",
        breaks=both(lambda config: put(config, "model_loading_config", "model_source", "acme/chatter")),
    ),
    # Placement
    Case(
        rule="replicas-exceed-nodes",
        message="3 prefill + 1 decode replicas need 4 GPUs on 4 nodes; the node group has 2 nodes (g6.8xlarge) of 1 "
        "GPU",
        breaks=set_in("prefill", "deployment_config", "num_replicas", 3),
        passes=set_in("prefill", "deployment_config", "num_replicas", 3),
        passing_nodes=on("g6.8xlarge", 4),
    ),
    Case(
        rule="autoscaling-exceeds-nodes",
        message="max_replicas 8 of decode cannot be reached: the node group has at most 2 nodes",
        breaks=set_in("decode", "deployment_config", {"autoscaling_config": {"min_replicas": 1, "max_replicas": 8}}),
        passes=set_in("decode", "deployment_config", {"autoscaling_config": {"min_replicas": 1, "max_replicas": 8}}),
        passing_nodes=on("g6.8xlarge", 9),
    ),
    Case(
        rule="autoscaling-exceeds-nodes",
        name="auto",
        message="max_replicas 100 of decode cannot be reached",
        breaks=set_in("decode", "deployment_config", {"num_replicas": "auto"}),
    ),
    Case(
        rule="parallel-across-nodes",
        message="tensor_parallel_size 2 of decode with 1 GPU a node (g6.8xlarge): all-reduce would cross EFA at "
        "every layer",
        nodes=on("g6.8xlarge", 4),
        breaks=all_of(
            arguments(tensor_parallel_size=2),
            both(lambda config: config.pop("placement_group_config")),
        ),
        passes=all_of(
            arguments(tensor_parallel_size=2),
            *(
                set_in(role, "placement_group_config", {"bundle_per_worker": {"GPU": 1, role: 1}})
                for role in ("prefill", "decode")
            ),
        ),
        passing_nodes=on("g6.12xlarge"),
    ),
    Case(
        rule="pipeline-parallel-transfer",
        severity=Severity.WARNING,
        message="decode has 2 pipeline stages and hands over its KV cache by NIXL",
        nodes=on("g6.8xlarge", 3),
        breaks=all_of(
            argument("pipeline_parallel_size", 2),
            set_in("decode", "placement_group_config", {"bundle_per_worker": {"GPU": 1, "decode": 1}}),
        ),
    ),
    Case(
        rule="tensor-parallel-heads",
        message="16 attention heads of Qwen/Qwen3.5-9B cannot be divided among 3 GPUs",
        nodes=on("g6.12xlarge"),
        breaks=all_of(
            arguments(tensor_parallel_size=3),
            *(
                set_in(role, "placement_group_config", {"bundle_per_worker": {"GPU": 1, role: 1}})
                for role in ("prefill", "decode")
            ),
        ),
    ),
    Case(
        rule="bundle-resources",
        message="a bundle of decode asks for 33 CPU; a worker pod on g6.8xlarge has 30",
        breaks=set_in("decode", "placement_group_config", "bundles", [{"CPU": 32, "GPU": 1, "decode": 1}]),
        passes=set_in("decode", "placement_group_config", "bundles", [{"CPU": 29, "GPU": 1, "decode": 1}]),
    ),
    Case(
        rule="bundle-count",
        message="1 GPU bundle for 2 workers of decode",
        nodes=on("g6.12xlarge"),
        breaks=arguments(tensor_parallel_size=2),
        passes=all_of(
            arguments(tensor_parallel_size=2),
            *(
                set_in(role, "placement_group_config", {"bundles": [{"GPU": 1, role: 1}] * 2})
                for role in ("prefill", "decode")
            ),
        ),
    ),
    Case(
        rule="bundle-count",
        name="no-bundles",
        message="no bundle of decode has a GPU",
        breaks=set_in("decode", "placement_group_config", "bundles", []),
    ),
    Case(
        rule="bundle-count",
        name="two-in-one",
        message="a bundle with 2 GPUs; vLLM takes one a bundle",
        nodes=on("g6.12xlarge"),
        breaks=set_in("decode", "placement_group_config", {"bundles": [{"GPU": 2, "decode": 2}]}),
    ),
    Case(
        rule="accelerator-type",
        message="decode asks for accelerator_type L40S; g6.8xlarge has L4",
        breaks=set_in("decode", "accelerator_type", "L40S"),
        passes=set_in("decode", "accelerator_type", "L4"),
    ),
    Case(
        rule="unknown-resource",
        message="no worker pod has a resource decod; did you mean decode?",
        breaks=set_in("decode", "placement_group_config", "bundles", [{"GPU": 1, "decod": 1}]),
    ),
    Case(
        rule="unknown-resource",
        name="other-role",
        message="decode asks for the resource prefill: it would take the nodes of prefill",
        breaks=set_in("decode", "placement_group_config", "bundles", [{"GPU": 1, "prefill": 1}]),
    ),
    Case(
        rule="roles-share-a-node",
        message="decode is not bound to its own nodes, and a node (g6.12xlarge, 4 GPUs) has room for both roles",
        nodes=on("g6.12xlarge"),
        breaks=unbind,
        passes=lambda config: None,
    ),
    Case(
        rule="roles-share-a-node",
        name="one-gpu-nodes",
        message="decode is not bound to its own nodes (g6e.8xlarge) and may take those of the other role",
        severity=Severity.WARNING,
        nodes=two_pools("g6.8xlarge", "g6e.8xlarge"),
        breaks=unbind,
        passes=unbind,
        passing_nodes=G6,
    ),
    Case(
        rule="engines-start-together",
        severity=Severity.WARNING,
        message="2 replicas of decode start on 1 node (g6.12xlarge)",
        nodes=on("g6.12xlarge"),
        breaks=set_in("decode", "deployment_config", "num_replicas", 2),
        passes=set_in("decode", "deployment_config", "num_replicas", 2),
        passing_nodes=on("g6.8xlarge", 3),
    ),
    Case(
        rule="huge-pages",
        message="FI_EFA_USE_HUGE_PAGE is on, and the nodes have no huge pages",
        breaks=environment("FI_EFA_USE_HUGE_PAGE", "1"),
        passes=environment("FI_EFA_USE_HUGE_PAGE", "0"),
    ),
    # Transport
    Case(
        rule="transfer-missing",
        message="decode has no kv_transfer_config",
        breaks=without("engine_kwargs", "kv_transfer_config"),
    ),
    Case(
        rule="transfer-missing",
        name="no-connector",
        message="kv_transfer_config of decode names no kv_connector",
        breaks=argument("kv_transfer_config", {"kv_role": "kv_both"}),
    ),
    Case(
        rule="connector-name",
        message="vLLM has no connector NixlConector; did you mean NixlConnector?",
        breaks=kv(kv_connector="NixlConector"),
        passes=kv(kv_connector="MyConnector", kv_connector_module_path="my.connector"),
    ),
    Case(
        rule="backend-missing",
        message="decode names no NIXL backend on g6.8xlarge, which has EFA: NIXL takes UCX",
        breaks=extra(),
        passes=both_extra(),
        passing_nodes=on("g6.4xlarge"),
    ),
    Case(
        rule="backend-missing",
        name="singular",
        message="(backend is not read: the key is backends)",
        breaks=extra(backend="LIBFABRIC"),
    ),
    Case(
        rule="backend-missing",
        name="ucx",
        message="decode uses UCX on g6.8xlarge, which has EFA: LIBFABRIC is left out",
        breaks=both_extra(backends=["UCX"]),
        passes=both_extra(backends=["UCX", "LIBFABRIC"]),
    ),
    Case(
        rule="backend-in-environment",
        message="NIXL_BACKEND is not read by the connector; kv_transfer_config of decode still has to name the backend",
        breaks=all_of(environment("NIXL_BACKEND", "LIBFABRIC"), extra()),
        passes=environment("NIXL_LOG_LEVEL", "INFO"),
    ),
    Case(
        rule="backend-name",
        message="NIXL has no backend 'libfabric'; NIXL writes it LIBFABRIC",
        breaks=both_extra(backends=["libfabric"]),
    ),
    Case(
        rule="backend-name",
        name="text",
        message="backends must be a list, not 'LIBFABRIC'",
        breaks=both_extra(backends="LIBFABRIC"),
    ),
    Case(
        rule="backend-name",
        name="misspelt",
        message="NIXL has no backend 'LIBFABRICS'; NIXL writes it LIBFABRIC",
        breaks=both_extra(backends=["LIBFABRICS"]),
    ),
    Case(
        rule="no-efa",
        message="decode asks for LIBFABRIC, but g6.4xlarge has no EFA interface",
        nodes=on("g6.4xlarge"),
        breaks=lambda config: None,
        passes=both_extra(backends=["UCX"]),
    ),
    Case(
        rule="transfer-key",
        message="kv_transfer_config has no key backends: it belongs into kv_connector_extra_config",
        breaks=kv(backends=["LIBFABRIC"]),
    ),
    Case(
        rule="transfer-key",
        name="misspelt",
        message="kv_transfer_config has no key kv_rol: did you mean kv_role?",
        breaks=kv(kv_rol="kv_both"),
    ),
    Case(
        rule="transfer-extra-key",
        severity=Severity.WARNING,
        message="NixlConnector reads no num_thread; did you mean num_threads?",
        breaks=extra(backends=["LIBFABRIC"], num_thread=8),
        passes=extra(backends=["LIBFABRIC"], num_threads=8),
    ),
    Case(
        rule="transfer-role",
        message="decode is a kv_producer: it would send, which moves nothing",
        breaks=kv(kv_role="kv_producer"),
        passes=all_of(kv("prefill", kv_role="kv_producer"), kv(kv_role="kv_consumer")),
    ),
    Case(
        rule="transfer-role",
        name="unknown",
        message="kv_role 'both' is none of kv_producer, kv_consumer, kv_both",
        breaks=kv(kv_role="both"),
    ),
    Case(
        rule="transfer-role",
        name="missing",
        message="kv_transfer_config of decode has no kv_role",
        breaks=without("engine_kwargs", "kv_transfer_config", "kv_role"),
    ),
    Case(
        rule="buffer-device",
        message="kv_buffer_device cpu with the hybrid model Qwen/Qwen3.5-9B",
        breaks=arguments(kv_transfer_config=transfer(kv_buffer_device="cpu")),
        passes=arguments(kv_transfer_config=transfer(kv_buffer_device="cuda")),
    ),
    Case(
        rule="buffer-device",
        name="dense",
        base=dense,
        message="kv_buffer_device 'gpu': a CUDA engine takes cuda or cpu",
        breaks=arguments(kv_transfer_config=transfer(kv_buffer_device="gpu")),
        passes=arguments(kv_transfer_config=transfer(kv_buffer_device="cpu")),
    ),
    Case(
        rule="buffer-copies",
        severity=Severity.INFO,
        message="handed over from GPU memory on g6.8xlarge, which has no GPUDirect RDMA; a prompt of 4096 tokens moves "
        "182 MiB, 61 ms at line speed",
        breaks=lambda config: None,
        passing_nodes=on("p5en.48xlarge"),
    ),
    Case(
        rule="buffer-in-host-memory",
        severity=Severity.INFO,
        base=dense,
        message="host buffers of decode take",
        breaks=arguments(kv_transfer_config=transfer(kv_buffer_device="cpu")),
    ),
    Case(
        rule="state-layout",
        message="VLLM_SSM_CONV_STATE_LAYOUT is 'SD'; Qwen/Qwen3.5-9B is a hybrid model and needs DS",
        breaks=environment("VLLM_SSM_CONV_STATE_LAYOUT", "SD"),
        passes=environment("VLLM_SSM_CONV_STATE_LAYOUT", "DS"),
    ),
    Case(
        rule="state-layout",
        name="unset",
        message="nothing sets VLLM_SSM_CONV_STATE_LAYOUT=DS for decode",
        nodes=on("g6.8xlarge", worker_environment={}),
        breaks=lambda config: None,
        passing_nodes=G6,
    ),
    Case(
        rule="hybrid-cache-manager",
        message="decode disables the hybrid KV cache manager, and Qwen/Qwen3.5-9B is a hybrid model",
        breaks=argument("disable_hybrid_kv_cache_manager", True),
        passes=argument("disable_hybrid_kv_cache_manager", False),
    ),
    Case(
        rule="hybrid-cache-manager",
        name="connector",
        message="vLLM disables the hybrid KV cache manager for LMCacheConnectorV1, and Qwen/Qwen3.5-9B is a hybrid "
        "model",
        breaks=arguments(kv_transfer_config=transfer(kv_connector="LMCacheConnectorV1")),
        passes=arguments(kv_transfer_config=transfer(kv_connector="MooncakeConnector")),
    ),
    Case(
        rule="device-rdma",
        message="FI_EFA_USE_DEVICE_RDMA=1 on g5.8xlarge, whose EFA has no RDMA read",
        nodes=on("g5.8xlarge"),
        breaks=environment("FI_EFA_USE_DEVICE_RDMA", "1"),
        passes=environment("FI_EFA_USE_DEVICE_RDMA", "1"),
        passing_nodes=on("g6.8xlarge"),
    ),
    Case(
        rule="load-failure-policy",
        severity=Severity.INFO,
        message="decode recomputes what it cannot load",
        breaks=kv(kv_load_failure_policy="recompute"),
        passes=kv(kv_load_failure_policy="fail"),
    ),
    Case(
        rule="many-descriptors",
        severity=Severity.INFO,
        base=dense,
        nodes=on("g6e.8xlarge"),
        message="block_size 16 makes 36864 descriptors of a prompt of 8192 tokens",
        breaks=arguments(max_model_len=8192, block_size=16),
        passes=arguments(max_model_len=8192, block_size=64),
    ),
    # Prefill and decode as a pair
    Case(
        rule="model-ids-differ",
        message="the model id of prefill is 'model', of decode 'model-decode'",
        breaks=set_in("decode", "model_loading_config", "model_id", "model-decode"),
        passes=both(lambda config: put(config, "model_loading_config", "model_id", "model-decode")),
    ),
    Case(
        rule="models-differ",
        message="prefill loads Qwen/Qwen3.5-9B, decode loads Qwen/Qwen3-8B",
        breaks=set_in("decode", "model_loading_config", "model_source", DENSE),
    ),
    Case(
        rule="dtypes-differ",
        message="dtype: prefill has bfloat16 and decode float16",
        breaks=argument("dtype", "float16"),
        passes=argument("dtype", "auto"),
    ),
    Case(
        rule="cache-dtypes-differ",
        message="dtype of the KV cache: prefill has auto (the model's dtype, bfloat16 as a rule) and decode fp8",
        breaks=argument("kv_cache_dtype", "fp8"),
        passes=arguments(kv_cache_dtype="fp8"),
    ),
    Case(
        rule="block-sizes-differ",
        base=dense,
        message="block_size is 64 for prefill and 32 for decode",
        breaks=argument("block_size", 32),
        passes=arguments(block_size=32),
    ),
    Case(
        rule="attention-backends-differ",
        message="attention backend: prefill has vLLM's choice and decode FLASHINFER",
        breaks=argument("attention_backend", "FLASHINFER"),
        passes=arguments(attention_backend="FLASHINFER"),
    ),
    Case(
        rule="cache-managers-differ",
        base=dense,
        message="only one side disables the hybrid KV cache manager",
        breaks=argument("disable_hybrid_kv_cache_manager", True),
        passes=arguments(disable_hybrid_kv_cache_manager=True),
    ),
    Case(
        rule="tensor-parallel-differs",
        base=dense,
        nodes=on("g6.12xlarge"),
        message="tensor_parallel_size is 4 for prefill and 3 for decode: neither is a multiple of the other",
        breaks=all_of(argument("tensor_parallel_size", 4, "prefill"), argument("tensor_parallel_size", 3)),
        passes=all_of(
            argument("tensor_parallel_size", 2, "prefill"),
            argument("tensor_parallel_size", 4),
            *(
                set_in(role, "placement_group_config", {"bundle_per_worker": {"GPU": 1, role: 1}})
                for role in ("prefill", "decode")
            ),
        ),
    ),
    Case(
        rule="tensor-parallel-differs",
        name="host-buffers",
        base=dense,
        nodes=on("g6.12xlarge"),
        message="with kv_buffer_device cpu they must be equal",
        breaks=all_of(
            argument("tensor_parallel_size", 2), arguments(kv_transfer_config=transfer(kv_buffer_device="cpu"))
        ),
    ),
    Case(
        rule="transfers-differ",
        message="prefill has the backends LIBFABRIC and decode UCX: none in common",
        breaks=extra(backends=["UCX"]),
    ),
    Case(
        rule="transfers-differ",
        name="connector",
        message="prefill uses NixlConnector, decode uses LMCacheConnectorV1",
        breaks=kv(kv_connector="LMCacheConnectorV1"),
    ),
    Case(
        rule="transfers-differ",
        name="buffers",
        base=dense,
        message="kv_buffer_device is cuda for prefill and cpu for decode",
        breaks=kv(kv_buffer_device="cpu"),
        passes=arguments(kv_transfer_config=transfer(kv_buffer_device="cpu")),
    ),
    Case(
        rule="handshake-check-off",
        severity=Severity.WARNING,
        message="decode does not check that the other side matches",
        breaks=extra(backends=["LIBFABRIC"], enforce_handshake_compat=False),
        passes=extra(backends=["LIBFABRIC"], enforce_handshake_compat=True),
    ),
    Case(
        rule="lengths-differ",
        severity=Severity.WARNING,
        message="max_model_len is 4096 for prefill and 8192 for decode",
        breaks=argument("max_model_len", 8192),
        passes=arguments(max_model_len=8192),
    ),
    # Operation
    Case(
        rule="image-versions",
        message="has Ray 2.58.0, rayVersion says 2.57.0",
        nodes=on(
            "g6.8xlarge",
            image="public.ecr.aws/deep-learning-containers/ray:serve-llm-cuda-v1.0.0",
            ray_version="2.57.0",
        ),
        breaks=lambda config: None,
        passing_nodes=on(
            "g6.8xlarge",
            image="public.ecr.aws/deep-learning-containers/ray:serve-llm-cuda-v1.0.0",
            ray_version="2.58.0",
        ),
    ),
    Case(
        rule="image-versions",
        name="rayproject",
        message="has Ray 2.49.1, rayVersion says 2.58.0",
        nodes=on("g6.8xlarge", image="rayproject/ray-llm:2.49.1-py311-cu128", ray_version="2.58.0"),
        breaks=lambda config: None,
        passing_nodes=on("g6.8xlarge", image="rayproject/ray-llm:2.58.0-py311-cu128", ray_version="2.58.0"),
    ),
    Case(
        rule="known-fault",
        message="Ray 2.57.0, vLLM ?: runai_streamer with an s3:// source goes to the Hugging Face Hub and crashes "
        "(ray 64978",
        nodes=on("g6.8xlarge", ray_version="2.57.0"),
        breaks=argument("load_format", "runai_streamer"),
        passes=argument("load_format", "runai_streamer"),
        passing_nodes=on("g6.8xlarge", ray_version="2.58.0"),
    ),
    Case(
        rule="upgrade-needs-nodes",
        message="NewCluster needs 4 nodes of g6.8xlarge for a while; the node group has at most 2",
        nodes=on("g6.8xlarge", upgrade_strategy="NewCluster"),
        breaks=lambda config: None,
        passing_nodes=on("g6.8xlarge", 4, upgrade_strategy="NewCluster"),
    ),
    Case(
        rule="ongoing-requests",
        severity=Severity.WARNING,
        message="max_ongoing_requests 5 of decode: 13 requests of full length could run at once",
        breaks=set_in("decode", "deployment_config", "max_ongoing_requests", 5),
        passes=set_in("decode", "deployment_config", "max_ongoing_requests", 16),
    ),
    Case(
        rule="ongoing-requests",
        name="too-many",
        severity=Severity.WARNING,
        message="max_ongoing_requests 500 of decode: it runs 16 sequences at once, and 14 requests of full length fit",
        breaks=set_in("decode", "deployment_config", "max_ongoing_requests", 500),
        passes=set_in("decode", "deployment_config", "max_ongoing_requests", 64),
    ),
    Case(
        rule="remote-code",
        severity=Severity.WARNING,
        message="decode runs code out of the repository of Qwen/Qwen3.5-9B",
        breaks=argument("trust_remote_code", True),
        passes=argument("trust_remote_code", False),
    ),
    Case(
        rule="gated-model",
        base=lambda: pd_config("meta-llama/Llama-3.1-8B-Instruct"),
        message="meta-llama/Llama-3.1-8B-Instruct is gated, and no token is set",
        breaks=lambda config: None,
        passing_nodes=on("g6.8xlarge", has_hub_token=True),
    ),
    Case(
        rule="model-not-staged",
        severity=Severity.WARNING,
        base=lambda: pd_config("/mnt/model-cache/models/Qwen3.5-9B"),
        message="nothing brings /mnt/model-cache/models/Qwen3.5-9B to the worker pods",
        breaks=lambda config: None,
        passing_nodes=on("g6.8xlarge", stages_from_s3=True),
    ),
    Case(
        rule="lora-off",
        base=lambda: aggregated_config(DENSE),
        message="llm has a lora_config and no enable_lora",
        breaks=set_in("llm", "lora_config", {"dynamic_lora_loading_path": "s3://bucket/lora"}),
        passes=all_of(
            set_in("llm", "lora_config", {"dynamic_lora_loading_path": "s3://bucket/lora"}),
            argument("enable_lora", True, "llm"),
        ),
    ),
    Case(
        rule="port-base",
        severity=Severity.WARNING,
        message="prefill and decode both take NIXL ports from 20000",
        breaks=set_in("decode", "experimental_configs", {"NIXL_SIDE_CHANNEL_PORT_BASE": 20000}),
        passes=set_in("decode", "experimental_configs", {"NIXL_SIDE_CHANNEL_PORT_BASE": 21000}),
    ),
    # Secrets
    Case(
        rule="secret-in-file",
        message="HF_TOKEN looks like a secret",
        breaks=environment("HF_TOKEN", token("Ab1")),
        passes=environment("HF_HOME", "/mnt/model-cache/huggingface"),
    ),
    Case(
        rule="secret-in-file",
        name="by-name",
        message="api_key is the name of a secret, with a value",
        breaks=argument("api_key", "correct-horse-battery"),
        passes=argument("api_key", "${VLLM_API_KEY}"),
    ),
]


def _id(case: Case) -> str:
    return f"{case.rule}-{case.name}" if case.name else case.rule


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_a_broken_file_is_found_and_the_message_printed(case: Case) -> None:
    config = case.base()
    case.breaks(config)
    report = report_of(config, case.nodes)
    found = [f for f in report.findings if f.rule == case.rule and case.message in f.message]
    assert found, report.text()
    assert {f.severity for f in found} == {case.severity}
    printed = report.text()
    for finding in found:
        assert f"{finding.line}:{finding.column} {case.severity} [{case.rule}] {finding.message}" in printed
        assert f"at run time: {finding.consequence}" in printed
        assert f"fix: {finding.fix}" in printed


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_the_nearest_good_file_passes(case: Case) -> None:
    config = case.base()
    case.passes(config)
    report = report_of(config, case.passing_nodes or case.nodes)
    if _passes_by_doing_nothing(case):
        return
    assert [f for f in report.findings if f.rule == case.rule] == [], report.text()


def _passes_by_doing_nothing(case: Case) -> bool:
    """Where the base itself breaks the rule and only other nodes or arguments help, one of them is given."""
    plain = case.base()
    changed = case.base()
    case.passes(changed)
    broken = case.base()
    case.breaks(broken)
    return broken == plain == changed and case.passing_nodes is None


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == {rule.id for rule in ALL_RULES}


def test_the_cases_start_from_files_without_findings_that_count() -> None:
    for config, nodes in ((pd_config(), G6), (aggregated_config(), G6), (dense(), G6)):
        report = report_of(config, nodes)
        assert report.errors == []
        assert report.warnings == []


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.id)
def test_a_rule_says_everything(rule: Any) -> None:
    assert rule.check.__doc__
    for words in (rule.title, rule.consequence, rule.fix, rule.source):
        assert len(words) > 10
    assert rule.id == rule.id.lower()
    assert rule.consequence.endswith(".")
    assert rule.fix.endswith(".")


def test_ids_are_unique() -> None:
    ids = [rule.id for rule in ALL_RULES]
    assert len(ids) == len(set(ids))
