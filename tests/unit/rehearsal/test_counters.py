from __future__ import annotations

from ray_llm_eks.rehearsal.counters import Counters, by_role, gauge, parse, prove_disaggregation

# Lines of a real run (Ray 2.58.0, vLLM 0.27.0), with fewer labels.
TEXT = """\
# HELP ray_vllm_prompt_tokens_by_source_total Number of prompt tokens by source.
# TYPE ray_vllm_prompt_tokens_by_source_total counter
ray_vllm_prompt_tokens_by_source_total{ReplicaId="pre",engine="0",source="local_compute"} 1943.0
ray_vllm_prompt_tokens_by_source_total{ReplicaId="dec",engine="0",source="local_compute"} 3.0
ray_vllm_prompt_tokens_by_source_total{ReplicaId="dec",engine="0",source="external_kv_transfer"} 1943.0
ray_vllm_nixl_bytes_transferred_sum{ReplicaId="dec",engine="0"} 2.94912e+06
ray_vllm_nixl_bytes_transferred_count{ReplicaId="dec",engine="0"} 3.0
ray_vllm_nixl_xfer_time_seconds_sum{ReplicaId="dec",engine="0"} 0.0625
ray_vllm_generation_tokens_total{ReplicaId="dec",engine="0"} 144.0
ray_vllm_kv_cache_usage_perc{ReplicaId="dec",model_name="a \\"b\\" {c}"} 0.25
not a sample
"""
ROLES = {"pre": "prefill", "dec": "decode"}


def test_counters_are_summed_by_role() -> None:
    found = by_role(TEXT, ROLES)
    assert found["prefill"] == Counters(prompt_tokens_computed=1943)
    assert found["decode"].prompt_tokens_received == 1943
    assert found["decode"].bytes_transferred == 2949120


def test_two_replicas_of_a_role_count_together() -> None:
    found = by_role(TEXT.replace('"pre"', '"other"'), {**ROLES, "other": "prefill"})
    assert found["prefill"].prompt_tokens_computed == 1943


def test_an_unknown_replica_counts_for_nobody() -> None:
    assert by_role(TEXT, {}) == {}


def test_a_label_may_hold_quotes_and_braces() -> None:
    assert gauge(TEXT, "ray_vllm_kv_cache_usage_perc") == [0.25]
    assert len(list(parse(TEXT))) == 8


def test_three_real_requests_prove_the_transfer() -> None:
    found = by_role(TEXT, ROLES)
    proof = prove_disaggregation(found["prefill"], found["decode"], prompt_tokens=1946, requests=3)
    assert proof.holds
    assert proof.statements[2] == "2880 KiB of KV cache moved in 3 transfer(s), 62.5 ms"


def test_a_decode_engine_that_computes_the_prompt_itself_is_no_proof() -> None:
    alone = Counters(prompt_tokens_computed=100, finished=1)
    proof = prove_disaggregation(Counters(prompt_tokens_computed=100), alone, prompt_tokens=100)
    assert not proof.holds
    assert [s.startswith("NOT SO") for s in proof.statements] == [False, True, True]


def test_a_failed_transfer_is_no_proof() -> None:
    decode = Counters(prompt_tokens_received=100, transfers=1, bytes_transferred=1, failed_transfers=1)
    assert not prove_disaggregation(Counters(prompt_tokens_computed=100), decode, prompt_tokens=100).holds


def test_counters_are_compared_with_those_before() -> None:
    assert Counters(finished=3, transfers=2) - Counters(finished=1) == Counters(finished=2, transfers=2)
