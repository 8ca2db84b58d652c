"""Model facts: profiles, names, and config.json files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ray_llm_eks.errors import ConfigurationError
from ray_llm_eks.model_facts import model_by_name, model_from_config, model_from_mapping, model_names

QWEN35: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": {
        "num_hidden_layers": 32,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 8,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 248320,
        "attn_output_gate": True,
        "max_position_embeddings": 262144,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    },
    "tie_word_embeddings": False,
    "vision_config": {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "spatial_merge_size": 2},
}
LLAMA: dict[str, Any] = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


@pytest.mark.parametrize("name", model_names())
def test_computed_parameters_agree_with_the_model_card(name: str) -> None:
    facts = model_by_name(name).facts
    assert facts
    assert facts.parameters == pytest.approx(facts.parameters_published, rel=0.01)


def test_a_config_file_gives_what_the_profile_says(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN35))
    found, profile = model_from_config(path), model_by_name("Qwen/Qwen3.5-9B").facts
    assert profile
    assert found.hybrid
    assert found.parameters == profile.parameters
    assert (found.linear, found.kv_heads, found.head_dim) == (profile.linear, profile.kv_heads, profile.head_dim)
    assert found.vision
    assert profile.vision
    assert found.vision.parameters == pytest.approx(profile.vision.parameters, rel=0.05)


def test_a_dense_config() -> None:
    found = model_from_mapping(LLAMA, name="config.json")
    assert not found.hybrid
    assert found.head_dim == 128
    assert found.parameters == pytest.approx(8.03e9, rel=0.01)


def test_experts_count_all_of_them() -> None:
    config = {**LLAMA, "vocab_size": 32000, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 14336}
    found = model_from_mapping(config, name="config.json")
    assert found.parameters == pytest.approx(46.7e9, rel=0.01)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden_size": None}, "hidden_size must be a positive whole number, not None"),
        ({"hidden_size": "4096"}, "hidden_size must be a positive whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive whole number"),
        ({"kv_lora_rank": 512}, "multi-head latent attention"),
        ({"mamba_d_state": 128}, "Mamba layers are not estimated"),
        ({"layer_types": ["conv"] * 32}, "layers of kind conv are not estimated"),
        ({"full_attention_interval": 0.5}, "full_attention_interval"),
    ],
)
def test_what_cannot_be_estimated_is_said(change: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        model_from_mapping({**LLAMA, **change}, name="config.json")


@pytest.mark.parametrize("data", [b"", b"[1, 2]", b"{", b"\xff\xfe{", b'{"a": ' * 3000])
def test_a_file_that_is_no_config(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with pytest.raises(ConfigurationError):
        model_from_config(path)


@pytest.mark.parametrize(
    ("name", "hybrid", "gated", "quantization"),
    [
        ("Qwen/Qwen3.5-9B", True, False, None),
        ("/mnt/model-cache/models/Qwen3.5-9B", True, False, None),
        ("/mnt/model-cache/models/Qwen3.5-9B/", True, False, None),
        ("Qwen/Qwen3-8B-FP8", False, False, "fp8"),
        ("Qwen/Qwen3-8B-AWQ", False, False, "awq"),
        ("meta-llama/Llama-3.1-8B-Instruct", False, True, None),
    ],
)
def test_names_that_have_a_profile(name: str, hybrid: bool, gated: bool, quantization: str | None) -> None:
    model = model_by_name(name)
    assert model.facts
    assert (model.hybrid, model.gated, model.facts.quantization) == (hybrid, gated, quantization)


@pytest.mark.parametrize(
    ("name", "hybrid", "gated"),
    [
        ("Qwen/Qwen3.5-122B-A10B", True, False),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", True, False),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", True, False),
        ("google/gemma-3-27b-it", False, True),
        ("acme/chatter", False, False),
    ],
)
def test_families_where_the_shape_is_not_known(name: str, hybrid: bool, gated: bool) -> None:
    model = model_by_name(name)
    assert model.facts is None
    assert (model.hybrid, model.gated) == (hybrid, gated)
