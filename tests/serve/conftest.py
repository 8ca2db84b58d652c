"""A real Ray Serve LLM application with the real vLLM and NIXL, started once for a module."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import OpenAI

from ray_llm_eks.rehearsal.environment import find_serve_python
from ray_llm_eks.rehearsal.errors import NotRehearsable
from ray_llm_eks.rehearsal.progress import Progress
from ray_llm_eks.rehearsal.rehearse import Options, Rehearsal
from ray_llm_eks.rehearsal.sandbox import listen
from tests.synthesized import ROOT

DEFAULT = ROOT / "serve_configs" / "qwen3.5-9b-pd.yaml"

Config = dict[str, Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.serve)
            if item.path.name != "test_ray_schema.py":
                item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def serve_python() -> Path:
    try:
        return find_serve_python(None)
    except NotRehearsable as error:
        pytest.fail(f"{error} (or run the other tests only: FAST=1 make test)", pytrace=False)


def free_port() -> int:
    with listen(0) as probe:
        return int(probe.getsockname()[1])


def both_roles(config: Config) -> list[Config]:
    args = config["applications"][0]["args"]
    return [args["prefill_config"], args["decode_config"]]


def dense_file(folder: Path, change: Callable[[Config], None] = lambda _: None) -> Path:
    """The default file with a dense model in place of the hybrid one, and further changes."""
    config: Config = copy.deepcopy(yaml.safe_load(DEFAULT.read_text("utf-8")))
    for role in both_roles(config):
        role["model_loading_config"] |= {"model_id": "tiny", "model_source": "Qwen/Qwen3-8B"}
        role["engine_kwargs"] = copy.deepcopy(role["engine_kwargs"])
        role["engine_kwargs"].pop("language_model_only", None)
    change(config)
    path = folder / "dense.yaml"
    path.write_text(yaml.safe_dump(config), "utf-8")
    return path


def rehearsal(file: Path, serve_python: Path, **options: Any) -> AbstractContextManager[Rehearsal]:
    values: dict[str, Any] = {"file": file, "port": free_port(), "serve_python": serve_python, **options}
    return Rehearsal(Options(**values), Progress(stream=sys.stderr))


@pytest.fixture(scope="module")
def dense(serve_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    """Prefill and decode of a dense model over UCX, with tool calls, noticing dead engines soon."""

    def change(config: Config) -> None:
        for role in both_roles(config):
            role["engine_kwargs"] |= {
                "enable_auto_tool_choice": True,
                "tool_call_parser": "hermes",
                # A random model would fill the gaps that JSON allows with white space, for ever.
                "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
            }
            role["deployment_config"] |= {"health_check_period_s": 2, "health_check_timeout_s": 5}

    file = dense_file(tmp_path_factory.mktemp("dense"), change)
    with rehearsal(file, serve_python, transport="UCX") as started:
        started.start()
        yield started
    assert not started.left


@pytest.fixture
def client(dense: Rehearsal) -> OpenAI:
    return OpenAI(base_url=f"http://127.0.0.1:{dense.port}/v1", api_key="none", max_retries=0, timeout=120)
