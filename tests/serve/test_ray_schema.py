"""Our typed model against Ray's real classes: what they accept we accept, what they refuse we refuse."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ray_llm_eks.errors import DocumentError
from ray_llm_eks.rules import check_serve_config
from ray_llm_eks.serve_config import ServeConfig
from tests.unit.rules.example import (
    G6,
    Change,
    Config,
    aggregated_config,
    both,
    engine,
    kwargs,
    pd_config,
    put,
    text_of,
    transfer,
)

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("RAY_LLM_SERVE_PYTHON", ROOT / ".venv-serve" / "bin" / "python"))

SERVE_SIDE = ROOT / "constructs" / "ray_llm_eks" / "rehearsal" / "serve_side"
"""Holds the sitecustomize.py that the CPU build needs."""

pytestmark = [
    pytest.mark.serve,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"the serve environment is not set up: there is no {PYTHON}"),
]

RAYS_BUSINESS = frozenset(
    {
        "ray-schema",
        "deployment-option",
        "application-clash",
        "unknown-engine-argument",
        "reserved-engine-argument",
        "executor-backend",
        "model-ids-differ",
        "transfer-missing",
    }
)
"""The rules that say what Ray's classes and builders say; the others look further."""


@dataclass(frozen=True)
class Sample:
    """One file of the corpus."""

    name: str
    text: str


def changed(name: str, change: Change, base: Config | None = None) -> Sample:
    config = pd_config() if base is None else base
    change(config)
    return Sample(name, text_of(config))


def decode(*path: Any) -> Change:
    return lambda config: put(engine(config), *path)


def argument(name: str, value: Any) -> Change:
    return lambda config: put(kwargs(config), name, value)


def application(*path: Any) -> Change:
    return lambda config: put(config["applications"][0], *path)


def top(*path: Any) -> Change:
    return lambda config: put(config, *path)


def drop(*path: Any) -> Change:
    def remove(config: Config) -> None:
        target: Any = engine(config)
        for key in path[:-1]:
            target = target[key]
        del target[path[-1]]

    return remove


def llm(*path: Any) -> Change:
    return lambda config: put(engine(config, "llm"), *path)


def second(**changes: Any) -> Change:
    def add(config: Config) -> None:
        config["applications"].append({"name": "b", "import_path": "a.b:c", "route_prefix": "/b", **changes})

    return add


GROUP = "placement_group_config"
OPTIONS = "deployment_config"


