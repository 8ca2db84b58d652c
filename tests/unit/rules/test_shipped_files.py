"""The Serve configs of this repository: no error and no warning on the nodes that each is made for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml

from ray_llm_eks.instances import instance_facts
from ray_llm_eks.rules import Deployment, one_pool
from ray_llm_eks.rules.check import check_serve_config
from ray_llm_eks.rules.subject import Subject
from ray_llm_eks.serve_config import ServeConfig
from ray_llm_eks.worker_pods import WorkerNodes, worker_groups
from tests.unit.rules.example import Config, engine, pd_config, put
from tools.make_editor_schema import OUT, editor_schema, text

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "serve_configs").glob("*.yaml"))


def nodes(instance_type: str, count: int = 2) -> Deployment:
    return one_pool(instance_facts(instance_type), count)


NATURAL = {
    "qwen3.5-9b-pd.yaml": nodes("g6.8xlarge"),
    "qwen3.5-9b-aggregated.yaml": nodes("g6.8xlarge"),
    "qwen3.5-9b-2p1d.yaml": nodes("g6.8xlarge", 3),
    "qwen3.5-9b-pd-s3.yaml": replace(nodes("g6.8xlarge"), stages_from_s3=True),
    "qwen3.5-9b-pd-tp2.yaml": nodes("g6.12xlarge"),
    "qwen3-8b-pd.yaml": nodes("g6e.8xlarge"),
    "qwen3-8b-lora.yaml": nodes("g6e.8xlarge"),
}


def test_every_shipped_file_is_named_here() -> None:
    assert {path.name for path in FILES} == set(NATURAL)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_is_wrong_on_its_nodes(path: Path) -> None:
    report = check_serve_config(ServeConfig.load(path), NATURAL[path.name])
    assert report.errors == [], report.text()
    assert report.warnings == [], report.text()
    # What remains is what GPU buffers cost without GPUDirect RDMA.
    assert {finding.rule for finding in report.infos} <= {"buffer-copies"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_there_is_room_for_several_full_length_requests(path: Path) -> None:
    engines = Subject(ServeConfig.load(path), NATURAL[path.name]).engines
    memories = [found.memory for found in engines if found.memory]
    assert len(memories) == len(engines) > 0
    for memory in memories:
        assert memory.requests >= 8
        assert memory.max_num_seqs <= 4 * memory.requests


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_its_worker_pods_can_be_made(path: Path) -> None:
    config, pool = ServeConfig.load(path), NATURAL[path.name].pool("*")
    where = WorkerNodes(facts=pool.facts, max_nodes=pool.max_nodes, node_role="gpu")
    assert worker_groups(config.roles, {role.name: where for role in config.roles})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_says_what_it_is_for_and_where_its_schema_is(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    head = [line for line in lines if line.startswith("#")]
    assert NATURAL[path.name].pool("*").facts.name in " ".join(head)
    schema = next(line for line in head if line.startswith("# yaml-language-server: $schema="))
    assert (path.parent / schema.partition("=")[2]).resolve() == OUT


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_editors_accept_it(path: Path) -> None:
    jsonschema.validate(yaml.safe_load(path.read_text("utf-8")), editor_schema())


def test_the_editor_schema_is_current() -> None:
    assert OUT.read_text("utf-8") == text(), "run tools/make_editor_schema.py"


def _set(*path: str, value: object) -> Callable[[Config], None]:
    return lambda config: put(engine(config), *path, value)


@pytest.mark.parametrize(
    "change",
    [
        _set("engine_kwargs", "task", value="generate"),
        _set("engine_kwargs", "max_num_seqs", value="many"),
        _set("model_loading_confg", value={}),
        _set("placement_group_config", "strategy", value="pack"),
    ],
    ids=["argument", "kind", "key", "choice"],
)
def test_editors_refuse_what_is_wrong(change: Callable[[Config], None]) -> None:
    config = pd_config()
    jsonschema.validate(config, editor_schema())
    change(config)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config, editor_schema())
