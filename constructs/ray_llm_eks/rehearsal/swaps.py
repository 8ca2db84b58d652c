"""What a machine without GPU, AWS account and model hub forces: the deployed YAML in, the rehearsal's and a diff out.

Pure: text in, text out. Everything that is not swapped here is what will be deployed.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal, cast

import yaml

from .architecture import Architecture
from .errors import NotRehearsable

PD_BUILDER = "ray.serve.llm:build_pd_openai_app"
OPENAI_BUILDER = "ray.serve.llm:build_openai_app"
DP_BUILDER = "ray.serve.llm:build_dp_openai_app"

CALLBACK = "rehearsal_callback.LocalModel"
STAND_IN_CONTEXT = 32768
"""Longest context of the stand-in model, in tokens."""

BASE_GB = 2.6
ENGINE_GB = 1.9
"""Measured (proportional set size): Ray with controller, proxy and ingress, and each engine with its replica."""

Transport = Literal["UCX", "LIBFABRIC"]

NO_GPU_ARGUMENTS: Mapping[str, str] = {
    "quantization": "the stand-in's weights are not quantized",
    "kv_cache_dtype": "the CPU build keeps the KV cache in the model's own type",
    "load_format": "the stand-in is a plain safetensors file",
    "speculative_config": "the stand-in has no draft model",
    "speculative_model": "the stand-in has no draft model",
    "additional_config": "kernel choices are for GPUs",
    "attention_backend": "there is one attention backend on CPU",
    "attention_config": "there is one attention backend on CPU",
    "compilation_config": "nothing is compiled here",
    "cuda_graph_sizes": "there are no CUDA graphs here",
    "cudagraph_capture_sizes": "there are no CUDA graphs here",
    "distributed_executor_backend": "Ray Serve LLM chooses it for CPU engines",
    "kernel_config": "kernel choices are for GPUs",
    "moe_backend": "kernel choices are for GPUs",
    "async_scheduling": "the CPU build schedules by itself",
    "model_loader_extra_config": "the stand-in is a plain safetensors file",
    "revision": "the stand-in has no revisions",
    "tokenizer_revision": "the stand-in has no revisions",
    "hf_config_path": "the stand-in has its own configuration",
    "hf_overrides": "the stand-in has its own configuration",
    "tokenizer": "the stand-in has its own tokenizer",
}
"""Engine arguments that mean nothing to a CPU engine or to the stand-in, and why."""

FOREIGN_TOOL_PARSERS = "tool_call_parser"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What this machine has to offer."""

    memory_gb: float
    """Memory for the rehearsal, in GB (1e9 bytes)."""
    model: str
    """Folder of the model that stands in."""
    architecture: Architecture
    stand_in: bool = True
    """Whether ``model`` is made on the spot; False for a user's own."""
    transports: Sequence[Transport] = ("UCX",)
    """NIXL backends that can be loaded here."""
    http_port: int | None = None
    """Serve's port, if it cannot be the deployed one because Ray shares this machine's network."""


@dataclass(frozen=True, kw_only=True)
class Swap:
    """One thing that the machine forces."""

    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class EngineRole:
    """One kind of engine, as it is rehearsed."""

    name: str
    """prefill, decode or llm."""
    replicas: int
    engine_kwargs: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RehearsalPlan:
    """The config to rehearse and what has been found in it."""

    config: dict[str, Any]
    text: str
    diff: str
    swaps: tuple[Swap, ...]
    notes: tuple[str, ...]
    """What is not rehearsed, and why."""
    app_name: str
    model_id: str
    disaggregated: bool
    architecture: Architecture
    transport: Transport | None
    roles: tuple[EngineRole, ...]
    http_port: int
    cpus: int
    resources: Mapping[str, int]
    """Logical resources that Ray must be started with, so that every bundle of the file can be placed."""

    @property
    def engines(self) -> int:
        """Number of engines that will run."""
        return sum(role.replicas for role in self.roles)


def plan(text: str, *, path: str, machine: Machine, transport: Transport | None = None) -> RehearsalPlan:
    """Swaps what the machine forces.

    Args:
        text: the Serve config that would be deployed.
        path: its name, for messages and the diff.
        machine: what this machine has.
        transport: a NIXL backend to use instead of the file's own.

    Raises:
        NotRehearsable: the file cannot be rehearsed here, with the reason.
    """
    return _Planner(text, path, machine, transport).plan()


def model_sources(text: str, *, path: str) -> tuple[str, ...]:
    """The model sources (or ids, where there is no source) that a Serve config names, each once.

    Raises:
        NotRehearsable: no Ray Serve config with one LLM application.
    """
    app = _application(_load(text, path), path)
    sources: list[str] = []
    for _, _, config in _llm_configs(app, path):
        loading = _mapping(config.get("model_loading_config"), path, "model_loading_config")
        sources.append(str(loading.get("model_source") or loading.get("model_id")))
    return tuple(dict.fromkeys(sources))


