"""Rules about GPU memory: do weights, activations and the cache of whole requests fit?"""

from __future__ import annotations

from collections.abc import Iterator

from ray_llm_eks.memory import MemoryEstimate, gib, mib

from .findings import Severity
from .rule import Problem, Rule, rule
from .subject import Engine, Subject

FEW_REQUESTS = 4

ESTIMATE = (
    "This library's estimate (memory.py), within 10 % of what was measured for Qwen3.5-9B on an H200; it follows vLLM "
    "0.26 gpu_worker.determine_available_memory and kv_cache_utils."
)


def _place(engine: Engine) -> tuple[str | int, ...]:
    for name in ("max_model_len", "gpu_memory_utilization"):
        if name in engine.arguments:
            return engine.argument_path(name)
    return engine.at("engine_kwargs") if engine.arguments else engine.path


def _gpu(engine: Engine) -> str:
    return f"the {(engine.pool.facts.gpu or 'GPU').upper()} of {engine.pool.facts.name}"


def _remedy(engine: Engine, memory: MemoryEstimate, wanted: int) -> str:
    """What would make room for this many full-length requests."""
    ways: list[str] = []
    length = _fitting_length(memory, wanted)
    if length >= 512:
        ways.append(f"max_model_len {length}")
    if memory.vision:
        ways.append(f"language_model_only: true (saves {gib(memory.vision)} GiB)")
    if memory.max_num_seqs > 64 and memory.activations > 500 << 20:
        ways.append("a smaller max_num_seqs (32)")
    if memory.max_num_batched_tokens > 2048:
        ways.append("max_num_batched_tokens 2048")
    if engine.size.kv_cache_dtype == "auto" and not engine.hybrid:
        ways.append("kv_cache_dtype: fp8 on both sides")
    ways.append("a GPU with more memory, or tensor_parallel_size on a node with several GPUs")
    return "Try " + ", or ".join(ways) + "."


