"""Reads the engines' own counters, and proves from them that prefill and decode did what they are there for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One line of Prometheus text."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse(text: str) -> Iterator[Sample]:
    """The samples in Prometheus text; lines that are none are passed over."""
    for line in text.splitlines():
        if found := SAMPLE.match(line):
            try:
                value = float(found["value"])
            except ValueError:
                continue
            yield Sample(name=found["name"], labels=dict(LABEL.findall(found["labels"] or "")), value=value)


@dataclass(frozen=True, kw_only=True)
class Counters:
    """What the engines of one role have counted since they started."""

    prompt_tokens_computed: float = 0
    """Prompt tokens whose KV cache this engine computed itself."""
    prompt_tokens_received: float = 0
    """Prompt tokens whose KV cache came from another engine."""
    generated_tokens: float = 0
    transfers: float = 0
    bytes_transferred: float = 0
    transfer_seconds: float = 0
    failed_transfers: float = 0
    finished: float = 0

    def __sub__(self, other: Counters) -> Counters:
        return Counters(**{name: value - getattr(other, name) for name, value in vars(self).items()})


NAMES: Mapping[tuple[str, str | None], str] = {
    ("ray_vllm_prompt_tokens_by_source_total", "local_compute"): "prompt_tokens_computed",
    ("ray_vllm_prompt_tokens_by_source_total", "external_kv_transfer"): "prompt_tokens_received",
    ("ray_vllm_generation_tokens_total", None): "generated_tokens",
    ("ray_vllm_nixl_bytes_transferred_count", None): "transfers",
    ("ray_vllm_nixl_bytes_transferred_sum", None): "bytes_transferred",
    ("ray_vllm_nixl_xfer_time_seconds_sum", None): "transfer_seconds",
    ("ray_vllm_nixl_num_failed_transfers_total", None): "failed_transfers",
    ("ray_vllm_request_success_total", None): "finished",
}


def by_role(text: str, roles: Mapping[str, str]) -> dict[str, Counters]:
    """Sums the counters by role.

    Args:
        text: Prometheus text from Ray's metrics port.
        roles: replica id to role; Ray labels vLLM's metrics with the replica only.
    """
    sums: dict[str, dict[str, float]] = {role: {} for role in roles.values()}
    for sample in parse(text):
        role = roles.get(sample.labels.get("ReplicaId", ""))
        field = NAMES.get((sample.name, sample.labels.get("source")))
        if role and field:
            sums[role][field] = sums[role].get(field, 0) + sample.value
    return {role: Counters(**values) for role, values in sums.items()}


def gauge(text: str, name: str) -> list[float]:
    """All values of a gauge; empty where it is not exported now."""
    return [sample.value for sample in parse(text) if sample.name == name]


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What the counters say about one or more requests."""

    holds: bool
    statements: tuple[str, ...]
    prefill: Counters
    decode: Counters


def prove_disaggregation(prefill: Counters, decode: Counters, *, prompt_tokens: int, requests: int = 1) -> Proof:
    """Whether prefill computed the prompts and decode received their KV cache.

    A hybrid model's last prompt token is computed by decode (its recurrent state has to be advanced there), a dense
    model's is not: so up to one token a request may be missing on one side and show on the other.

    Args:
        prefill: what prefill counted during the requests.
        decode: what decode counted during the requests.
        prompt_tokens: prompt tokens of all requests together.
        requests: how many there were.
    """
    least = prompt_tokens - requests
    checks = (
        (
            prefill.prompt_tokens_computed >= least,
            f"prefill computed {prefill.prompt_tokens_computed:.0f} of {prompt_tokens} prompt tokens",
        ),
        (
            decode.prompt_tokens_received >= least and decode.prompt_tokens_computed <= requests,
            f"decode received {decode.prompt_tokens_received:.0f} of them, and computed "
            f"{decode.prompt_tokens_computed:.0f} itself",
        ),
        (
            decode.transfers >= requests and decode.bytes_transferred > 0 and not decode.failed_transfers,
            f"{decode.bytes_transferred / 1024:.0f} KiB of KV cache moved in {decode.transfers:.0f} transfer(s), "
            f"{decode.transfer_seconds * 1000:.1f} ms"
            + (f", {decode.failed_transfers:.0f} failed" if decode.failed_transfers else ""),
        ),
    )
    return Proof(
        holds=all(holds for holds, _ in checks),
        statements=tuple(("" if holds else "NOT SO: ") + statement for holds, statement in checks),
        prefill=prefill,
        decode=decode,
    )