@dataclass
class _Planner:
    text: str
    path: str
    machine: Machine
    wanted_transport: Transport | None
    swaps: list[Swap] = field(default_factory=list[Swap])
    notes: list[str] = field(default_factory=list[str])

    def plan(self) -> RehearsalPlan:
        deployed = _load(self.text, self.path)
        # Written and read again: what YAML anchors share must not change in two places at once.
        config = _load(_dump(deployed), self.path)
        app = _application(config, self.path)
        llms = list(_llm_configs(app, self.path))
        disaggregated = app["import_path"] == PD_BUILDER
        http: dict[str, Any] = config.get("http_options") or {}
        if self.machine.http_port is not None:
            http = config["http_options"] = {**http, "host": "127.0.0.1", "port": self.machine.http_port}
            self._say("http_options", "Ray shares this machine's network: loopback only, and a port that is free")
        replicas = self._replicas([(name, llm) for name, _, llm in llms])
        transports: set[Transport] = set()
        roles: list[EngineRole] = []
        cpus, resources = 2.0, dict[str, float]()
        for (name, where, llm), count in zip(llms, replicas, strict=True):
            self._model(where, llm)
            self._placement(where, llm)
            self._deployment(where, llm, count)
            engine = llm.setdefault("engine_kwargs", {})
            self._engine(f"{where}.engine_kwargs", engine)
            if "kv_transfer_config" in engine:
                transports.add(self._transfer(f"{where}.engine_kwargs.kv_transfer_config", engine))
            llm["callback_config"] = {"callback_class": CALLBACK}
            self._say(
                f"{where}.callback_config", "the model lies on this machine: no download before the engine starts"
            )
            for bundle in _bundles(llm):
                cpus += count * (float(bundle.get("CPU", 0)) + 1)
                for resource, amount in bundle.items():
                    if resource != "CPU":
                        resources[resource] = resources.get(resource, 0) + count * float(amount)
            roles.append(EngineRole(name=name, replicas=count, engine_kwargs=engine))
        loading: dict[str, Any] = llms[0][2]["model_loading_config"]
        return RehearsalPlan(
            config=config,
            text=_dump(config),
            diff=self._diff(deployed, config),
            swaps=tuple(dict.fromkeys(self.swaps)),
            notes=tuple(self.notes),
            app_name=str(app.get("name", "default")),
            model_id=str(loading["model_id"]),
            disaggregated=disaggregated,
            architecture=self.machine.architecture,
            transport=next(iter(transports), None),
            roles=tuple(roles),
            http_port=int(http.get("port", 8000)),
            cpus=math.ceil(cpus) + 4,
            resources={name: math.ceil(amount) for name, amount in resources.items()},
        )

    def _say(self, path: str, reason: str) -> None:
        self.swaps.append(Swap(path=path, reason=reason))

    def _model(self, where: str, llm: dict[str, Any]) -> None:
        loading: dict[str, Any] = llm["model_loading_config"]
        loading["model_source"] = self.machine.model
        kind = "of the same kind" if self.machine.stand_in else "that you named"
        self._say(f"{where}.model_loading_config.model_source", f"a {self.machine.architecture} model {kind}")
        if loading.pop("tokenizer_source", None) is not None:
            self._say(f"{where}.model_loading_config.tokenizer_source", "the stand-in has its own tokenizer")
        if llm.pop("lora_config", None) is not None:
            self._say(f"{where}.lora_config", "adapters lie in a bucket, which cannot be reached from here")
            self.notes.append(
                "loading LoRA adapters from their bucket is not rehearsed; the engine runs with LoRA enabled"
            )
        if llm.pop("accelerator_type", None) is not None:
            self._say(f"{where}.accelerator_type", "there is no GPU")
        if llm.pop("accelerator_config", None) is not None:
            self._say(f"{where}.accelerator_config", "there is no GPU")

    def _placement(self, where: str, llm: dict[str, Any]) -> None:
        engine: dict[str, Any] = llm.get("engine_kwargs") or {}
        placement: dict[str, Any] = llm.get("placement_group_config") or {}
        workers = int(engine.get("tensor_parallel_size") or 1) * int(engine.get("pipeline_parallel_size") or 1)
        bundles = [dict(bundle) for bundle in _bundles(llm)]
        if not bundles:
            placement, bundles = {}, [{"CPU": 1}]
            self._say(f"{where}.placement_group_config", "without bundles each engine asks for a GPU")
        elif any("GPU" in bundle for bundle in bundles):
            self._say(f"{where}.placement_group_config", "there is no GPU")
        if workers > 1:
            bundles = bundles[:1]
        for bundle in bundles:
            bundle.pop("GPU", None)
            for name in [name for name in bundle if name.startswith("accelerator_type:")]:
                del bundle[name]
        placement = {k: v for k, v in placement.items() if k not in ("bundles", "bundle_per_worker")}
        llm["placement_group_config"] = {"bundles": bundles, **placement}

    def _deployment(self, where: str, llm: dict[str, Any], count: int) -> None:
        deployment: dict[str, Any] = llm.setdefault("deployment_config", {})
        autoscaling = deployment.get("autoscaling_config")
        if isinstance(autoscaling, dict):
            scaling = cast(dict[str, Any], autoscaling)
            most = max(count, 1)
            for key, default in (("min_replicas", 1), ("initial_replicas", None), ("max_replicas", 1)):
                value = scaling.get(key, default)
                if isinstance(value, int) and (value > most or value < 1):
                    scaling[key] = most if value > most else 1
                    self._say(f"{where}.deployment_config.autoscaling_config.{key}", self._memory_reason())
        elif deployment.get("num_replicas", 1) != count:
            deployment["num_replicas"] = count
            self._say(f"{where}.deployment_config.num_replicas", self._memory_reason())
        options = deployment.get("ray_actor_options")
        if isinstance(options, dict):
            for key in ("num_gpus", "accelerator_type", "label_selector", "fallback_strategy"):
                if cast(dict[str, Any], options).pop(key, None) is not None:
                    self._say(f"{where}.deployment_config.ray_actor_options.{key}", "there is one node, without a GPU")
        if deployment.pop("placement_group_bundle_label_selector", None) is not None:
            self._say(f"{where}.deployment_config.placement_group_bundle_label_selector", "there is one node")

    def _memory_reason(self) -> str:
        return f"{self.machine.memory_gb:.1f} GB of memory: {BASE_GB} for Ray, {ENGINE_GB} an engine"

    def _engine(self, where: str, engine: dict[str, Any]) -> None:
        wanted = "bfloat16" if self.machine.architecture == "hybrid" else "float32"
        if engine.get("dtype") != wanted:
            engine["dtype"] = wanted
            self._say(
                f"{where}.dtype",
                "vLLM's CPU kernels for this architecture exist in bfloat16 only"
                if wanted == "bfloat16"
                else "exact enough to compare answers to the last token",
            )
        if not engine.get("enforce_eager"):
            engine["enforce_eager"] = True
            self._say(f"{where}.enforce_eager", "compiling for this CPU would take minutes")
        longest = engine.get("max_model_len")
        if self.machine.stand_in and not (isinstance(longest, int) and 0 < longest <= STAND_IN_CONTEXT):
            engine["max_model_len"] = 4096 if longest is None else STAND_IN_CONTEXT
            self._say(f"{where}.max_model_len", f"the stand-in ends at {STAND_IN_CONTEXT:,} tokens")
        for key in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
            if int(engine.get(key) or 1) > 1:
                self.notes.append(f"{key} {engine[key]} is not rehearsed: each engine is one process here")
                del engine[key]
                self._say(f"{where}.{key}", "one process an engine: there are too few cores for more")
        for key, reason in NO_GPU_ARGUMENTS.items():
            if key in engine:
                del engine[key]
                self._say(f"{where}.{key}", reason)

    def _transfer(self, where: str, engine: dict[str, Any]) -> Transport:
        transfer = _mapping(engine["kv_transfer_config"], self.path, "kv_transfer_config")
        connector = transfer.get("kv_connector")
        if connector != "NixlConnector":
            raise NotRehearsable(
                f"{self.path}: kv_connector {connector} cannot be rehearsed; NixlConnector is the one that runs on CPU"
            )
        if transfer.get("kv_buffer_device") != "cpu":
            transfer["kv_buffer_device"] = "cpu"
            self._say(f"{where}.kv_buffer_device", "there is no GPU memory")
        extra: dict[str, Any] = transfer.setdefault("kv_connector_extra_config", {})
        listed = extra.get("backends") or ["UCX"]
        deployed = [str(name) for name in cast(list[object], listed)] if isinstance(listed, list) else [str(listed)]
        chosen: Transport = self.wanted_transport or self._usable(deployed)
        if chosen not in self.machine.transports:
            raise NotRehearsable(f"{chosen} cannot be loaded on this machine; say --transport ucx")
        if deployed != [chosen]:
            extra["backends"] = [chosen]
            self._say(
                f"{where}.kv_connector_extra_config.backends",
                "asked for with --transport"
                if self.wanted_transport
                else f"{' and '.join(deployed)} cannot be loaded on this machine",
            )
        return chosen

    def _usable(self, deployed: Sequence[str]) -> Transport:
        for transport in self.machine.transports:
            if transport in deployed:
                return transport
        return "UCX"

    def _replicas(self, llms: Sequence[tuple[str, Mapping[str, Any]]]) -> list[int]:
        """How many of each the memory allows: one each at least, then as many as the file says, the smallest first."""
        wanted: list[int] = []
        for _, llm in llms:
            deployment: Mapping[str, Any] = llm.get("deployment_config") or {}
            scaling: Mapping[str, Any] = deployment.get("autoscaling_config") or {}
            number = scaling.get("max_replicas") if scaling else deployment.get("num_replicas")
            wanted.append(number if isinstance(number, int) and number > 0 else 1)
        allowed = int((self.machine.memory_gb - BASE_GB) / ENGINE_GB)
        if allowed < len(llms):
            raise NotRehearsable(
                f"{self.path}: {len(llms)} engines need {BASE_GB + len(llms) * ENGINE_GB:.1f} GB of memory, "
                f"{self.machine.memory_gb:.1f} GB are free; close other programs"
            )
        counts = [1] * len(llms)
        while sum(counts) < allowed:
            candidates = [i for i, count in enumerate(counts) if count < wanted[i]]
            if not candidates:
                break
            counts[min(candidates, key=lambda i: counts[i])] += 1
        for (name, _), count, number in zip(llms, counts, wanted, strict=True):
            if count < number:
                self.notes.append(f"{name}: {count} of {number} replicas ({self._memory_reason()})")
        return counts

    def _diff(self, deployed: dict[str, Any], rehearsed: dict[str, Any]) -> str:
        name = PurePath(self.path).name
        lines = difflib.unified_diff(
            _dump(deployed).splitlines(),
            _dump(rehearsed).splitlines(),
            f"{name} (deployed)",
            f"{name} (rehearsed)",
            lineterm="",
        )
        return "\n".join(lines)


