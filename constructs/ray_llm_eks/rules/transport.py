"""Rules about the transport of the KV cache: connector, backend, buffers, and what hybrid models ask of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from ray_llm_eks.memory import gib, mib
from ray_llm_eks.worker_pods import WorkerGroup, WorkerNodes
from ray_llm_eks.yaml_document import Value, YamlPath

from .findings import Severity
from .rule import Problem, Rule, rule
from .subject import NIXL_CONNECTORS, Engine, Subject, Transfer

BACKENDS = ("LIBFABRIC", "UCX", "GPUNETIO", "GDS", "GDS_MT", "POSIX", "OBJ", "GUSLI", "AZURE_BLOB", "INFINIA")
"""Plugins in the wheel of NIXL 1.3.1; names are case-sensitive."""

TRANSFER_KEYS = (
    "kv_connector",
    "engine_id",
    "kv_buffer_device",
    "kv_buffer_size",
    "kv_role",
    "kv_rank",
    "kv_parallel_size",
    "kv_ip",
    "kv_port",
    "kv_connector_extra_config",
    "kv_connector_module_path",
    "enable_permute_local_kv",
    "kv_load_failure_policy",
)
"""Fields of vLLM 0.26's KVTransferConfig."""

EXTRA_KEYS = (
    "backends",
    "num_threads",
    "kv_lease_duration",
    "bidirectional_kv_xfer",
    "enforce_handshake_compat",
    "engine_ttl",
    "decoder_kv_blocks_ttl",
    "kv_recompute_threshold",
    "push_registration_timeout",
)
"""What vLLM 0.26's NixlConnector reads of kv_connector_extra_config."""

WITHOUT_HYBRID = (
    "ExampleConnector",
    "LMCacheConnectorV1",
    "LMCacheMPConnector",
    "MoRIIOConnector",
    "FlexKVConnectorV1",
    "HF3FSKVConnector",
)
"""Connectors of vLLM 0.26 for which it turns the hybrid KV cache manager off (they lack SupportsHMA)."""
CONNECTORS = (
    *NIXL_CONNECTORS,
    *WITHOUT_HYBRID,
    "ExampleHiddenStatesConnector",
    "MultiConnector",
    "OffloadingConnector",
    "DecodeBenchConnector",
    "MooncakeConnector",
    "MooncakeStoreConnector",
    "SimpleCPUOffloadConnector",
)
"""Connectors that vLLM 0.26 registers."""

_BACKEND_VARIABLE = re.compile(
    r"(VLLM_)?NIXL_?(BACKENDS?|PLUGINS?|TRANSPORT)|(VLLM_)?(KV_TRANSFER|KV_CONNECTOR)_BACKENDS?"
)

FIX_BACKEND = "Write kv_connector_extra_config: {backends: [LIBFABRIC]} into kv_transfer_config, on prefill and decode."


def _nixl(subject: Subject) -> Iterator[tuple[Engine, Transfer]]:
    for engine in subject.engines:
        for transfer in engine.nixl_transfers():
            yield engine, transfer


def _backend_names(transfer: Transfer) -> list[str] | None:
    """The backends, if they are a list of text; None if nothing is given or it is something else."""
    backends = transfer.backends
    if not isinstance(backends, list):
        return None
    return [name for name in backends if isinstance(name, str)]


@rule(
    "transfer-missing",
    Severity.ERROR,
    title="prefill and decode both have a kv_transfer_config with a connector",
    consequence="Ray refuses the application: kv_transfer_config is required for P/D disaggregation.",
    fix="Give both the same kv_transfer_config: {kv_connector: NixlConnector, kv_role: kv_both, "
    "kv_connector_extra_config: {backends: [LIBFABRIC]}}.",
    source="Ray 2.58: PDServingArgs._validate_kv_transfer_config, LLMConfig._setup_kv_connector_backend; ran.",
)
def transfer_missing(subject: Subject) -> Iterator[Problem]:
    """Looks at both sides of each pair."""
    for pair in subject.pairs:
        for engine in (pair.prefill, pair.decode):
            value = engine.arguments.get("kv_transfer_config")
            path = engine.argument_path("kv_transfer_config")
            if value is None:
                yield Problem(path=path, message=f"{engine.name} has no kv_transfer_config")
            elif not isinstance(value, dict):
                yield Problem(path=path, message=f"kv_transfer_config of {engine.name} must be a mapping")
            elif not Transfer(path=path, values=value).connector:
                yield Problem(path=path, message=f"kv_transfer_config of {engine.name} names no kv_connector")


