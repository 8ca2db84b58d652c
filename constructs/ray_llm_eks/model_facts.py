"""Facts about models: their shape, from a profile (``facts/models.toml``) or from a Hugging Face ``config.json``."""

from __future__ import annotations

import fnmatch
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from .errors import ConfigurationError

MAX_CONFIG_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class LinearAttention:
    """A Gated DeltaNet layer: its state is of one size, whatever the length of a request."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int

    @property
    def key_width(self) -> int:
        """Width of all keys of a token (queries have the same)."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Width of all values of a token."""
        return self.value_heads * self.value_dim


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture of experts in place of the feed-forward layer."""

    count: int
    per_token: int
    ffn: int
    shared_ffn: int = 0


@dataclass(frozen=True, kw_only=True)
class Vision:
    """A vision tower beside the language model."""

    layers: int
    hidden: int
    ffn: int
    parameters: int


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """The shape of a decoder model. Sizes are in elements, not bytes."""

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    linear_layers: int = 0
    """How many of ``layers`` keep a recurrent state instead of a KV cache."""
    sliding_layers: int = 0
    """How many of ``layers`` attend only to the last ``sliding_window`` tokens."""
    sliding_window: int = 0
    gated_attention: bool = False
    """Attention with an output gate: the query projection is twice as wide (Qwen3.5, Qwen3-Next)."""
    tied_embeddings: bool = False
    max_positions: int = 0
    """Longest context the model was made for; 0 if unknown."""
    linear: LinearAttention | None = None
    experts: Experts | None = None
    vision: Vision | None = None
    quantization: str | None = None
    """How the checkpoint's own weights are quantized (vLLM's name of the method); None for bf16."""
    parameters_published: int = 0

    @property
    def hybrid(self) -> bool:
        """Whether layers with a recurrent state stand beside attention layers."""
        return self.linear_layers > 0

    @property
    def full_attention_layers(self) -> int:
        """Layers whose KV cache grows with every token."""
        return self.layers - self.linear_layers - self.sliding_layers

    @property
    def embedding_parameters(self) -> int:
        """Token embedding and output projection; once if they are tied."""
        return self.vocabulary * self.hidden * (1 if self.tied_embeddings else 2)

    @property
    def matrix_parameters(self) -> int:
        """Everything that quantization makes smaller: the matrices of all layers."""
        attention = self.layers - self.linear_layers
        return (
            attention * self._attention_parameters()
            + self.linear_layers * self._linear_parameters()
            + self.layers * self._feed_forward_parameters()
        )

    @property
    def parameters(self) -> int:
        """Parameters of the language model, without a vision tower."""
        return self.embedding_parameters + self.matrix_parameters + self.layers * 2 * self.hidden + self.hidden

    def _attention_parameters(self) -> int:
        queries = self.heads * self.head_dim
        return self.hidden * (queries * (3 if self.gated_attention else 2) + 2 * self.kv_heads * self.head_dim)

    def _linear_parameters(self) -> int:
        if self.linear is None:
            return 0
        keys, values = self.linear.key_width, self.linear.value_width
        convolution = (2 * keys + values) * self.linear.conv_kernel
        return self.hidden * (2 * keys + 3 * values + 2 * self.linear.value_heads) + convolution

    def _feed_forward_parameters(self) -> int:
        if self.experts is None:
            return 3 * self.hidden * self.ffn
        experts = self.experts
        return self.hidden * (3 * (experts.count * experts.ffn + experts.shared_ffn) + experts.count)


@dataclass(frozen=True, kw_only=True)
class NamedModel:
    """What is known of a model by its name; ``facts`` is None if its shape is not."""

    name: str
    hybrid: bool
    gated: bool
    facts: ModelFacts | None


@cache
def _profiles() -> dict[str, ModelFacts]:
    data = tomllib.loads((files("ray_llm_eks") / "facts" / "models.toml").read_text("utf-8"))
    return {name: _profile(name, fields) for name, fields in data.items()}


def _profile(name: str, fields: Mapping[str, Any]) -> ModelFacts:
    known = dict(fields)
    if linear := known.pop("linear", None):
        known["linear"] = LinearAttention(**linear)
    if vision := known.pop("vision", None):
        known["vision"] = Vision(**vision)
    return ModelFacts(name=name, **known)


@cache
def _families() -> dict[str, Any]:
    return tomllib.loads((files("ray_llm_eks") / "facts" / "model_families.toml").read_text("utf-8"))


def model_names() -> tuple[str, ...]:
    """The names of all profiles."""
    return tuple(_profiles())


def model_by_name(name: str) -> NamedModel:
    """What the profiles and families say of a model.

    Args:
        name: a hub id, or a path whose last part is the model's name (``/mnt/model-cache/models/Qwen3.5-9B``).
    """
    last = name.rstrip("/").rsplit("/", 1)[-1].lower()
    facts = _match_profile(name, last)
    families = _families()
    hub_id = name.lower()
    local = name.startswith("/") or "://" in name
    return NamedModel(
        name=name,
        hybrid=facts.hybrid if facts else any(fnmatch.fnmatchcase(last, pattern) for pattern in families["hybrid"]),
        gated=not local and any(fnmatch.fnmatchcase(hub_id, pattern) for pattern in families["gated"]),
        facts=facts,
    )


def _match_profile(name: str, last: str) -> ModelFacts | None:
    for profile_name, profile in _profiles().items():
        base = profile_name.rsplit("/", 1)[-1].lower()
        if last == base:
            return profile
        for ending, method in _families()["quantized"].items():
            if last == base + ending:
                return replace(profile, name=name, quantization=method)
    return None


def model_from_config(path: Path) -> ModelFacts:
    """Reads a Hugging Face ``config.json``.

    Raises:
        ConfigurationError: unreadable, or of a kind of model whose memory this library cannot estimate.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
        if len(data) > MAX_CONFIG_BYTES:
            raise ConfigurationError(f"{path} is larger than 1 MiB: not a model's config.json")
        config: object = json.loads(data)
    except FileNotFoundError:
        raise ConfigurationError(f"there is no file {path}") from None
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is no JSON: {error}") from None
    if not isinstance(config, dict):
        raise ConfigurationError(f"{path} is not a model's config.json: it must be a mapping")
    return model_from_mapping(cast(dict[str, Any], config), name=str(path))


