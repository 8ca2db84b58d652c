"""The rehearsal's YAML differs from the deployed one in what the machine forces, and in nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ray_llm_eks.rehearsal.architecture import architecture_of
from ray_llm_eks.rehearsal.errors import NotRehearsable
from ray_llm_eks.rehearsal.swaps import Machine, RehearsalPlan, Transport, model_sources, plan
from tests.synthesized import ROOT

SHIPPED = sorted((ROOT / "serve_configs").glob("*.yaml"))
DEFAULT = ROOT / "serve_configs" / "qwen3.5-9b-pd.yaml"


def machine(**changes: Any) -> Machine:
    values: dict[str, Any] = {
        "memory_gb": 12.0,
        "model": "/tmp/model",
        "architecture": "hybrid",
        "transports": ("LIBFABRIC", "UCX"),
    }
    return Machine(**{**values, **changes})


def rehearsed(text: str, *, transport: Transport | None = None, **changes: Any) -> RehearsalPlan:
    return plan(text, path="file.yaml", machine=machine(**changes), transport=transport)


def edited(**changes: Any) -> str:
    """The default file, with changes to the prefill config."""
    document = yaml.safe_load(DEFAULT.read_text("utf-8"))
    prefill = document["applications"][0]["args"]["prefill_config"]
    prefill["engine_kwargs"] = {**prefill["engine_kwargs"], **changes.pop("engine_kwargs", {})}
    prefill.update(changes)
    return yaml.safe_dump(document)


def changed_lines(diff: str) -> list[str]:
    return [line for line in diff.splitlines()[2:] if line[0] in "+-"]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_file_can_be_rehearsed(path: Path) -> None:
    text = path.read_text("utf-8")
    (source,) = model_sources(text, path=path.name)
    found = rehearsed(text, architecture=architecture_of(source))
    assert found.engines >= 1
    assert "GPU" not in found.text


def test_the_default_file_changes_only_where_the_machine_forces_it() -> None:
    diff = rehearsed(DEFAULT.read_text("utf-8")).diff
    one_role = [
        "-        model_source: Qwen/Qwen3.5-9B",
        "+        model_source: /tmp/model",
        "-          GPU: 1",
        "+          kv_buffer_device: cpu",
        "+        enforce_eager: true",
        "+      callback_config:",
        "+        callback_class: rehearsal_callback.LocalModel",
    ]
    assert changed_lines(diff) == one_role * 2


def test_each_swap_says_why() -> None:
    found = rehearsed(DEFAULT.read_text("utf-8"))
    assert all(swap.reason for swap in found.swaps)
    assert {swap.path.split(".")[0] for swap in found.swaps} == {"prefill_config", "decode_config"}


def test_a_role_of_its_own_gets_resources_to_be_placed() -> None:
    found = rehearsed(DEFAULT.read_text("utf-8"))
    assert found.resources == {"prefill": 1, "decode": 1}
    assert found.cpus >= 2 * (4 + 1)


def test_the_files_own_transport_is_kept_where_it_can_be_loaded() -> None:
    assert rehearsed(DEFAULT.read_text("utf-8")).transport == "LIBFABRIC"


def test_ucx_stands_in_and_the_reason_is_said() -> None:
    found = rehearsed(DEFAULT.read_text("utf-8"), transports=("UCX",))
    assert found.transport == "UCX"
    assert any("LIBFABRIC cannot be loaded" in swap.reason for swap in found.swaps)


def test_a_transport_that_was_asked_for_is_taken() -> None:
    assert rehearsed(DEFAULT.read_text("utf-8"), transport="UCX").transport == "UCX"


def test_a_transport_that_cannot_be_loaded_is_refused() -> None:
    with pytest.raises(NotRehearsable, match="--transport ucx"):
        rehearsed(DEFAULT.read_text("utf-8"), transport="LIBFABRIC", transports=("UCX",))


def test_a_dense_model_is_computed_in_float32() -> None:
    found = rehearsed(DEFAULT.read_text("utf-8"), architecture="dense")
    assert all(role.engine_kwargs["dtype"] == "float32" for role in found.roles)


@pytest.mark.parametrize(
    ("memory_gb", "replicas"), [(6.5, [1, 1]), (8.4, [2, 1]), (10.3, [3, 1]), (64, [3, 1])], ids=str
)
def test_memory_limits_the_number_of_engines(memory_gb: float, replicas: list[int]) -> None:
    text = edited(deployment_config={"num_replicas": 3})
    found = rehearsed(text, memory_gb=memory_gb)
    assert [role.replicas for role in found.roles] == replicas
    assert bool(found.notes) == (replicas[0] < 3)


def test_too_little_memory_for_one_engine_each_is_refused() -> None:
    with pytest.raises(NotRehearsable, match=r"2 engines need 6\.4 GB"):
        rehearsed(DEFAULT.read_text("utf-8"), memory_gb=6.0)


def test_autoscaling_stays_within_memory() -> None:
    text = edited(deployment_config={"autoscaling_config": {"min_replicas": 0, "max_replicas": 8}})
    scaling = rehearsed(text, memory_gb=7).config["applications"][0]["args"]["prefill_config"]["deployment_config"]
    assert scaling["autoscaling_config"] == {"min_replicas": 1, "max_replicas": 1}


@pytest.mark.parametrize(
    "argument", [{"quantization": "fp8"}, {"kv_cache_dtype": "fp8"}, {"load_format": "runai_streamer"}], ids=str
)
def test_arguments_that_mean_nothing_here_go_and_say_so(argument: dict[str, str]) -> None:
    found = rehearsed(edited(engine_kwargs=argument))
    (key,) = argument
    assert key not in found.roles[0].engine_kwargs
    assert any(swap.path.endswith(key) for swap in found.swaps)


def test_tensor_parallelism_is_said_not_to_be_rehearsed() -> None:
    bundle = {"bundle_per_worker": {"CPU": 4, "GPU": 1, "prefill": 1}, "strategy": "STRICT_PACK"}
    found = rehearsed(edited(engine_kwargs={"tensor_parallel_size": 2}, placement_group_config=bundle))
    assert "tensor_parallel_size" not in found.roles[0].engine_kwargs
    assert any("tensor_parallel_size 2" in note for note in found.notes)
    placement = found.config["applications"][0]["args"]["prefill_config"]["placement_group_config"]
    assert placement == {"bundles": [{"CPU": 4, "prefill": 1}], "strategy": "STRICT_PACK"}


def test_a_shared_network_means_loopback_and_a_free_port() -> None:
    found = rehearsed(DEFAULT.read_text("utf-8"), http_port=18000)
    assert found.config["http_options"] == {"host": "127.0.0.1", "port": 18000}
    assert found.http_port == 18000


def test_the_context_stays_unless_the_stand_in_is_shorter() -> None:
    assert rehearsed(DEFAULT.read_text("utf-8")).roles[0].engine_kwargs["max_model_len"] == 4096
    long = rehearsed(edited(engine_kwargs={"max_model_len": 131072}))
    assert long.roles[0].engine_kwargs["max_model_len"] == 32768


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("applications: [", "no valid YAML"),
        ("applications: []", "not a Ray Serve config"),
        ("just text", "must be a mapping"),
        ("applications: [{import_path: 'app:main'}]", "no application of Ray Serve LLM"),
        ("applications: [{import_path: 'ray.serve.llm:build_dp_openai_app'}]", "needs a group of engines"),
        ("applications: [{}, {}]", "2 applications"),
        ("applications: [{import_path: 'ray.serve.llm:build_openai_app', args: {llm_configs: []}}]", "at least one"),
        (
            "applications: [{import_path: 'ray.serve.llm:build_openai_app', args: {llm_configs: [a.yaml]}}]",
            "another file",
        ),
        ("applications: [{import_path: 'ray.serve.llm:build_pd_openai_app', args: {}}]", "prefill_config"),
    ],
    ids=lambda value: value[:40],
)
def test_what_cannot_be_rehearsed_says_why(text: str, message: str) -> None:
    with pytest.raises(NotRehearsable, match=message):
        rehearsed(text)


def test_another_connector_is_refused() -> None:
    transfer = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_producer"}
    with pytest.raises(NotRehearsable, match="LMCacheConnectorV1"):
        rehearsed(edited(engine_kwargs={"kv_transfer_config": transfer}))


@pytest.mark.parametrize(
    ("source", "architecture"),
    [
        ("Qwen/Qwen3.5-9B", "hybrid"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "hybrid"),
        ("Qwen/Qwen3-8B", "dense"),
        ("/mnt/model-cache/models/Qwen3.5-9B", "hybrid"),
        ("meta-llama/Llama-3.1-8B-Instruct", "dense"),
    ],
)
def test_a_models_name_decides_the_kind_of_stand_in(source: str, architecture: str) -> None:
    assert architecture_of(source) == architecture


@pytest.mark.parametrize(
    ("config", "architecture"),
    [
        ('{"layer_types": ["linear_attention", "full_attention"]}', "hybrid"),
        ('{"text_config": {"layer_types": ["mamba", "attention"]}}', "hybrid"),
        ('{"layer_types": ["sliding_attention", "full_attention"]}', "dense"),
        ('{"num_hidden_layers": 4}', "dense"),
    ],
)
def test_a_models_own_config_decides_better(config: str, architecture: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config, "utf-8")
    assert architecture_of(str(tmp_path)) == architecture