@rule(
    "connector-name",
    Severity.ERROR,
    title="kv_connector is a connector that vLLM has",
    consequence='The engine dies when it starts: "Unsupported connector type".',
    fix="Write kv_connector: NixlConnector.",
    source="vLLM 0.26: kv_connector/factory.py; Ray passes names that it does not know.",
)
def connector_name(subject: Subject) -> Iterator[Problem]:
    """Compares with the registered names; a connector from a module of one's own is not judged."""
    for engine in subject.engines:
        for transfer in engine.transfers():
            name = transfer.connector
            if not name or name in CONNECTORS or "kv_connector_module_path" in transfer.values:
                continue
            near = difflib.get_close_matches(name, CONNECTORS, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield Problem(path=(*transfer.path, "kv_connector"), message=f"vLLM has no connector {name}{hint}")


@rule(
    "backend-missing",
    Severity.ERROR,
    title="on EFA nodes, NIXL is told to use LIBFABRIC",
    consequence="NIXL takes UCX when no backend is named, and UCX runs at TCP speed on EFA nodes; everything works, "
    "nothing "
    "says so, and the first token of a long prompt takes tens of seconds (98 s instead of 1 s at 8,000 tokens).",
    fix=FIX_BACKEND,
    source="vLLM 0.26 NixlConnector (default [UCX]); NVIDIA Dynamo's disaggregation guide; dynamo 4185, nixl 909, "
    "ray 62339.",
)
def backend_missing(subject: Subject) -> Iterator[Problem]:
    """Looks at engines on nodes with EFA whose backends leave LIBFABRIC out."""
    for engine, transfer in _nixl(subject):
        if not engine.pool.has_efa or any(True for _ in _environment_backends(engine)):
            continue
        backends = transfer.backends
        names = _backend_names(transfer)
        if backends is None:
            near = [key for key in transfer.extra if difflib.get_close_matches(key, ["backends"], cutoff=0.7)]
            hint = f" ({near[0]} is not read: the key is backends)" if near else ""
            yield Problem(
                path=transfer.extra_path if transfer.extra else transfer.path,
                message=f"{engine.name} names no NIXL backend on {engine.pool.facts.name}, which has EFA: NIXL takes "
                f"UCX{hint}",
            )
        elif names is not None and not _looks_like_libfabric(names):
            written = ", ".join(names) or "none"
            yield Problem(
                path=(*transfer.extra_path, "backends"),
                message=f"{engine.name} uses {written} on {engine.pool.facts.name}, which has EFA: LIBFABRIC is left "
                "out",
            )


def _looks_like_libfabric(names: list[str]) -> bool:
    # A misspelt name is the business of backend-name.
    return any(difflib.get_close_matches(name.upper(), ["LIBFABRIC"], cutoff=0.7) for name in names)


@rule(
    "backend-in-environment",
    Severity.ERROR,
    title="the backend is named in the YAML, not in the environment",
    consequence="No environment variable chooses NIXL's backend in vLLM: it is not read, and UCX is used.",
    fix=FIX_BACKEND,
    source="vLLM 0.26 NixlConnector reads kv_connector_extra_config.backends only (read); vllm 41814.",
)
def backend_in_environment(subject: Subject) -> Iterator[Problem]:
    """Finds variables that look as if they chose the backend; a warning where the YAML names it as well."""
    for engine in subject.engines:
        transfers = engine.nixl_transfers()
        if not transfers:
            continue
        named = all(transfer.backends is not None for transfer in transfers)
        for name, path in _environment_backends(engine):
            yield Problem(
                path=path,
                severity=Severity.WARNING if named else Severity.ERROR,
                message=f"{name} is not read by the connector"
                + ("" if named else f"; kv_transfer_config of {engine.name} still has to name the backend"),
                fix=f"Remove {name}." if named else None,
            )


def _environment_backends(engine: Engine) -> Iterator[tuple[str, YamlPath]]:
    for name, (_, path) in engine.environment.items():
        if _BACKEND_VARIABLE.fullmatch(name.upper()):
            yield name, path


@rule(
    "backend-name",
    Severity.ERROR,
    title="backends is a list of NIXL's plugin names, as NIXL writes them",
    consequence="NIXL knows no such plugin: the engine dies when the connector starts, after the weights are loaded.",
    fix="Write backends: [LIBFABRIC].",
    source="NIXL 1.3.1 skips a plugin that it does not have, and vLLM dies in register_memory: KeyError 'ucx', or "
    "'L' for "
    "a string, which is taken letter by letter (ran).",
)
def backend_name(subject: Subject) -> Iterator[Problem]:
    """Finds strings and other kinds where a list belongs, and names that no plugin has."""
    for _, transfer in _nixl(subject):
        backends = transfer.backends
        path = (*transfer.extra_path, "backends")
        if "kv_connector_extra_config" in transfer.values and not isinstance(
            transfer.values["kv_connector_extra_config"], dict
        ):
            yield Problem(path=transfer.extra_path, message="kv_connector_extra_config must be a mapping")
        if "backends" not in transfer.extra:
            continue
        if not isinstance(backends, list):
            yield Problem(
                path=path,
                message=f"backends must be a list, not {backends!r}",
                fix=f"Write backends: [{_nearest(str(backends)) or 'LIBFABRIC'}].",
            )
            continue
        for number, name in enumerate(backends):
            if not isinstance(name, str):
                yield Problem(path=(*path, number), message=f"{name!r} is no name of a NIXL backend")
            elif name not in BACKENDS:
                near = _nearest(name)
                hint = f"; NIXL writes it {near}" if near else f"; there are {', '.join(BACKENDS[:4])} and others"
                yield Problem(
                    path=(*path, number),
                    message=f"NIXL has no backend {name!r}{hint}",
                    fix=f"Write {near}." if near else None,
                )


def _nearest(name: str) -> str | None:
    near = difflib.get_close_matches(name.upper().strip(), BACKENDS, n=1, cutoff=0.6)
    return near[0] if near else None


@rule(
    "no-efa",
    Severity.ERROR,
    title="LIBFABRIC is used on nodes with EFA only",
    consequence="libfabric's EFA provider finds no device: the engine dies when the connector starts, or moves the "
    "cache over "
    "TCP sockets.",
    fix="Take an instance type with EFA (g6.8xlarge is the smallest with an L4), or leave LIBFABRIC out.",
    source="EC2 instance facts (facts/instances.toml); FI_PROVIDER=efa is set on the workers.",
)
def no_efa(subject: Subject) -> Iterator[Problem]:
    """Finds LIBFABRIC where the node group has no EFA interface."""
    for engine, transfer in _nixl(subject):
        names = _backend_names(transfer) or []
        if "LIBFABRIC" not in names or engine.pool.has_efa:
            continue
        node = engine.pool.facts
        why = f"{node.name} has no EFA interface" if not node.efa_interfaces else "the node group has EFA switched off"
        yield Problem(path=(*transfer.extra_path, "backends"), message=f"{engine.name} asks for LIBFABRIC, but {why}")


@rule(
    "transfer-key",
    Severity.ERROR,
    title="kv_transfer_config has vLLM's keys",
    consequence="vLLM refuses the unknown key, and the engine dies when it starts.",
    fix="Correct the name; settings of the connector itself go into kv_connector_extra_config.",
    source="vLLM 0.26: config/kv_transfer.py (extra keys are refused).",
)
def transfer_key(subject: Subject) -> Iterator[Problem]:
    """Compares keys with KVTransferConfig; also points out settings that belong one level deeper."""
    for engine in subject.engines:
        for transfer in engine.transfers():
            for key in transfer.values:
                if key in TRANSFER_KEYS:
                    continue
                if key in (*EXTRA_KEYS, "backend"):
                    hint = "it belongs into kv_connector_extra_config"
                else:
                    near = difflib.get_close_matches(key, TRANSFER_KEYS, n=1, cutoff=0.6)
                    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(TRANSFER_KEYS)}"
                yield Problem(path=(*transfer.path, key), message=f"kv_transfer_config has no key {key}: {hint}")


