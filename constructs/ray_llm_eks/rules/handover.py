"""Rules about prefill and decode as a pair: what must be the same on both sides for a KV cache to be handed over."""

from __future__ import annotations

from collections.abc import Iterator

from ray_llm_eks.memory import DEFAULT_BLOCK_SIZE
from ray_llm_eks.yaml_document import YamlPath

from .findings import Severity
from .rule import Problem, Rule, rule
from .subject import Engine, Pair, Subject, Transfer

REFUSED = "The handshake is refused at the first request: every request fails, with both engines up and ready."
_AUTOMATIC = {("kv_cache_dtype", "auto"): "auto (the model's dtype, bfloat16 as a rule)"}
HASH = "vLLM 0.26: nixl/metadata.py compute_nixl_compatibility_hash."


def _place(engine: Engine, name: str) -> YamlPath:
    return engine.argument_path(name)


def _differing(pair: Pair, name: str, default: str, *, what: str) -> Iterator[Problem]:
    prefill, decode = pair.prefill.text(name, default), pair.decode.text(name, default)
    if prefill != decode:
        engine = pair.decode if name in pair.decode.arguments else pair.prefill
        words = [_AUTOMATIC.get((name, value), value) for value in (prefill, decode)]
        yield Problem(
            path=_place(engine, name),
            message=f"{what}: prefill has {words[0]} and decode {words[1]}",
            fix=f"Write the same {name} on both sides.",
        )


@rule(
    "model-ids-differ",
    Severity.ERROR,
    title="prefill and decode have one model_id",
    consequence="Ray refuses the application: P/D model id mismatch.",
    fix="Write the same model_id on both sides.",
    source="Ray 2.58: PDServingArgs._validate_model_ids; ran.",
)
def model_ids_differ(subject: Subject) -> Iterator[Problem]:
    """Compares model_id."""
    for pair in subject.pairs:
        ids = pair.prefill.role.model_id, pair.decode.role.model_id
        if ids[0] != ids[1]:
            yield Problem(
                path=pair.decode.at("model_loading_config", "model_id"),
                message=f"the model id of prefill is {ids[0]!r}, of decode {ids[1]!r}",
            )


@rule(
    "models-differ",
    Severity.ERROR,
    title="prefill and decode load the same weights",
    consequence=REFUSED,
    fix="Write the same model_source on both sides.",
    source=HASH,
)
def models_differ(subject: Subject) -> Iterator[Problem]:
    """Compares model_source; vLLM compares it as text."""
    for pair in subject.pairs:
        sources = pair.prefill.role.model_source, pair.decode.role.model_source
        if all(sources) and sources[0] != sources[1] and pair.prefill.role.model_id == pair.decode.role.model_id:
            yield Problem(
                path=pair.decode.at("model_loading_config", "model_source"),
                message=f"prefill loads {sources[0]}, decode loads {sources[1]}",
            )


@rule(
    "dtypes-differ",
    Severity.ERROR,
    title="prefill and decode compute in one dtype",
    consequence=REFUSED,
    fix="Write the same dtype on both sides.",
    source=HASH,
)
def dtypes_differ(subject: Subject) -> Iterator[Problem]:
    """Compares dtype; auto (the checkpoint's) is taken for bfloat16."""
    same = {"auto": "bfloat16", "half": "float16", "float": "float32"}
    for pair in subject.pairs:
        prefill, decode = pair.prefill.text("dtype"), pair.decode.text("dtype")
        if same.get(prefill, prefill) != same.get(decode, decode):
            yield from _differing(pair, "dtype", "auto", what="dtype")


@rule(
    "cache-dtypes-differ",
    Severity.ERROR,
    title="prefill and decode keep their KV cache in one dtype",
    consequence=REFUSED,
    fix="Write the same kv_cache_dtype on both sides.",
    source=f"{HASH} The dtype is compared as text: fp8 and fp8_e4m3 differ.",
)
def cache_dtypes_differ(subject: Subject) -> Iterator[Problem]:
    """Compares kv_cache_dtype."""
    for pair in subject.pairs:
        yield from _differing(pair, "kv_cache_dtype", "auto", what="dtype of the KV cache")