def _load(text: str, path: str) -> dict[str, Any]:
    try:
        document: object = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise NotRehearsable(f"{path} is no valid YAML: {error}") from None
    return _mapping(document, path, "the file")


def _application(config: dict[str, Any], path: str) -> dict[str, Any]:
    applications = config.get("applications")
    if not isinstance(applications, list) or not applications:
        raise NotRehearsable(f"{path} is not a Ray Serve config: it must be a mapping with a list of applications")
    apps = cast(list[object], applications)
    if len(apps) > 1:
        raise NotRehearsable(
            f"{path} has {len(apps)} applications; one at a time can be rehearsed: give each its own file"
        )
    app = _mapping(apps[0], path, "applications[0]")
    builder = app.get("import_path")
    if builder == DP_BUILDER:
        raise NotRehearsable(f"{path}: {DP_BUILDER} needs a group of engines on GPUs; vLLM's CPU build has none")
    if builder not in (PD_BUILDER, OPENAI_BUILDER):
        raise NotRehearsable(f"{path}: import_path {builder!r} is no application of Ray Serve LLM: write {PD_BUILDER}")
    return app


def _llm_configs(app: dict[str, Any], path: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, place and content of each LLM config; the content may be changed in place."""
    args = _mapping(app.get("args"), path, "args")
    if app["import_path"] == PD_BUILDER:
        for name in ("prefill", "decode"):
            key = f"{name}_config"
            yield name, key, _llm_config(args.get(key), path, key)
        return
    configs = args.get("llm_configs")
    if not isinstance(configs, list) or not configs:
        raise NotRehearsable(f"{path}: args.llm_configs must be a list of at least one LLM config")
    for index, config in enumerate(cast(list[object], configs)):
        where = f"llm_configs[{index}]"
        yield "llm", where, _llm_config(config, path, where)


def _llm_config(config: object, path: str, where: str) -> dict[str, Any]:
    if isinstance(config, str):
        raise NotRehearsable(f"{path}: {where} names another file ({config}); write its content here instead")
    content = _mapping(config, path, where)
    loading = _mapping(content.get("model_loading_config"), path, f"{where}.model_loading_config")
    if not loading.get("model_id"):
        raise NotRehearsable(f"{path}: {where}.model_loading_config has no model_id")
    for key in ("engine_kwargs", "deployment_config", "placement_group_config"):
        if content.get(key) is not None:
            _mapping(content[key], path, f"{where}.{key}")
    return content


def _bundles(llm: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    placement: Mapping[str, Any] = llm.get("placement_group_config") or {}
    if placement.get("bundle_per_worker"):
        return [placement["bundle_per_worker"]]
    return list(placement.get("bundles") or [])


def _mapping(value: object, path: str, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NotRehearsable(f"{path}: {what} must be a mapping, not {type(value).__name__}")
    return cast(dict[str, Any], value)


class _Plain(yaml.SafeDumper):
    """Writes shared parts out in full, so that a diff shows where they differ."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _dump(config: Mapping[str, Any]) -> str:
    return yaml.dump(dict(config), Dumper=_Plain, sort_keys=False, allow_unicode=True)