@rule(
    "transfer-extra-key",
    Severity.WARNING,
    title="kv_connector_extra_config has keys that NixlConnector reads",
    consequence="The connector does not read the key; its default is used without a word.",
    fix="Correct the name, or remove the key.",
    source="vLLM 0.26: nixl/*.py, get_from_extra_config.",
)
def transfer_extra_key(subject: Subject) -> Iterator[Problem]:
    """Finds keys that resemble a known one but are not it; others may belong to a newer connector."""
    for _, transfer in _nixl(subject):
        for key in transfer.extra:
            near = difflib.get_close_matches(key, EXTRA_KEYS, n=1, cutoff=0.75)
            if key not in EXTRA_KEYS and near:
                yield Problem(
                    path=(*transfer.extra_path, key), message=f"NixlConnector reads no {key}; did you mean {near[0]}?"
                )


@rule(
    "transfer-role",
    Severity.ERROR,
    title="kv_role lets prefill send and decode receive",
    consequence="Without a valid role the engine dies when it starts. With the other side's role, connectors that "
    "follow it "
    "move nothing and decode computes the prompt again; NixlConnector of vLLM 0.26 happens to ignore it, and will not "
    "for long.",
    fix="Write kv_role: kv_both on both sides, or kv_producer for prefill and kv_consumer for decode.",
    source="vLLM 0.26: KVTransferConfig.__post_init__ (ValueError); NixlConnector deprecates kv_both and asks for "
    "the others.",
)
def transfer_role(subject: Subject) -> Iterator[Problem]:
    """Checks that the role exists, and that it is not the other side's."""
    for engine in subject.engines:
        for transfer in engine.transfers():
            if not transfer.connector:
                continue
            role = transfer.values.get("kv_role")
            path = (*transfer.path, "kv_role") if "kv_role" in transfer.values else transfer.path
            if role is None:
                yield Problem(path=path, message=f"kv_transfer_config of {engine.name} has no kv_role")
            elif role not in ("kv_producer", "kv_consumer", "kv_both"):
                yield Problem(path=path, message=f"kv_role {role!r} is none of kv_producer, kv_consumer, kv_both")
            elif (engine.name, role) in (("prefill", "kv_consumer"), ("decode", "kv_producer")):
                wanted = "kv_producer" if engine.name == "prefill" else "kv_consumer"
                yield Problem(
                    path=path,
                    message=f"{engine.name} is a {role}: it would "
                    f"{'receive' if engine.name == 'prefill' else 'send'}, which "
                    "moves nothing",
                    fix=f"Write kv_role: {wanted}, or kv_both.",
                )


