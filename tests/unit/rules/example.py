"""Serve configs for tests: one that passes, and small changes to it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import yaml

from ray_llm_eks.instances import instance_facts
from ray_llm_eks.rules import Deployment, NodePool, Report, check_serve_config, one_pool
from ray_llm_eks.serve_config import ServeConfig

Config = dict[str, Any]
Change = Callable[[Config], object]

G6 = one_pool(instance_facts("g6.8xlarge"), 2)


def on(instance_type: str, nodes: int = 2, **changes: Any) -> Deployment:
    """A deployment of one node group; keyword arguments change the deployment."""
    return replace(one_pool(instance_facts(instance_type), nodes), **changes)


def two_pools(first: str, decode: str, nodes: int = 1) -> Deployment:
    """Prefill on one kind of node, decode on another."""
    pools = {
        role: NodePool(name=name, facts=instance_facts(kind), max_nodes=nodes)
        for role, name, kind in (("*", "gpu", first), ("decode", "decode", decode))
    }
    return Deployment(pools=pools)


def transfer(**changes: Any) -> Config:
    """A kv_transfer_config."""
    return {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"backends": ["LIBFABRIC"]},
        **changes,
    }


def llm_config(role: str, *, source: str = "Qwen/Qwen3.5-9B", disaggregated: bool = True) -> Config:
    """An LLMConfig that passes on g6.8xlarge."""
    arguments: Config = {
        "dtype": "bfloat16",
        "max_model_len": 4096,
        "gpu_memory_utilization": 0.9,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 16,
        "language_model_only": True,
    }
    if "Qwen3.5" not in source:
        del arguments["language_model_only"]
        arguments["block_size"] = 64
    if disaggregated:
        arguments["kv_transfer_config"] = transfer()
    return {
        "model_loading_config": {"model_id": "model", "model_source": source},
        "deployment_config": {"num_replicas": 1},
        "placement_group_config": {"bundles": [{"CPU": 4, "GPU": 1, role: 1}]},
        "engine_kwargs": arguments,
    }


def pd_config(source: str = "Qwen/Qwen3.5-9B") -> Config:
    """A prefill/decode file that passes on two g6.8xlarge."""
    return {
        "applications": [
            {
                "name": "llm",
                "route_prefix": "/",
                "import_path": "ray.serve.llm:build_pd_openai_app",
                "args": {f"{role}_config": llm_config(role, source=source) for role in ("prefill", "decode")},
            }
        ]
    }


def aggregated_config(source: str = "Qwen/Qwen3.5-9B") -> Config:
    """A file with one kind of engine that passes on g6.8xlarge."""
    return {
        "applications": [
            {
                "name": "llm",
                "route_prefix": "/",
                "import_path": "ray.serve.llm:build_openai_app",
                "args": {"llm_configs": [llm_config("llm", source=source, disaggregated=False)]},
            }
        ]
    }


def engine(config: Config, role: str = "decode") -> Config:
    """The LLMConfig of a role (``llm``: the first of an aggregated file)."""
    arguments = config["applications"][0]["args"]
    return arguments["llm_configs"][0] if role == "llm" else arguments[f"{role}_config"]


def kwargs(config: Config, role: str = "decode") -> Config:
    """The engine arguments of a role."""
    return engine(config, role)["engine_kwargs"]


def both(change: Callable[[Config], object]) -> Change:
    """Applies a change of one LLMConfig to prefill and decode."""
    return lambda config: [change(engine(config, role)) for role in ("prefill", "decode")]


def put(target: Config, *path: Any) -> None:
    """Sets the value at the end of a path: ``put(config, "a", "b", 3)`` makes ``config["a"]["b"]`` 3."""
    *keys, last, value = path
    for key in keys:
        target = target.setdefault(key, {}) if isinstance(key, str) else target[key]
    target[last] = value


def text_of(config: Config) -> str:
    """The config as YAML, without anchors."""

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    return yaml.dump(copy.deepcopy(config), Dumper=Dumper, sort_keys=False)


def report_of(config: Config | str, deployment: Deployment = G6, silenced: Mapping[str, str] | None = None) -> Report:
    """Checks a config."""
    text = config if isinstance(config, str) else text_of(config)
    return check_serve_config(ServeConfig.parse(text, path="serve.yaml"), deployment, silenced)
