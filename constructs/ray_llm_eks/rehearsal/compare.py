"""Is the answer that prefill and decode gave together the one that a single engine gives?

A dense model in float32 is compared exactly, token by token. A hybrid one cannot be: its CPU kernels exist in bfloat16
only, decode advances the recurrent state over the last prompt token with another kernel than a prefill does, and
log-probabilities differ by up to 0.1. Where the two best tokens are nearer than that, either is right, and the texts
part for good. So its answer is judged as vLLM's own tests do: the single engine reads prompt and answer, and each token
of the answer must be its first choice, or nearly (log-probability within a tolerance).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .architecture import Architecture

HYBRID_TOLERANCE = 0.2
"""Difference of log-probabilities up to which two tokens count as equally good in bfloat16.

Measured over 21 prompts of 5 to 1,900 tokens: up to 0.094. One wrong block of 16 tokens in 1,900: 0.5; half of them
wrong: 1.5.
"""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result for one answer."""

    equal: bool
    statement: str
    largest_gap: float
    """The largest distance, in log-probability, of a token of the answer from the single engine's own choice."""


def compare(
    architecture: Architecture, answer: Sequence[int], *, greedy: Sequence[int], gaps: Sequence[float]
) -> Comparison:
    """Judges an answer.

    Args:
        architecture: decides between exact and within tolerance.
        answer: token ids that prefill and decode gave.
        greedy: token ids that the single engine gave.
        gaps: for each token of ``answer``, how far it is from the single engine's choice at that place.
    """
    same = next(
        (i for i, (a, b) in enumerate(zip(answer, greedy, strict=False)) if a != b), min(len(answer), len(greedy))
    )
    exact = list(answer) == list(greedy)
    largest = max(gaps, default=0.0)
    if exact:
        statement = f"all {len(answer)} tokens equal those of one engine alone"
        return Comparison(equal=bool(answer), statement=statement, largest_gap=largest)
    if architecture == "dense":
        statement = f"differs from one engine alone at token {same + 1} of {len(answer)}"
        return Comparison(equal=False, statement=statement, largest_gap=largest)
    off = sum(gap > HYBRID_TOLERANCE for gap in gaps)
    if off:
        statement = (
            f"{off} of {len(answer)} tokens are not what one engine alone would say "
            f"(off by up to {largest:.2f} in log-probability; {HYBRID_TOLERANCE} is allowed)"
        )
        return Comparison(equal=False, statement=statement, largest_gap=largest)
    statement = (
        f"equal to one engine alone within bfloat16: the first {same} tokens are the same, and each of the "
        f"{len(answer)} is its choice within {largest:.3f} in log-probability"
    )
    return Comparison(equal=len(gaps) == len(answer), statement=statement, largest_gap=largest)