@rule(
    "buffer-device",
    Severity.ERROR,
    title="kv_buffer_device is one that the engine can use",
    consequence="The engine dies when the connector starts, after the weights are loaded.",
    fix="Leave kv_buffer_device out, or write cuda.",
    source="vLLM 0.26: nixl/base_worker.py; a hybrid model with host buffers fails with \"'list' object has no "
    "attribute "
    "'shape'\" (ran on an H200).",
)
def buffer_device(subject: Subject) -> Iterator[Problem]:
    """Finds devices that do not exist, and host buffers with a hybrid model."""
    for engine, transfer in _nixl(subject):
        if "kv_buffer_device" not in transfer.values:
            continue
        device = transfer.values["kv_buffer_device"]
        path = (*transfer.path, "kv_buffer_device")
        if device not in ("cuda", "cpu"):
            yield Problem(path=path, message=f"kv_buffer_device {device!r}: a CUDA engine takes cuda or cpu")
        elif device == "cpu" and engine.hybrid:
            yield Problem(
                path=path,
                message=f"kv_buffer_device cpu with the hybrid model {engine.model_name}: vLLM 0.26 cannot "
                "copy its state "
                "to host memory",
            )


@rule(
    "buffer-copies",
    Severity.INFO,
    title="without GPUDirect RDMA, what the buffers cost is said",
    consequence="EFA cannot reach GPU memory on these nodes: libfabric copies through host buffers of about 8 KiB, "
    "slower than "
    "the line; measure the hand-over.",
    fix="Nothing for a hybrid model. A dense model may be faster with kv_buffer_device: cpu on both sides.",
    source="libfabric 2.6 efa_rdm_rma.c (read); aws-ofi-nccl 547; docs/kv-buffers.md.",
)
def buffer_copies(subject: Subject) -> Iterator[Problem]:
    """Says, for GPU buffers on nodes without GPUDirect RDMA, how much a prompt moves."""
    for engine, transfer in _nixl(subject):
        if engine.name != "decode" or engine.pool.facts.gpudirect_rdma != "no" or not engine.pool.has_efa:
            continue
        if transfer.buffer_device != "cuda" or "LIBFABRIC" not in (_backend_names(transfer) or []):
            continue
        size = ""
        if engine.memory:
            moved = engine.memory.request_bytes * engine.tensor_parallel
            line = moved * 8 / (engine.pool.facts.network_gbps * 1e9)
            length = engine.memory.max_model_len
            size = f"; a prompt of {length} tokens moves {mib(moved)}, {line * 1000:.0f} ms at line speed"
        yield Problem(
            path=(*transfer.path, "kv_buffer_device") if "kv_buffer_device" in transfer.values else transfer.path,
            message=f"the KV cache is handed over from GPU memory on {engine.pool.facts.name}, which has no "
            f"GPUDirect RDMA{size}",
            fix="Nothing: a hybrid model has no other way." if engine.hybrid else None,
        )