@rule(
    "block-sizes-differ",
    Severity.ERROR,
    title="prefill and decode have one block size",
    consequence="The handshake fails at the first request (an assertion, and the engine with it, for hybrid models).",
    fix="Write the same block_size on both sides.",
    source="vLLM 0.26: nixl/base_worker.py _validate_remote_agent_handshake.",
)
def block_sizes_differ(subject: Subject) -> Iterator[Problem]:
    """Compares block_size, and what a hybrid model's cache sizes make of it."""
    for pair in subject.pairs:
        sizes = [engine.number("block_size", DEFAULT_BLOCK_SIZE) for engine in (pair.prefill, pair.decode)]
        if sizes[0] != sizes[1]:
            engine = pair.decode if "block_size" in pair.decode.arguments else pair.prefill
            yield Problem(
                path=_place(engine, "block_size"),
                message=f"block_size is {sizes[0]} for prefill and {sizes[1]} for decode",
            )


@rule(
    "attention-backends-differ",
    Severity.ERROR,
    title="prefill and decode use one attention backend",
    consequence=REFUSED,
    fix="Write the same attention_backend on both sides, or none.",
    source=HASH,
)
def attention_backends_differ(subject: Subject) -> Iterator[Problem]:
    """Compares attention_backend where either names one."""
    for pair in subject.pairs:
        yield from _differing(pair, "attention_backend", "vLLM's choice", what="attention backend")


@rule(
    "cache-managers-differ",
    Severity.ERROR,
    title="the hybrid KV cache manager is on, or off, on both sides",
    consequence=REFUSED,
    fix="Remove disable_hybrid_kv_cache_manager on both sides.",
    source=HASH,
)
def cache_managers_differ(subject: Subject) -> Iterator[Problem]:
    """Compares disable_hybrid_kv_cache_manager of dense models; of hybrid ones another rule speaks."""
    for pair in subject.pairs:
        off = [engine.flag("disable_hybrid_kv_cache_manager") for engine in (pair.prefill, pair.decode)]
        if off[0] != off[1] and not pair.decode.hybrid:
            engine = pair.decode if off[1] else pair.prefill
            yield Problem(
                path=_place(engine, "disable_hybrid_kv_cache_manager"),
                message="only one side disables the hybrid KV cache manager",
            )


@rule(
    "tensor-parallel-differs",
    Severity.ERROR,
    title="tensor parallel sizes of prefill and decode can be mapped onto each other",
    consequence="The handshake fails at the first request: heads cannot be split or joined between the two sides.",
    fix="Use one tensor_parallel_size, or a decode size that is a multiple of prefill's.",
    source="vLLM 0.26: nixl/base_worker.py _validate_remote_agent_handshake, tp_mapping.py.",
)
def tensor_parallel_differs(subject: Subject) -> Iterator[Problem]:
    """Finds the combinations that vLLM refuses; those it supports for dense models are silent, for hybrid ones a "
    "warning."""
    for pair in subject.pairs:
        prefill, decode = pair.prefill.tensor_parallel, pair.decode.tensor_parallel
        if prefill == decode or not pair.decode.nixl_transfers():
            continue
        path = _place(pair.decode if decode > 1 else pair.prefill, "tensor_parallel_size")
        both = f"tensor_parallel_size is {prefill} for prefill and {decode} for decode"
        heads = pair.decode.facts.kv_heads if pair.decode.facts else None
        if max(prefill, decode) % min(prefill, decode):
            yield Problem(path=path, message=f"{both}: neither is a multiple of the other")
        elif any(_host_buffers(engine) for engine in (pair.prefill, pair.decode)):
            yield Problem(path=path, message=f"{both}: with kv_buffer_device cpu they must be equal")
        elif pair.decode.hybrid:
            yield Problem(
                path=path,
                severity=Severity.WARNING,
                message=f"{both}: for hybrid models this is new in vLLM and untried here",
                consequence="The recurrent state is cut and joined by a path that few have used.",
            )
        elif prefill > decode and heads is not None and prefill > heads:
            yield Problem(
                path=path, message=f"{both}: prefill has more GPUs than the {heads} KV heads, which decode cannot join"
            )


def _host_buffers(engine: Engine) -> bool:
    return any(transfer.buffer_device == "cpu" for transfer in engine.nixl_transfers())


