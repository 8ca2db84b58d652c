"""Inputs that failed for real users elsewhere: what must be said of each, and of its whole kind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ray_llm_eks.instances import instance_facts
from ray_llm_eks.rules import Report, check_serve_config, one_pool
from ray_llm_eks.serve_config import ServeConfig

CASES = Path(__file__).parents[2].parent / "shared" / "cases"

EXPECTED: dict[str, tuple[str, tuple[str, ...], int]] = {
    # Folder: the rule, words that must be printed, and how many findings.
    "autoscaling-beyond-nodes": (
        "autoscaling-exceeds-nodes",
        ("max_replicas 8 of decode cannot be reached", "at most 2 nodes"),
        1,
    ),
    "backend-in-environment": (
        "backend-in-environment",
        ("NIXL_BACKEND is not read by the connector", "still has to name the backend", "backends: [LIBFABRIC]"),
        2,
    ),
    "backend-left-out": (
        "backend-missing",
        ("prefill names no NIXL backend", "decode names no NIXL backend", "TCP speed", "backends: [LIBFABRIC]"),
        2,
    ),
    "does-not-fit": (
        "does-not-fit",
        (
            "weights 16.80 GiB",
            "activations",
            "are left for the cache",
            "one request of 131072 tokens needs",
            "tokens would fit",
        ),
        2,
    ),
    "hybrid-cache-manager-off": (
        "hybrid-cache-manager",
        ("disables the hybrid KV cache manager", "linear-attention state cannot be transferred"),
        1,
    ),
    "hybrid-layout-contradicted": (
        "state-layout",
        ("VLLM_SSM_CONV_STATE_LAYOUT is 'SD'", "hybrid model", "DS", "dies after minutes of loading"),
        1,
    ),
    "model-ids-differ": ("model-ids-differ", ("P/D model id mismatch", "'qwen3.5-9b-decode'"), 1),
    "no-efa-in-the-node-group": ("no-efa", ("LIBFABRIC", "g6.4xlarge has no EFA interface"), 2),
    "no-transfer-config": ("transfer-missing", ("decode has no kv_transfer_config", "is required"), 1),
    "tensor-parallel-across-one-gpu-nodes": (
        "parallel-across-nodes",
        (
            "tensor_parallel_size 2",
            "1 GPU a node",
            "g6.12xlarge",
            "pipeline_parallel_size 2 with strategy PACK",
            "all-reduce would cross EFA at every layer",
        ),
        2,
    ),
    "too-many-replicas": (
        "replicas-exceed-nodes",
        ("3 prefill + 1 decode replicas need 4 GPUs", "2 nodes (g6.8xlarge) of 1 GPU", "Pending without an end"),
        1,
    ),
    "two-kv-dtypes": ("cache-dtypes-differ", ("fp8", "handshake is refused at the first request"), 1),
    "unknown-engine-argument": (
        "unknown-engine-argument",
        ("task is no engine argument of vLLM 0.26.0", "nearest: runner", "again and again"),
        1,
    ),
}

pytestmark = pytest.mark.skipif(
    not CASES.is_dir(), reason=f"{CASES} is not here: the cases are kept beside the repository"
)


def report_of(folder: str) -> Report:
    found = re.search(r"^Nodes: (\S+) x(\d+)", (CASES / folder / "expect.md").read_text("utf-8"))
    assert found
    deployment = one_pool(instance_facts(found[1]), int(found[2]))
    return check_serve_config(ServeConfig.load(CASES / folder / "serve.yaml"), deployment)


def test_every_case_is_expected_here() -> None:
    assert {path.name for path in CASES.iterdir() if path.is_dir()} == set(EXPECTED)


@pytest.mark.parametrize("folder", EXPECTED)
def test_the_case_is_an_error_that_says_what_it_must(folder: str) -> None:
    rule, words, count = EXPECTED[folder]
    report = report_of(folder)
    found = [finding for finding in report.errors if finding.rule == rule]
    assert len(found) == count, report.text()
    said = report.text()
    for word in words:
        assert word in said


# What each file has beside its own fault: no max_num_seqs, and the vision tower on an L4.
BESIDE = {"state-blocks", "few-requests-fit"}
FOLLOWS = {"tensor-parallel-across-one-gpu-nodes": {"replicas-exceed-nodes"}}


@pytest.mark.parametrize("folder", EXPECTED)
def test_nothing_else_is_called_wrong(folder: str) -> None:
    report = report_of(folder)
    others = {finding.rule for finding in (*report.errors, *report.warnings)} - {EXPECTED[folder][0]}
    assert others <= BESIDE | FOLLOWS.get(folder, set())