def _fitting_length(memory: MemoryEstimate, wanted: int) -> int:
    state = -(-memory.state_per_request // memory.block_bytes) if memory.state_per_request else 0
    attention = max(memory.blocks_per_request - state, 1)
    per_length = attention * memory.block_tokens / memory.max_model_len
    blocks = max(memory.blocks // wanted - state, 0)
    length = int(blocks * memory.block_tokens / max(per_length, 1e-9))
    return length // 256 * 256


@rule(
    "does-not-fit",
    Severity.ERROR,
    title="at least one request of full length fits into the GPU's memory",
    consequence="The engine loads the weights for minutes, profiles its memory and then dies: no room for a request of "
    "max_model_len tokens.",
    fix="Make max_model_len or what is loaded smaller, or take a larger GPU.",
    source=ESTIMATE,
)
def does_not_fit(subject: Subject) -> Iterator[Problem]:
    """Compares the cache of one full-length request with what is left."""
    for engine in subject.engines:
        memory = engine.memory
        if memory is None or memory.requests >= 1:
            continue
        parts = ", ".join(f"{name} {gib(size)} GiB" for name, size in memory.parts())
        if memory.cache <= 0:
            left = f"nothing is left for the cache (short of {mib(-memory.cache)})"
        else:
            left = (
                f"{mib(memory.cache)} are left for the cache, and one request of {memory.max_model_len} tokens "
                f"needs {mib(memory.request_bytes)}"
            )
        longest = memory.longest_request
        would = f"; up to {longest} tokens would fit" if longest else ""
        yield Problem(
            path=_place(engine),
            message=f"{engine.name} does not fit {_gpu(engine)}: of {gib(memory.budget)} GiB it takes {parts}; "
            f"{left}{would}",
            fix=_remedy(engine, memory, 1),
        )


@rule(
    "few-requests-fit",
    Severity.WARNING,
    title=f"at least {FEW_REQUESTS} requests of full length fit at once",
    consequence="Long requests wait for each other or push each other out (preemption), and throughput falls to a few "
    "requests at a time.",
    fix="Make max_model_len or what is loaded smaller, or take a larger GPU.",
    source=ESTIMATE,
)
def few_requests_fit(subject: Subject) -> Iterator[Problem]:
    """Counts the full-length requests that fit."""
    for engine in subject.engines:
        memory = engine.memory
        if memory is not None and 1 <= memory.requests < FEW_REQUESTS:
            yield Problem(
                path=_place(engine),
                message=f"only {memory.requests:.1f} requests of {memory.max_model_len} tokens fit {_gpu(engine)} "
                f"({engine.name}): {memory.text()}",
                fix=_remedy(engine, memory, FEW_REQUESTS),
            )


@rule(
    "state-blocks",
    Severity.ERROR,
    title="a hybrid model has a cache block for each of max_num_seqs sequences",
    consequence='The engine dies after loading: "max_num_seqs exceeds available Mamba cache blocks".',
    fix="Set max_num_seqs to what fits.",
    source="vLLM 0.26.0: config/compilation.py resolve_cudagraph_mode_and_sizes; vllm 38270, 49064.",
)
def state_blocks(subject: Subject) -> Iterator[Problem]:
    """Compares max_num_seqs (256 by default, 1,024 on large GPUs) with the blocks that fit; not without CUDA graphs."""
    for engine in subject.engines:
        memory = engine.memory
        if memory is None or not engine.hybrid or engine.size.enforce_eager or memory.requests < 1:
            continue
        if memory.max_num_seqs > memory.blocks:
            given = "" if engine.size.max_num_seqs else " (vLLM's default here)"
            yield Problem(
                path=engine.argument_path("max_num_seqs"),
                message=f"max_num_seqs {memory.max_num_seqs}{given} is more than the {memory.blocks} cache blocks "
                "that fit "
                f"{_gpu(engine)}; a hybrid model takes one a sequence",
                fix=f"Set max_num_seqs to {_round_down(memory)} ({memory.requests:.1f} requests of full length fit).",
            )


def _round_down(memory: MemoryEstimate) -> int:
    wanted = max(int(memory.requests), 1)
    return max((size for size in (1, 2, 4, 8, 16, 32, 64, 128, 256) if size <= max(wanted, 1) * 2), default=1)


@rule(
    "context-too-long",
    Severity.ERROR,
    title="max_model_len is no more than the model was made for",
    consequence="The engine refuses to start: the length is beyond the model's max_position_embeddings.",
    fix="Lower max_model_len, or scale positions with hf_overrides if you know what you do.",
    source="vLLM 0.26.0: config/model.py _get_and_verify_max_len.",
)
def context_too_long(subject: Subject) -> Iterator[Problem]:
    """Compares with the profile; silent where rope scaling is set by hand or the environment allows more."""
    for engine in subject.engines:
        length = engine.number_or_none("max_model_len")
        if engine.facts is None or not engine.facts.max_positions or length is None:
            continue
        if "hf_overrides" in engine.arguments or "VLLM_ALLOW_LONG_MAX_MODEL_LEN" in engine.environment:
            continue
        if length > engine.facts.max_positions:
            yield Problem(
                path=engine.argument_path("max_model_len"),
                message=f"max_model_len {length} is beyond the {engine.facts.max_positions} positions of "
                f"{engine.facts.name}",
            )


@rule(
    "model-unknown",
    Severity.INFO,
    title="the model's shape is known, so that its memory can be estimated",
    consequence="Whether it fits is not checked.",
    fix="Give its config.json: ray-llm check --model-config config.json.",
    source="facts/models.toml holds the profiles.",
)
def model_unknown(subject: Subject) -> Iterator[Problem]:
    """Names models without a profile."""
    for engine in subject.engines:
        if engine.facts is None and engine.model:
            yield Problem(
                path=engine.at("model_loading_config"),
                message=f"the shape of {engine.model.name} is not known: its memory is not estimated",
            )


RULES: tuple[Rule, ...] = (does_not_fit, few_requests_fit, state_blocks, context_too_long, model_unknown)
