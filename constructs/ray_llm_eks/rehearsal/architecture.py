"""Which kind of stand-in a model needs: a hybrid one (recurrent state beside the KV cache) or a dense one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Literal, cast

Architecture = Literal["hybrid", "dense"]

HYBRID_NAMES = re.compile(
    r"qwen3\.5|qwen3-next|qwen-?3\.6|mamba|jamba|zamba|bamba|falcon-h1|nemotron-h|nemotron-nano|kimi-linear|granite-4|"
    r"lfm2|minimax-text|ring-.*linear|plamo-?2",
    re.IGNORECASE,
)
"""Families whose layers keep a recurrent state, by the names that their checkpoints go by."""

RECURRENT_LAYERS = ("linear_attention", "mamba", "mamba2", "recurrent", "gated_deltanet", "kda", "conv")


def architecture_of(source: str) -> Architecture:
    """The kind of a model, from its ``config.json`` if ``source`` is a folder with one, else from its name."""
    config = Path(source) / "config.json"
    if config.is_file():
        content = cast(dict[str, object], json.loads(config.read_text("utf-8")))
        text = cast(dict[str, object], content.get("text_config") or content)
        layers = cast(list[str], text.get("layer_types") or text.get("layers_block_type") or [])
        recurrent = any(layer in RECURRENT_LAYERS for layer in layers) or "ssm_state_size" in text
        return "hybrid" if recurrent else "dense"
    return "hybrid" if HYBRID_NAMES.search(source) else "dense"