def model_from_mapping(config: Mapping[str, Any], *, name: str) -> ModelFacts:
    """The shape in a ``config.json`` already read.

    Raises:
        ConfigurationError: a size is missing or makes no sense, or the architecture is one that cannot be estimated.
    """
    text = config.get("text_config")
    shape = cast(Mapping[str, Any], text) if isinstance(text, Mapping) else config
    reader = _Sizes(shape, name)
    if shape.get("kv_lora_rank"):
        raise ConfigurationError(f"{name}: multi-head latent attention (MLA) is not estimated")
    layers = reader.size("num_hidden_layers")
    hidden = reader.size("hidden_size")
    heads = reader.size("num_attention_heads")
    linear_layers, sliding_layers = _layer_kinds(shape, layers, name)
    return ModelFacts(
        name=name,
        layers=layers,
        linear_layers=linear_layers,
        sliding_layers=sliding_layers,
        sliding_window=reader.size("sliding_window", 0) if sliding_layers else 0,
        hidden=hidden,
        ffn=reader.size("intermediate_size", reader.size("moe_intermediate_size", 0)),
        heads=heads,
        kv_heads=reader.size("num_key_value_heads", heads),
        head_dim=reader.size("head_dim", max(hidden // heads, 1)),
        gated_attention=bool(shape.get("attn_output_gate", linear_layers > 0)),
        vocabulary=reader.size("vocab_size"),
        tied_embeddings=bool(shape.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
        max_positions=reader.size("max_position_embeddings", 0),
        linear=_linear(reader) if linear_layers else None,
        experts=_experts(reader, shape),
        vision=_vision(config.get("vision_config"), hidden, name),
        quantization=_quantization(config.get("quantization_config") or shape.get("quantization_config")),
    )


class _Sizes:
    """Reads whole numbers out of a config, saying which one is wrong."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self._values = values
        self._name = name

    def size(self, key: str, default: int | None = None) -> int:
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or not 0 <= value < 10**9
            or (value == 0 and default is None)
        ):
            raise ConfigurationError(f"{self._name}: {key} must be a positive whole number, not {value!r}")
        return value


def _layer_kinds(shape: Mapping[str, Any], layers: int, name: str) -> tuple[int, int]:
    kinds = shape.get("layer_types")
    if isinstance(kinds, list):
        known = cast(list[object], kinds)
        if unknown := {str(kind) for kind in known} - {"full_attention", "sliding_attention", "linear_attention"}:
            raise ConfigurationError(f"{name}: layers of kind {', '.join(sorted(unknown))} are not estimated")
        return known.count("linear_attention"), known.count("sliding_attention")
    if interval := shape.get("full_attention_interval"):
        if not isinstance(interval, int) or interval < 1:
            raise ConfigurationError(f"{name}: full_attention_interval must be a positive whole number")
        return layers - layers // interval, 0
    if any(key in shape for key in ("mamba_d_state", "ssm_state_size", "mamba_num_heads", "hybrid_override_pattern")):
        raise ConfigurationError(f"{name}: Mamba layers are not estimated")
    return 0, 0


def _linear(reader: _Sizes) -> LinearAttention:
    return LinearAttention(
        key_heads=reader.size("linear_num_key_heads"),
        value_heads=reader.size("linear_num_value_heads"),
        key_dim=reader.size("linear_key_head_dim"),
        value_dim=reader.size("linear_value_head_dim"),
        conv_kernel=reader.size("linear_conv_kernel_dim"),
    )


def _experts(reader: _Sizes, shape: Mapping[str, Any]) -> Experts | None:
    count = next((key for key in ("num_experts", "num_local_experts", "n_routed_experts") if shape.get(key)), None)
    if count is None:
        return None
    return Experts(
        count=reader.size(count),
        per_token=reader.size("num_experts_per_tok", 1),
        ffn=reader.size("moe_intermediate_size", reader.size("intermediate_size", 0)),
        shared_ffn=reader.size("shared_expert_intermediate_size", 0),
    )


def _vision(vision: object, hidden: int, name: str) -> Vision | None:
    if not isinstance(vision, Mapping):
        return None
    reader = _Sizes(cast(Mapping[str, Any], vision), f"{name}: vision_config")
    layers = reader.size("depth", reader.size("num_hidden_layers", 0))
    width = reader.size("hidden_size", 0)
    ffn = reader.size("intermediate_size", 4 * width)
    merged = width * reader.size("spatial_merge_size", 2) ** 2
    blocks = layers * (4 * width * width + 2 * width * ffn)
    return Vision(layers=layers, hidden=width, ffn=ffn, parameters=blocks + merged * (merged + hidden))


def _quantization(config: object) -> str | None:
    if not isinstance(config, Mapping):
        return None
    quantization = cast(Mapping[str, Any], config)
    method = str(quantization.get("quant_method", "")) or None
    bits = quantization.get("bits")
    return f"{method}-int8" if method in ("gptq", "awq") and bits == 8 else method
