"""The memory estimate against what was measured, and that every argument that should change it does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ray_llm_eks.memory import GIB, MIB, EngineSize, MemoryEstimate, estimate
from ray_llm_eks.model_facts import ModelFacts, model_by_name

L4 = 22888
L40S = 45776
H200 = 144384


def facts(name: str = "Qwen/Qwen3.5-9B") -> ModelFacts:
    found = model_by_name(name).facts
    assert found
    return found


def on_l4(**changes: Any) -> MemoryEstimate:
    size = EngineSize(utilization=0.9, max_model_len=4096, max_num_seqs=16, language_model_only=True)
    return estimate(facts(), replace(size, **changes), gpu_memory_mib=L4)


MEASURED = estimate(
    facts(),
    # One H200, 22 % of it, no CUDA graphs: the sum of what was measured is 30.75 GiB.
    EngineSize(utilization=0.22, max_model_len=4096, language_model_only=True, enforce_eager=True),
    gpu_memory_mib=H200,
)


@pytest.mark.parametrize(
    ("estimated", "measured"),
    [
        (MEASURED.weights / GIB, 16.8),
        (MEASURED.activations / GIB, 3.61),
        (MEASURED.non_torch / GIB, 0.22),
        (MEASURED.cache / GIB, 10.12),
        (MEASURED.cache_tokens, 233_472),
        (MEASURED.kv_bytes_per_token / 1024, 32),
        (MEASURED.state_per_request / MIB, 49),
        (MEASURED.request_bytes / MIB, 177),
        (estimate(facts(), EngineSize(), gpu_memory_mib=H200).vision / GIB, 0.85),
        (on_l4(utilization=1.0).budget / GIB, 22.03),
        (facts().parameters, 8.95e9),
    ],
    ids=[
        "weights",
        "activations",
        "non-torch",
        "cache",
        "cache-tokens",
        "kv-per-token",
        "state",
        "handed-over",
        "vision",
        "l4",
        "parameters",
    ],
)
def test_within_a_tenth_of_what_was_measured(estimated: float, measured: float) -> None:
    assert estimated == pytest.approx(measured, rel=0.10)


def test_cache_of_the_measured_size_holds_the_measured_tokens() -> None:
    exact = estimate(
        facts(),
        EngineSize(max_model_len=4096, kv_cache_memory_bytes=int(10.12 * GIB)),
        gpu_memory_mib=H200,
    )
    assert exact.cache_tokens == pytest.approx(233_472, rel=0.005)
    assert exact.block_tokens == 528


@pytest.mark.parametrize(
    ("name", "kib"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 128),
        ("Qwen/Qwen3-8B", 144),
        ("Qwen/Qwen3-32B", 256),
        ("meta-llama/Llama-3.3-70B-Instruct", 320),
    ],
)
def test_kv_cache_of_published_shapes(name: str, kib: int) -> None:
    found = estimate(facts(name), EngineSize(max_model_len=8192), gpu_memory_mib=H200)
    assert found.kv_bytes_per_token == kib * 1024
    assert found.request_bytes == 8192 * kib * 1024


def test_the_default_configuration_has_room_for_several_requests() -> None:
    assert on_l4(max_num_batched_tokens=2048).requests > 8


@pytest.mark.parametrize(
    ("part", "changes", "sign"),
    [
        ("activations", {"max_num_batched_tokens": 8192}, 1),
        ("activations", {"max_num_seqs": 256}, 1),
        ("cuda_graphs", {"max_num_seqs": 256}, 1),
        ("cuda_graphs", {"enforce_eager": True}, -1),
        ("vision", {"language_model_only": False}, 1),
        ("weights", {"quantization": "fp8"}, -1),
        ("weights", {"quantization": "awq"}, -1),
        ("weights", {"tensor_parallel": 2}, -1),
        ("weights", {"pipeline_parallel": 2}, -1),
        ("non_torch", {"tensor_parallel": 2}, 1),
        ("lora", {"loras": 4}, 1),
        ("request_bytes", {"kv_cache_dtype": "fp8"}, -1),
        ("request_bytes", {"tensor_parallel": 2}, -1),
        ("request_bytes", {"max_model_len": 8192}, 1),
        ("request_bytes", {"prefix_caching": True}, 1),
        ("request_bytes", {"speculative_tokens": 2}, 1),
        ("budget", {"utilization": 0.8}, -1),
        ("cache", {"utilization": 0.8}, -1),
    ],
)
def test_each_argument_changes_its_part(part: str, changes: dict[str, Any], sign: int) -> None:
    before, after = getattr(on_l4(), part), getattr(on_l4(**changes), part)
    assert (after - before) * sign > 0


def test_parts_and_cache_make_up_the_budget() -> None:
    found = on_l4(language_model_only=False, loras=2)
    assert sum(size for _, size in found.parts()) + found.cache == found.budget
    assert "16.80 weights" in found.text()
    assert f"{found.requests:.1f} fit" in found.text()


def test_the_longest_request_fits_and_a_longer_one_does_not() -> None:
    long = on_l4(max_model_len=131072)
    assert long.requests < 1
    longest = long.longest_request
    assert on_l4(max_model_len=longest).requests >= 1
    assert on_l4(max_model_len=longest + long.block_tokens).requests < 1


def test_defaults_depend_on_the_gpu() -> None:
    assert (on_l4(max_num_seqs=None).max_num_seqs, on_l4(max_num_seqs=None).max_num_batched_tokens) == (256, 2048)
    assert (MEASURED.max_num_seqs, MEASURED.max_num_batched_tokens) == (1024, 8192)
    assert estimate(facts(), EngineSize(), gpu_memory_mib=81920, a100=True).max_num_seqs == 256