@rule(
    "transfers-differ",
    Severity.ERROR,
    title="prefill and decode hand over by the same connector, backends and buffers",
    consequence="The two sides share no way to move the cache: the handshake or the first transfer fails.",
    fix="Write the same kv_connector, backends and kv_buffer_device on both sides.",
    source="NIXL: a transfer needs a backend that both agents have; libfabric before 2.7 does not mix host and GPU "
    "buffers "
    "(commit a3984dc16).",
)
def transfers_differ(subject: Subject) -> Iterator[Problem]:
    """Compares connector, backends and buffer device."""
    for pair in subject.pairs:
        prefill, decode = pair.prefill.transfer, pair.decode.transfer
        if prefill is None or decode is None or not prefill.connector or not decode.connector:
            continue
        if prefill.connector != decode.connector:
            yield Problem(
                path=(*decode.path, "kv_connector"),
                message=f"prefill uses {prefill.connector}, decode uses {decode.connector}",
            )
        elif prefill.nixl:
            yield from _nixl_differences(prefill, decode)


def _nixl_differences(prefill: Transfer, decode: Transfer) -> Iterator[Problem]:
    ours, theirs = _backends(prefill), _backends(decode)
    if not set(ours) & set(theirs):
        yield Problem(
            path=(*decode.extra_path, "backends") if "backends" in decode.extra else decode.path,
            message=f"prefill has the backends {', '.join(ours)} and decode {', '.join(theirs)}: none in common",
        )
    elif ours != theirs:
        yield Problem(
            path=(*decode.extra_path, "backends") if "backends" in decode.extra else decode.path,
            severity=Severity.WARNING,
            message=f"prefill has the backends {', '.join(ours)} and decode {', '.join(theirs)}",
            consequence="NIXL chooses among those in common by itself, which may be the slow one.",
        )
    if prefill.buffer_device != decode.buffer_device:
        yield Problem(
            path=(*decode.path, "kv_buffer_device") if "kv_buffer_device" in decode.values else decode.path,
            message=f"kv_buffer_device is {prefill.buffer_device} for prefill and {decode.buffer_device} for decode",
        )


def _backends(transfer: Transfer) -> list[str]:
    backends = transfer.backends
    return [str(name) for name in backends] if isinstance(backends, list) and backends else ["UCX"]


@rule(
    "handshake-check-off",
    Severity.WARNING,
    title="the two engines compare notes before they transfer",
    consequence="With the check off, engines that do not match exchange caches that mean nothing: answers are "
    "garbage instead "
    "of errors.",
    fix="Remove enforce_handshake_compat.",
    source=HASH,
)
def handshake_check_off(subject: Subject) -> Iterator[Problem]:
    """Finds enforce_handshake_compat: false."""
    for engine in subject.engines:
        for transfer in engine.nixl_transfers():
            if transfer.extra.get("enforce_handshake_compat") is False:
                yield Problem(
                    path=(*transfer.extra_path, "enforce_handshake_compat"),
                    message=f"{engine.name} does not check that the other side matches",
                )


@rule(
    "lengths-differ",
    Severity.WARNING,
    title="prefill takes prompts as long as decode does",
    consequence="A prompt between the two lengths is refused by one side after it was accepted by the other.",
    fix="Write the same max_model_len on both sides.",
    source="GPUStack's P/D guide: context length must agree on both sides.",
)
def lengths_differ(subject: Subject) -> Iterator[Problem]:
    """Compares max_model_len."""
    for pair in subject.pairs:
        lengths = [engine.number_or_none("max_model_len") for engine in (pair.prefill, pair.decode)]
        if lengths[0] != lengths[1]:
            words = [str(length) if length else "the model's own" for length in lengths]
            yield Problem(
                path=_place(pair.decode, "max_model_len"),
                message=f"max_model_len is {words[0]} for prefill and {words[1]} for decode",
            )


RULES: tuple[Rule, ...] = (
    model_ids_differ,
    models_differ,
    dtypes_differ,
    cache_dtypes_differ,
    block_sizes_differ,
    attention_backends_differ,
    cache_managers_differ,
    tensor_parallel_differs,
    transfers_differ,
    handshake_check_off,
    lengths_differ,
)