def corpus() -> list[Sample]:
    """Files that are broken in one place, and their good neighbours."""
    changes: dict[str, Change] = {
        "good": lambda config: None,
        "unknown key in LLMConfig": decode("bogus", 1),
        "unknown key in model_loading_config": decode("model_loading_config", "bogus", 1),
        "model_id a number": decode("model_loading_config", "model_id", 7),
        "model_id missing": drop("model_loading_config", "model_id"),
        "model_loading_config missing": drop("model_loading_config"),
        "model_loading_config a list": decode("model_loading_config", []),
        "model_source null": both(lambda config: put(config, "model_loading_config", "model_source", None)),
        "model_source s3": both(lambda config: put(config, "model_loading_config", "model_source", "s3://b/k")),
        "model_source mirror": both(
            lambda config: put(config, "model_loading_config", "model_source", {"bucket_uri": "s3://b/k"})
        ),
        "model_source https mirror": decode("model_loading_config", "model_source", {"bucket_uri": "https://b/k"}),
        "model_source mirror with region": decode(
            "model_loading_config", "model_source", {"bucket_uri": "s3://b/k", "region": "x"}
        ),
        "model_source a number": decode("model_loading_config", "model_source", 3),
        "model ids differ": decode("model_loading_config", "model_id", "other"),
        "llm_engine lower case": decode("llm_engine", "vllm"),
        "engine_kwargs null": decode("engine_kwargs", None),
        "engine_kwargs a list": decode("engine_kwargs", []),
        "no kv_transfer_config": drop("engine_kwargs", "kv_transfer_config"),
        "kv_transfer_config null": argument("kv_transfer_config", None),
        "kv_transfer_config of an unknown connector": argument("kv_transfer_config", transfer(kv_connector="Bogus")),
        "unknown engine argument": argument("task", "generate"),
        "frontend argument": argument("enable_auto_tool_choice", True),
        "model as engine argument": argument("model", "x"),
        "served_model_name as engine argument": argument("served_model_name", "x"),
        "executor mp": argument("distributed_executor_backend", "mp"),
        "executor null": argument("distributed_executor_backend", None),
        "executor ray": argument("distributed_executor_backend", "ray"),
        "executor mp on CPUs": lambda config: (
            put(kwargs(config), "distributed_executor_backend", "mp"),
            put(engine(config), GROUP, {"bundles": [{"CPU": 1}]}),
        ),
        "no statistics": argument("disable_log_stats", True),
        "log_engine_metrics a word": decode("log_engine_metrics", "maybe"),
        "accelerator L4": decode("accelerator_type", "L4"),
        "accelerator A10": decode("accelerator_type", "A10"),
        "accelerator l4": decode("accelerator_type", "l4"),
        "accelerator with CPU bundles": lambda config: (
            put(engine(config), "accelerator_type", "L4"),
            put(engine(config), GROUP, {"bundles": [{"CPU": 1}]}),
        ),
        "accelerator_config unknown": decode("accelerator_config", {"kind": "npu"}),
        "accelerator_config without kind": decode("accelerator_config", {}),
        "accelerator_config cpu with L4": lambda config: (
            put(engine(config), "accelerator_type", "L4"),
            put(engine(config), "accelerator_config", {"kind": "cpu"}),
        ),
        "bundles and bundle_per_worker": decode(GROUP, {"bundles": [{"GPU": 1}], "bundle_per_worker": {"GPU": 1}}),
        "bundle_per_worker": decode(GROUP, {"bundle_per_worker": {"GPU": 1, "decode": 1}}),
        "no bundles at all": decode(GROUP, {"strategy": "PACK"}),
        "strategy lower case": decode(GROUP, "strategy", "pack"),
        "unknown key in placement group": decode(GROUP, "bundle_label_selector", []),
        "negative GPU": decode(GROUP, {"bundles": [{"GPU": -1}]}),
        "GPU as text": decode(GROUP, {"bundles": [{"GPU": "1"}]}),
        "resource as text": decode(GROUP, {"bundles": [{"GPU": 1, "decode": "1"}]}),
        "fractional GPU": decode(GROUP, {"bundles": [{"GPU": 0.5}]}),
        "empty placement group": decode(GROUP, {}),
        "placement group null": decode(GROUP, None),
        "num_replicas 2": decode(OPTIONS, {"num_replicas": 2}),
        "num_replicas 0": decode(OPTIONS, {"num_replicas": 0}),
        "num_replicas -1": decode(OPTIONS, {"num_replicas": -1}),
        "num_replicas auto": decode(OPTIONS, {"num_replicas": "auto"}),
        "num_replicas many": decode(OPTIONS, {"num_replicas": "many"}),
        "num_replicas and autoscaling": decode(OPTIONS, {"num_replicas": 1, "autoscaling_config": {"max_replicas": 2}}),
        "autoscaling": decode(OPTIONS, {"autoscaling_config": {"min_replicas": 0, "max_replicas": 2}}),
        "autoscaling out of order": decode(OPTIONS, {"autoscaling_config": {"min_replicas": 3, "max_replicas": 2}}),
        "initial out of range": decode(OPTIONS, {"autoscaling_config": {"initial_replicas": 3, "max_replicas": 2}}),
        "autoscaling unknown key": decode(OPTIONS, {"autoscaling_config": {"max_replica": 2}}),
        "max_replicas 0": decode(OPTIONS, {"autoscaling_config": {"max_replicas": 0}}),
        "aggregation unknown": decode(OPTIONS, {"autoscaling_config": {"aggregation_function": "median"}}),
        "unknown deployment option": decode(OPTIONS, {"replicas": 1}),
        "max_ongoing_requests 0": decode(OPTIONS, {"max_ongoing_requests": 0}),
        "max_queued_requests 0": decode(OPTIONS, {"max_queued_requests": 0}),
        "max_queued_requests -1": decode(OPTIONS, {"max_queued_requests": -1}),
        "health check 0": decode(OPTIONS, {"health_check_period_s": 0}),
        "bundles in deployment_config": decode(OPTIONS, {"placement_group_bundles": [{"GPU": 1}]}),
        "max_replicas_per_node": decode(OPTIONS, {"max_replicas_per_node": 1}),
        "rolling_update_percentage 2": decode(OPTIONS, {"rolling_update_percentage": 2}),
        "ray_actor_options": decode(OPTIONS, {"ray_actor_options": {"num_cpus": 2}}),
        "lora local path": decode("lora_config", {"dynamic_lora_loading_path": "/mnt/lora"}),
        "lora s3": decode("lora_config", {"dynamic_lora_loading_path": "s3://b/lora"}),
        "lora unknown key": decode("lora_config", {"bogus": 1}),
        "lora 0 adapters": decode("lora_config", {"max_num_adapters_per_replica": 0}),
        "num_router_replicas": decode("experimental_configs", {"num_router_replicas": 1}),
        "port base": decode("experimental_configs", {"NIXL_SIDE_CHANNEL_PORT_BASE": 21000}),
        "runtime_env a list": decode("runtime_env", []),
        "callback unknown key": decode("callback_config", {"bogus": 1}),
        "unknown key in PDServingArgs": application("args", "bogus", 1),
        "deprecated proxy_deployment_config": application("args", "proxy_deployment_config", {"num_replicas": 1}),
        "ingress unknown option": application("args", "ingress_deployment_config", {"bogus": 1}),
        "ingress options": application("args", "ingress_deployment_config", {"num_replicas": 1}),
        "ingress both": application(
            "args", "ingress_deployment_config", {"num_replicas": 1, "autoscaling_config": {"max_replicas": 2}}
        ),
        "ingress_cls_config unknown key": application("args", "ingress_cls_config", {"bogus": 1}),
        "args a list": application("args", [1]),
        "args missing": lambda config: config["applications"][0].pop("args"),
        "decode_config missing": lambda config: config["applications"][0]["args"].pop("decode_config"),
        "decode_config a list": application("args", "decode_config", []),
        "import_path without module": application("import_path", "abc"),
        "import_path two colons": application("import_path", "a:b:c"),
        "import_path missing": lambda config: config["applications"][0].pop("import_path"),
        "import_path elsewhere": lambda config: config["applications"][0].update(import_path="a.b.c", args={"x": 1}),
        "host in an application": application("host", "0.0.0.0"),
        "port in an application": application("port", 8000),
        "empty name": application("name", ""),
        "name a number": application("name", 5),
        "local working_dir": application("runtime_env", {"working_dir": "."}),
        "remote working_dir": application("runtime_env", {"working_dir": "s3://b/code.zip"}),
        "unknown key in an application": application("bogus", 1),
        "route_prefix null": application("route_prefix", None),
        "unknown top key": top("bogus", 1),
        "proxy_location lower case": top("proxy_location", "headonly"),
        "proxy_location": top("proxy_location", "HeadOnly"),
        "http port as text": top("http_options", {"port": "8001"}),
        "http port a word": top("http_options", {"port": "http"}),
        "ssl key alone": top("http_options", {"ssl_keyfile": "/k"}),
        "ssl certificate alone": top("http_options", {"ssl_certfile": "/c"}),
        "target_capacity 101": top("target_capacity", 101),
        "logging unknown key": top("logging_config", {"bogus": 1}),
        "logging": top("logging_config", {"log_level": "DEBUG"}),
        "two routes": second(route_prefix="/"),
        "two names": second(name="llm"),
        "two applications": second(),
        "override": application("deployments", [{"name": "x", "num_replicas": 2}]),
        "override without name": application("deployments", [{"num_replicas": 2}]),
        "override many": application("deployments", [{"name": "x", "num_replicas": "many"}]),
        "override 0": application("deployments", [{"name": "x", "num_replicas": 0}]),
    }
    samples = [changed(name, change) for name, change in changes.items()]
    samples += [
        changed("aggregated", lambda config: None, aggregated_config()),
        changed("aggregated unknown key", llm("bogus", 1), aggregated_config()),
        changed("aggregated engine argument", llm("engine_kwargs", "task", "x"), aggregated_config()),
        changed("aggregated no configs", application("args", {"llm_configs": []}), aggregated_config()),
        changed("aggregated no list", application("args", {"llm_configs": {}}), aggregated_config()),
        changed("aggregated nothing", application("args", {}), aggregated_config()),
        changed(
            "aggregated twice one id",
            lambda config: config["applications"][0]["args"]["llm_configs"].append(engine(config, "llm")),
            aggregated_config(),
        ),
    ]
    parallel = aggregated_config()
    parallel["applications"][0].update(
        import_path="ray.serve.llm:build_dp_openai_app", args={"llm_config": engine(parallel, "llm")}
    )
    samples.append(Sample("data parallel", text_of(parallel)))
    parallel["applications"][0]["args"]["llm_configs"] = []
    samples.append(Sample("data parallel unknown key", text_of(parallel)))
    samples += [Sample(path.name, path.read_text("utf-8")) for path in sorted((ROOT / "serve_configs").glob("*.yaml"))]
    return samples


