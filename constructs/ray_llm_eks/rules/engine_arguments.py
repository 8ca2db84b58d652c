"""Rules about engine arguments: names, kinds of values, and what Ray Serve LLM reserves for itself."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from ray_llm_eks.engine_arguments import EngineArgument, engine_arguments, vllm_version
from ray_llm_eks.yaml_document import Value

from .findings import Severity
from .rule import Problem, Rule, rule
from .subject import Engine, Subject

LEAST = {
    **dict.fromkeys(("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"), 1),
    **dict.fromkeys(("max_num_seqs", "max_num_batched_tokens", "block_size", "max_loras", "max_lora_rank"), 1),
    "max_model_len": -1,
}
"""Least values, from the fields of vLLM's configuration classes."""

MAX_HINTS = 20

RENAMED = {
    "task": "runner",
    "device": "nothing: the platform decides",
    "swap_space": "nothing: vLLM 0.26 does not swap",
    "disable_log_requests": "enable_log_requests",
    "guided_decoding_backend": "structured_outputs_config",
    "num_lookahead_slots": "speculative_config",
    "max_seq_len_to_capture": "compilation_config",
}
"""Arguments of older vLLM, and what took their place."""


@rule(
    "unknown-engine-argument",
    Severity.ERROR,
    title="engine_kwargs are engine arguments of the vLLM in the image",
    consequence='The application fails to build ("Unknown engine argument: …") and becomes DEPLOY_FAILED; with an '
    "older Ray "
    "the replica fails again and again, with the reason deep in its log.",
    fix="Correct the name, or remove the argument.",
    source="Ray 2.58 VLLMEngineConfig.from_llm_config; vLLM 0.26.0 engine arguments (facts/engine_args.json); ray "
    "64466.",
)
def unknown_engine_argument(subject: Subject) -> Iterator[Problem]:
    """Compares names with the list made from vLLM."""
    known = engine_arguments()
    for engine in subject.engines:
        for number, name in enumerate(name for name in engine.arguments if name not in known):
            # Looking for the nearest name takes time; nobody reads it a hundred times.
            words = name.lower().lstrip("-").replace("-", "_") if number < MAX_HINTS else ""
            near = difflib.get_close_matches(words, known, n=3, cutoff=0.5)
            if name in RENAMED and RENAMED[name] in known:
                near = [RENAMED[name], *(other for other in near if other != RENAMED[name])]
            if words and not near:
                near = difflib.get_close_matches(words, known, n=3, cutoff=0.3)
            yield Problem(
                path=engine.at("engine_kwargs", name),
                message=f"{name} is no engine argument of vLLM {vllm_version()}"
                + (f"; nearest: {', '.join(near)}" if near else ""),
                fix=f"Write {near[0]}, or remove it." if words in known else None,
            )


@rule(
    "engine-argument-value",
    Severity.ERROR,
    title="engine arguments have values of the kind that vLLM takes",
    consequence="The engine dies when it starts, after the model was downloaded; Serve starts it again and again.",
    fix="Write a value of the kind that the message names.",
    source="vLLM 0.26.0: annotations and Literal choices of EngineArgs (facts/engine_args.json).",
)
def engine_argument_value(subject: Subject) -> Iterator[Problem]:
    """Checks plain kinds and complete lists of choices; what vLLM leaves open is left open."""
    known = engine_arguments()
    for engine in subject.engines:
        for name, value in engine.arguments.items():
            if name in known and (wrong := _wrong_value(known[name], value)):
                # vLLM turns the text of a number into one in most places; Ray's arithmetic with sizes does not.
                lenient = isinstance(value, str) and _is_number(value) and not name.endswith("_parallel_size")
                yield Problem(
                    path=engine.at("engine_kwargs", name),
                    message=f"{name}: {wrong}",
                    severity=Severity.WARNING if lenient else None,
                    consequence="vLLM turns text into a number in some places, and fails in others."
                    if lenient
                    else None,
                    fix=f"Write {value}, without quotes." if lenient else None,
                )