@rule(
    "buffer-in-host-memory",
    Severity.INFO,
    title="host buffers are priced",
    consequence="Every engine keeps a second KV cache in host memory, and each block is copied once more.",
    fix="Nothing, if the worker pods have the memory.",
    source="vLLM 0.26: nixl/base_worker.py initialize_host_xfer_buffer (as large as the KV cache).",
)
def buffer_in_host_memory(subject: Subject) -> Iterator[Problem]:
    """Compares the host buffers of all engines of a node with its worker pod's memory."""
    for engine, transfer in _nixl(subject):
        if transfer.values.get("kv_buffer_device") != "cpu" or engine.hybrid or engine.memory is None:
            continue
        node = engine.pool.facts
        pod = WorkerGroup(
            role=engine.name, pods=1, nodes=WorkerNodes(facts=node, max_nodes=1, node_role=engine.pool.name)
        ).memory_gib
        # Every GPU of the node has an engine's worker, each with buffers of its own.
        buffers = max(engine.memory.cache, 0) * max(node.gpus, 1)
        too_much = buffers > (pod - 16) * (1 << 30)
        yield Problem(
            path=(*transfer.path, "kv_buffer_device"),
            severity=Severity.ERROR if too_much else Severity.INFO,
            message=f"host buffers of {engine.name} take {gib(buffers)} GiB of the {pod} GiB of a worker pod on "
            f"{node.name}",
            consequence="The worker is killed for memory when it starts." if too_much else None,
            fix="Lower gpu_memory_utilization, or use kv_buffer_device: cuda." if too_much else None,
        )


@rule(
    "state-layout",
    Severity.ERROR,
    title="a hybrid model's workers keep the convolution state in the DS layout",
    consequence="The engine asserts the DS layout when NIXL starts, and dies after minutes of loading.",
    fix="Remove VLLM_SSM_CONV_STATE_LAYOUT from the YAML (the workers have DS), or write DS.",
    source='vLLM 0.26: nixl/base_worker.py ("3-read Mamba conv transfer requires DS conv state layout"); ran.',
)
def state_layout(subject: Subject) -> Iterator[Problem]:
    """Looks at the environment of the file, and of the worker pods where the file says nothing."""
    name = "VLLM_SSM_CONV_STATE_LAYOUT"
    for engine in subject.engines:
        transfers = engine.nixl_transfers()
        if not engine.hybrid or not transfers:
            continue
        if name in engine.environment:
            value, path = engine.environment[name]
            if value != "DS":
                yield Problem(
                    path=path, message=f"{name} is {value!r}; {engine.model_name} is a hybrid model and needs DS"
                )
        elif subject.deployment.worker_environment.get(name) != "DS":
            yield Problem(
                path=engine.path,
                message=f"{engine.model_name} is a hybrid model, and nothing sets {name}=DS for {engine.name}",
                fix=f"Add runtime_env: {{env_vars: {{{name}: DS}}}} to the LLM config.",
            )


@rule(
    "hybrid-cache-manager",
    Severity.ERROR,
    title="a hybrid model keeps the hybrid KV cache manager on",
    consequence="With the manager disabled the linear-attention state cannot be transferred: the engine dies when it "
    "starts.",
    fix="Remove disable_hybrid_kv_cache_manager.",
    source="vLLM 0.26: config/vllm.py (hybrid models require HMA), nixl/base_worker.py.",
)
def hybrid_cache_manager(subject: Subject) -> Iterator[Problem]:
    """Finds disable_hybrid_kv_cache_manager, and connectors that disable it, with a hybrid model."""
    for engine in subject.engines:
        if not engine.hybrid:
            continue
        if engine.flag("disable_hybrid_kv_cache_manager"):
            yield Problem(
                path=engine.at("engine_kwargs", "disable_hybrid_kv_cache_manager"),
                message=f"{engine.name} disables the hybrid KV cache manager, and {engine.model_name} is a hybrid "
                "model",
            )
        for transfer in engine.transfers():
            if transfer.connector in WITHOUT_HYBRID:
                yield Problem(
                    path=(*transfer.path, "kv_connector"),
                    message=f"vLLM disables the hybrid KV cache manager for {transfer.connector}, and "
                    f"{engine.model_name} is a hybrid model",
                    fix="Use NixlConnector.",
                )