SAMPLES = corpus()


@cache
def rays_verdicts() -> dict[str, str | None]:
    """What Ray says, in one child process for all (importing Ray and vLLM takes ten seconds and more)."""
    done = subprocess.run(
        [PYTHON, Path(__file__).with_name("ray_verdicts.py")],
        input=json.dumps([sample.text for sample in SAMPLES]),
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={**os.environ, "PYTHONPATH": str(SERVE_SIDE)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    verdicts: list[str | None] = json.loads(done.stdout.splitlines()[-1])
    return dict(zip((sample.name for sample in SAMPLES), verdicts, strict=True))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_we_say_what_ray_says(sample: Sample) -> None:
    rays = rays_verdicts()[sample.name]
    try:
        report = check_serve_config(ServeConfig.parse(sample.text), G6)
        ours = [f"{f.rule}: {f.message}" for f in report.errors if f.rule in RAYS_BUSINESS]
    except DocumentError as error:
        ours = [str(error)]
    assert bool(ours) == bool(rays), f"Ray: {rays or 'accepted'}; we: {ours or 'accepted'}"


def test_the_corpus_has_both_kinds() -> None:
    refused = [verdict for verdict in rays_verdicts().values() if verdict]
    assert len(refused) > 50
    assert len(SAMPLES) - len(refused) > 30