def _without_gpu(engine: Engine) -> bool:
    """Whether the bundles hold no GPU: Ray then sets mp itself, whatever is written."""
    bundles = engine.get("placement_group_config", "bundles")
    listed = bundles if isinstance(bundles, list) else [engine.get("placement_group_config", "bundle_per_worker")]
    given = [bundle for bundle in listed if isinstance(bundle, dict)]
    return bool(given) and not any("GPU" in bundle for bundle in given)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _wrong_value(argument: EngineArgument, value: Value) -> str | None:
    if argument.choices:
        if value is None or value in argument.choices or isinstance(value, (dict, list)):
            return None
        near = difflib.get_close_matches(str(value), [str(choice) for choice in argument.choices], n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{value!r} is none of {', '.join(str(choice) for choice in argument.choices)}{hint}"
    kinds = argument.kinds
    if not kinds or value is None:
        return None
    fitting = {
        "bool": isinstance(value, bool),
        "int": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, (int, float)) and not isinstance(value, bool),
        "str": isinstance(value, str),
    }
    if any(fitting.get(kind, False) for kind in kinds):
        least = LEAST.get(argument.name)
        return f"must be at least {least}, not {value}" if least and isinstance(value, int) and value < least else None
    words = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "text"}
    wanted = " or ".join(words[kind] for kind in kinds if kind in words)
    given = "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)
    return f"must be {wanted}, not {given}"


@rule(
    "reserved-engine-argument",
    Severity.ERROR,
    title="the model is named in model_loading_config alone",
    consequence='Ray refuses to start the engine ("model or served_model_name is not allowed in engine_kwargs").',
    fix="Name it in model_loading_config: model_id for clients, model_source for the weights.",
    source="Ray 2.58: VLLMEngineConfig.get_initialization_kwargs; ran.",
)
def reserved_engine_argument(subject: Subject) -> Iterator[Problem]:
    """Finds model and served_model_name among the engine arguments."""
    for engine in subject.engines:
        for name in ("model", "served_model_name"):
            if name in engine.arguments:
                yield Problem(
                    path=engine.at("engine_kwargs", name), message=f"{name} cannot be an engine argument here"
                )


@rule(
    "executor-backend",
    Severity.ERROR,
    title="Ray runs the engine's workers",
    consequence="Ray refuses to start the engine: another executor would leave the placement group, and its GPUs.",
    fix="Remove distributed_executor_backend; Ray Serve LLM sets ray.",
    source="Ray 2.58: VLLMEngineConfig.get_initialization_kwargs; ran; ray 54443.",
)
def executor_backend(subject: Subject) -> Iterator[Problem]:
    """Finds any executor but ray."""
    for engine in subject.engines:
        if "distributed_executor_backend" in engine.arguments:
            value = engine.arguments["distributed_executor_backend"]
            if value != "ray" and not _without_gpu(engine):
                yield Problem(
                    path=engine.at("engine_kwargs", "distributed_executor_backend"),
                    message=f"distributed_executor_backend {value!r} cannot be used under Ray Serve LLM",
                )


@rule(
    "memory-utilization",
    Severity.ERROR,
    title="gpu_memory_utilization is more than 0 and at most 1",
    consequence="The engine refuses the value when it starts.",
    fix="Write a share of the GPU's memory, such as 0.90.",
    source="vLLM 0.26.0: CacheConfig.gpu_memory_utilization (gt=0, le=1).",
)
def memory_utilization(subject: Subject) -> Iterator[Problem]:
    """Checks the range; whether it is a number at all is another rule's."""
    for engine in subject.engines:
        value = engine.arguments.get("gpu_memory_utilization")
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not 0 < value <= 1:
            yield Problem(
                path=engine.at("engine_kwargs", "gpu_memory_utilization"),
                message=f"gpu_memory_utilization is {value}",
                fix=f"Write {value / 100:.2f}: it is a share, not a percentage." if 1 < value <= 100 else None,
            )


RULES: tuple[Rule, ...] = (
    unknown_engine_argument,
    engine_argument_value,
    reserved_engine_argument,
    executor_backend,
    memory_utilization,
)
