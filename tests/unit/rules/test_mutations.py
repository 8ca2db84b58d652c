"""Shipped files with random damage: an answer every time, never a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ray_llm_eks.errors import DocumentError
from ray_llm_eks.rules import check_serve_config
from ray_llm_eks.rules.machine import json_text
from ray_llm_eks.serve_config import ServeConfig
from tests.unit.rules.example import G6, text_of

ROOT = Path(__file__).parents[3]
TEXTS = [path.read_text("utf-8") for path in sorted((ROOT / "serve_configs").glob("*.yaml"))]
DOCUMENTS: list[Any] = [yaml.safe_load(text) for text in TEXTS]

SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=20),
    st.sampled_from(["auto", "LIBFABRIC", "cpu", "kv_both", "fp8", "Qwen/Qwen3-8B", "/mnt/model-cache/x", "s3://b/k"]),
    st.dates(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)
PUNCTUATION = st.sampled_from([*":-[]{}&*!|>%@`\"'#?,\n\t \0\x07", "<<: *engine", "---\n", "é", "\ud7ff", "on"])


def answer(text: str) -> None:
    try:
        config = ServeConfig.parse(text, path="serve.yaml")
    except DocumentError:
        return
    report = check_serve_config(config, G6)
    assert report.text()
    assert json_text([report])


@SLOW
@given(st.data())
def test_damaged_text(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(TEXTS))
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.sampled_from([0, 0, 1, 2, 10, 200])))
        text = text[:start] + data.draw(st.one_of(PUNCTUATION, st.text(max_size=5))) + text[end:]
    answer(text)


@SLOW
@given(st.data())
def test_other_values(data: st.DataObject) -> None:
    config = yaml.safe_load(data.draw(st.sampled_from(TEXTS)))
    for _ in range(data.draw(st.integers(1, 4))):
        places = list(_places(config))
        container, key = places[data.draw(st.integers(0, len(places) - 1))]
        action = data.draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if action == "replace":
            container[key] = data.draw(VALUES)
        elif action == "remove":
            del container[key]
        elif isinstance(container, dict):
            cast(dict[str, Any], container)[data.draw(st.text(max_size=12))] = data.draw(VALUES)
        if not list(_places(config)):
            break
    answer(text_of(config))


def _places(value: Any) -> list[tuple[Any, Any]]:
    keys: list[Any] = []
    container: Any = value
    if isinstance(value, dict):
        keys = list(cast(dict[str, Any], value))
    elif isinstance(value, list):
        keys = list(range(len(cast(list[Any], value))))
    return [(container, key) for key in keys] + [place for key in keys for place in _places(container[key])]