@rule(
    "device-rdma",
    Severity.ERROR,
    title="FI_EFA_USE_DEVICE_RDMA is left to libfabric",
    consequence="On an EFA without RDMA read the process aborts; elsewhere libfabric decides the same by itself.",
    fix="Remove FI_EFA_USE_DEVICE_RDMA.",
    source="libfabric EFA provider (efa_env); EC2 User Guide, EFA: RDMA read by type.",
)
def device_rdma(subject: Subject) -> Iterator[Problem]:
    """An error on nodes without RDMA read (g5); nothing elsewhere."""
    for engine in subject.engines:
        value, path = engine.environment.get("FI_EFA_USE_DEVICE_RDMA", (None, ()))
        if value is not None and str(value) == "1" and engine.pool.has_efa and not engine.pool.facts.rdma_read:
            yield Problem(
                path=path, message=f"FI_EFA_USE_DEVICE_RDMA=1 on {engine.pool.facts.name}, whose EFA has no RDMA read"
            )


@rule(
    "load-failure-policy",
    Severity.INFO,
    title="a failed transfer is not hidden",
    consequence="Decode computes the prompt again when a transfer fails: clients see only slow answers, and a broken "
    "transport "
    "stays unnoticed.",
    fix="Leave kv_load_failure_policy out (fail), or watch the transfer counters.",
    source="vLLM 0.26: KVTransferConfig.kv_load_failure_policy; vllm 32200.",
)
def load_failure_policy(subject: Subject) -> Iterator[Problem]:
    """Points out recompute; any other word than fail is an error."""
    for engine in subject.engines:
        for transfer in engine.transfers():
            policy: Value = transfer.values.get("kv_load_failure_policy", "fail")
            path = (*transfer.path, "kv_load_failure_policy")
            if policy == "recompute":
                yield Problem(path=path, message=f"{engine.name} recomputes what it cannot load")
            elif policy != "fail":
                yield Problem(
                    path=path,
                    severity=Severity.ERROR,
                    message=f"kv_load_failure_policy {policy!r} is neither fail nor recompute",
                    consequence="vLLM refuses the value, and the engine dies when it starts.",
                    fix="Write fail.",
                )


@rule(
    "many-descriptors",
    Severity.INFO,
    title="a prompt is handed over in not too many pieces",
    consequence="Every block of every layer is a descriptor, and posting them takes longer than the wire: 263 ms at "
    "block 16 "
    "against 197 ms at block 64 for a prompt of 5,000 tokens.",
    fix="Set block_size: 64 on both sides.",
    source="vllm 50913, 51919 (3P1D, 5k-token prompts); vllm 34054 (40,064 descriptors: 129 of 174 ms is posting).",
)
def many_descriptors(subject: Subject) -> Iterator[Problem]:
    """Counts blocks x layers x 2 of a full-length prompt of a dense model with blocks of 32 tokens or fewer."""
    for engine in subject.engines:
        if engine.name != "decode" or engine.facts is None or engine.hybrid or not engine.nixl_transfers():
            continue
        memory, block = engine.memory, engine.size.block_size
        if memory is None or block > 32:
            continue
        descriptors = -(-memory.max_model_len // block) * engine.facts.full_attention_layers * 2
        if descriptors > 10_000:
            yield Problem(
                path=engine.argument_path("block_size"),
                message=f"block_size {block} makes {descriptors} descriptors of a prompt of {memory.max_model_len} "
                "tokens",
            )


RULES: tuple[Rule, ...] = (
    transfer_missing,
    connector_name,
    backend_missing,
    backend_in_environment,
    backend_name,
    no_efa,
    transfer_key,
    transfer_extra_key,
    transfer_role,
    buffer_device,
    buffer_copies,
    buffer_in_host_memory,
    state_layout,
    hybrid_cache_manager,
    device_rdma,
    load_failure_policy,
    many_descriptors,
)
