"""The memory estimate against every engine whose parts were measured on a GPU (benchmarks/gpu/results)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ray_llm_eks.memory import GIB, MIB, USABLE, EngineSize, MemoryEstimate, estimate
from ray_llm_eks.model_facts import model_by_name

RESULTS = Path(__file__).parents[2] / "benchmarks" / "gpu" / "results" / "2026-12-01-memory.json"
H200 = 144384
MODELS = {"hybrid": "Qwen/Qwen3.5-9B", "dense": "Qwen/Qwen3-8B"}
NAMES = {
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "block_size",
    "kv_cache_dtype",
    "language_model_only",
    "enforce_eager",
}

CASES: list[dict[str, Any]] = json.loads(RESULTS.read_text("utf-8"))["cases"]


def estimated(case: dict[str, Any]) -> MemoryEstimate:
    facts = model_by_name(MODELS[case["model"]]).facts
    assert facts
    arguments = {name: value for name, value in case["engine"].items() if name in NAMES}
    size = EngineSize(utilization=case["memory"]["budget"] / (H200 * MIB * USABLE), **arguments)
    return estimate(facts, size, gpu_memory_mib=H200)


def parts(case: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Estimated and measured size of each part."""
    found, memory = estimated(case), case["memory"]
    first = case["compile_cache"] == "empty"
    pairs: dict[str, tuple[float, float]] = {
        "weights": (found.weights + found.vision, memory["weights"]),
        "activations": (found.first_start if first else found.activations, memory["peak_activation"]),
        "non-torch": (found.non_torch, memory["non_torch"]),
        "cache": (found.first_start_cache if first else found.cache, memory["cache_available"]),
    }
    if case.get("cuda_graphs"):
        pairs["graphs"] = (found.cuda_graphs, case["cuda_graphs"])
    if case.get("cache_tokens"):
        tokens = (found.first_start_requests if first else found.requests) * found.max_model_len
        # A cache of few blocks: one block more or less is a larger step than a tenth.
        step = found.max_model_len / found.blocks_per_request
        pairs["tokens"] = (min(tokens, case["cache_tokens"] + step), case["cache_tokens"])
    return pairs


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_every_part_is_within_a_tenth(case: dict[str, Any]) -> None:
    off = {
        part: f"{guess / GIB:.3f} estimated, {truth / GIB:.3f} measured"
        for part, (guess, truth) in parts(case).items()
        if guess != pytest.approx(truth, rel=0.10)
    }
    assert not off


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_sum_of_the_parts_is_within_a_tenth(case: dict[str, Any]) -> None:
    found, memory = estimated(case), case["memory"]
    taken = found.weights + found.vision + found.non_torch + found.cuda_graphs
    taken += found.first_start if case["compile_cache"] == "empty" else found.activations
    assert taken == pytest.approx(memory["budget"] - memory["cache_available"], rel=0.10)


def test_blocks_have_the_size_that_vllm_gave_them() -> None:
    for case in CASES:
        if "cache" in case:
            assert estimated(case).block_bytes == case["cache"]["cache_bytes"] // case["cache"]["blocks"], case["name"]


def test_a_first_start_has_less_cache_than_a_second() -> None:
    shipped = {case["name"]: case["memory"]["cache_available"] for case in CASES}
    assert shipped["hybrid-shipped"] < 0.4 * shipped["hybrid-shipped-second-start"]
