from __future__ import annotations

import pytest

from ray_llm_eks.rehearsal.architecture import Architecture
from ray_llm_eks.rehearsal.compare import compare


@pytest.mark.parametrize("architecture", ["dense", "hybrid"])
def test_the_same_tokens_are_equal(architecture: Architecture) -> None:
    found = compare(architecture, [1, 2, 3], greedy=[1, 2, 3], gaps=[0, 0, 0])
    assert found.equal
    assert "all 3 tokens" in found.statement


def test_a_dense_model_must_agree_exactly() -> None:
    found = compare("dense", [1, 2, 3], greedy=[1, 9, 3], gaps=[0, 0.01, 0])
    assert not found.equal
    assert "token 2 of 3" in found.statement


def test_a_hybrid_model_may_choose_among_equals() -> None:
    found = compare("hybrid", [1, 2, 3], greedy=[1, 9, 9], gaps=[0, 0.03, 0])
    assert found.equal
    assert "the first 1 tokens are the same" in found.statement


def test_a_hybrid_model_with_another_cache_is_not_equal() -> None:
    found = compare("hybrid", [1, 2, 3], greedy=[1, 9, 9], gaps=[0, 0.03, 2.5])
    assert not found.equal
    assert "1 of 3 tokens" in found.statement


@pytest.mark.parametrize("architecture", ["dense", "hybrid"])
def test_no_answer_is_not_equal(architecture: Architecture) -> None:
    assert not compare(architecture, [], greedy=[], gaps=[]).equal
