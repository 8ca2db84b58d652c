"""What rules find, where a CDK user meets it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ray_llm_eks.errors import ConfigurationError
from tests.synthesized import ROOT, build, stack

SHIPPED = (ROOT / "serve_configs" / "qwen3.5-9b-pd.yaml").read_text("utf-8")


def information(settings: Mapping[str, Any]) -> str:
    """The information that the CDK passes on beside the template."""
    metadata = json.loads(stack("Serving", settings).template_file.with_name("RayLlmServing.metadata.json").read_text())
    return "\n".join(entry["data"] for entry in metadata["/RayLlmServing/Service"] if entry["type"] == "aws:cdk:info")


def test_errors_stop_the_synthesis_all_at_once_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(SHIPPED.replace("[LIBFABRIC]", "[libfabric]").replace("dtype: bfloat16", "dtipe: bfloat16"))
    with pytest.raises(ConfigurationError) as caught:
        build({"serving": {"serve_config": str(file)}})
    message = str(caught.value)
    lines = file.read_text("utf-8").splitlines()
    for wrong in ("[libfabric]", "dtipe"):
        [number] = [n for n, line in enumerate(lines, 1) if wrong in line]
        assert f"{number} | " in message, message
    assert "2 errors" in message


def test_memory_is_shown_as_information() -> None:
    assert "memory of prefill on g6.8xlarge" in information({})


def test_a_silenced_rule_shows_that_it_is(tmp_path: Path) -> None:
    file = tmp_path / "lower.yaml"
    file.write_text(SHIPPED.replace("[LIBFABRIC]", "[libfabric]"))
    with pytest.raises(ConfigurationError, match=r"\[([a-z-]+)\]") as caught:
        build({"serving": {"serve_config": str(file)}})
    rule = str(caught.value).split("error [")[1].split("]")[0]
    settings = {"serving": {"serve_config": str(file)}, "rules": {"silence": {rule: "tried on our own nodes"}}}
    assert "(silenced: tried on our own nodes)" in information(settings)
