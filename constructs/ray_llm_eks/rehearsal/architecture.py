"""Which kind of stand-in a model needs: a hybrid one (recurrent state beside the KV cache) or a dense one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, cast

from ray_llm_eks.model_facts import model_by_name

Architecture = Literal["hybrid", "dense"]

RECURRENT_LAYERS = ("linear_attention", "mamba", "mamba2", "recurrent", "gated_deltanet", "kda", "conv")


def architecture_of(source: str) -> Architecture:
    """The kind of a model, from its ``config.json`` if ``source`` is a folder with one, else from its name."""
    config = Path(source) / "config.json"
    if not config.is_file():
        return "hybrid" if model_by_name(source).hybrid else "dense"
    content = cast(dict[str, object], json.loads(config.read_text("utf-8")))
    text = cast(dict[str, object], content.get("text_config") or content)
    layers = cast(list[str], text.get("layer_types") or text.get("layers_block_type") or [])
    recurrent = any(layer in RECURRENT_LAYERS for layer in layers) or "ssm_state_size" in text
    return "hybrid" if recurrent else "dense"
