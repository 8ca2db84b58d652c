"""What rules look at: the file, its applications and engines, the deployment. Nothing here fails on odd values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ray_llm_eks.memory import DEFAULT_BLOCK_SIZE, DEFAULT_UTILIZATION, EngineSize, MemoryEstimate, estimate
from ray_llm_eks.model_facts import ModelFacts, NamedModel, model_by_name
from ray_llm_eks.serve_config import PD_BUILDER, Role, ServeConfig
from ray_llm_eks.yaml_document import Document, Value, YamlPath

from .deployment import Deployment, NodePool

NIXL_CONNECTORS = ("NixlConnector", "NixlPullConnector", "NixlPushConnector")
STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """One kv_transfer_config: an engine's own, or a part of its MultiConnector."""

    path: YamlPath
    values: Mapping[str, Value]

    @property
    def connector(self) -> str:
        """Name of the connector; empty if none is named."""
        name = self.values.get("kv_connector")
        return name if isinstance(name, str) else ""

    @property
    def nixl(self) -> bool:
        """Whether NIXL moves the KV cache."""
        return self.connector in NIXL_CONNECTORS

    @property
    def extra(self) -> Mapping[str, Value]:
        """kv_connector_extra_config; empty if it is missing or no mapping."""
        extra = self.values.get("kv_connector_extra_config")
        return extra if isinstance(extra, dict) else {}

    @property
    def extra_path(self) -> YamlPath:
        """Where kv_connector_extra_config is or would be."""
        return (*self.path, "kv_connector_extra_config")

    @property
    def backends(self) -> Value:
        """The backends as written; None if nothing is."""
        return self.extra.get("backends")

    @property
    def buffer_device(self) -> str:
        """Where KV is handed over from; vLLM's default on a GPU is cuda."""
        device = self.values.get("kv_buffer_device")
        return device if isinstance(device, str) else "cuda"


class Engine:
    """One LLMConfig: a role of an application."""

    def __init__(self, document: Document, role: Role, pool: NodePool, facts: ModelFacts | None) -> None:
        self.document = document
        self.role = role
        self.path = role.path
        self.pool = pool
        self._given_facts = facts

    @property
    def name(self) -> str:
        """The role: prefill, decode or llm."""
        return self.role.name

    def get(self, *path: str | int) -> Value:
        """The value at a path below this LLMConfig; None if there is none."""
        return self.document.get((*self.path, *path))

    def at(self, *path: str | int) -> YamlPath:
        """The whole path of something below this LLMConfig."""
        return (*self.path, *path)

    def argument_path(self, name: str) -> YamlPath:
        """The whole path of an engine argument; of engine_kwargs if it is not given."""
        return self.at("engine_kwargs", name) if name in self.arguments else self.at("engine_kwargs")

    @cached_property
    def arguments(self) -> Mapping[str, Value]:
        """engine_kwargs; empty if it is missing or no mapping."""
        return _mapping(self.get("engine_kwargs"))

    def number(self, name: str, default: int) -> int:
        """A whole-number engine argument; the default if it is missing or no such number."""
        return self.number_or_none(name) or default

    def number_or_none(self, name: str) -> int | None:
        """A whole-number engine argument; None if it is missing or no such number."""
        value = self.arguments.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 60 else None

    def text(self, name: str, default: str = "auto") -> str:
        """A textual engine argument."""
        value = self.arguments.get(name)
        return value if isinstance(value, str) else default

    def flag(self, name: str) -> bool:
        """Whether an engine argument is true."""
        return self.arguments.get(name) is True

    @property
    def tensor_parallel(self) -> int:
        """tensor_parallel_size."""
        return self.number("tensor_parallel_size", 1)

    @property
    def pipeline_parallel(self) -> int:
        """pipeline_parallel_size."""
        return self.number("pipeline_parallel_size", 1)

    @property
    def environment_places(self) -> tuple[YamlPath, ...]:
        """Where environment variables of this engine can be set, the strongest place last."""
        return (
            (*self.path[:2], "runtime_env", "env_vars"),
            self.at("deployment_config", "ray_actor_options", "runtime_env", "env_vars"),
            self.at("runtime_env", "env_vars"),
        )

    @cached_property
    def environment(self) -> Mapping[str, tuple[Value, YamlPath]]:
        """Environment variables that the file sets for this engine, with their places.

        Ray lays runtime_env over runtime_env key by key: the env_vars of the strongest place replace all others.
        """
        for path in reversed(self.environment_places):
            if isinstance(values := self.document.get(path), dict):
                return {name: (value, (*path, name)) for name, value in values.items()}
        return {}

    @cached_property
    def transfer(self) -> Transfer | None:
        """The engine's kv_transfer_config, if it has one that is a mapping."""
        values = self.arguments.get("kv_transfer_config")
        return (
            Transfer(path=self.at("engine_kwargs", "kv_transfer_config"), values=values)
            if isinstance(values, dict)
            else None
        )

    def transfers(self) -> Iterator[Transfer]:
        """The engine's kv_transfer_config and, if it is a MultiConnector's, those inside it."""
        if self.transfer is None:
            return
        yield self.transfer
        inner = self.transfer.extra.get("connectors")
        if self.transfer.connector == "MultiConnector" and isinstance(inner, list):
            for number, values in enumerate(inner):
                if isinstance(values, dict):
                    yield Transfer(path=(*self.transfer.extra_path, "connectors", number), values=values)

    def nixl_transfers(self) -> list[Transfer]:
        """Those of the transfers that NIXL does."""
        return [transfer for transfer in self.transfers() if transfer.nixl]

    @cached_property
    def model(self) -> NamedModel | None:
        """What is known of the model by its name (or that of its mirror); None if the file names none."""
        mirror = self.get("model_loading_config", "model_source", "bucket_uri")
        name = self.role.model_source or (mirror if isinstance(mirror, str) else None)
        return model_by_name(name) if name else None

    @property
    def model_name(self) -> str:
        """The model's name, for messages."""
        return self.model.name if self.model else "the model"

    @property
    def facts(self) -> ModelFacts | None:
        """The model's shape: the config.json given, or the profile of its name."""
        return self._given_facts or (self.model.facts if self.model else None)

    @property
    def hybrid(self) -> bool:
        """Whether the model keeps a recurrent state beside its KV cache."""
        return self.facts.hybrid if self.facts else bool(self.model and self.model.hybrid)

    @cached_property
    def size(self) -> EngineSize:
        """The engine arguments that matter for memory; what makes no sense counts as not given."""
        utilization = self.arguments.get("gpu_memory_utilization", DEFAULT_UTILIZATION)
        if isinstance(utilization, bool) or not isinstance(utilization, (int, float)) or not 0 < utilization <= 1:
            utilization = DEFAULT_UTILIZATION
        speculative = _mapping(self.arguments.get("speculative_config")).get("num_speculative_tokens")
        quantization = self.arguments.get("quantization")
        return EngineSize(
            utilization=utilization,
            max_model_len=self.number_or_none("max_model_len"),
            max_num_batched_tokens=self.number_or_none("max_num_batched_tokens"),
            max_num_seqs=self.number_or_none("max_num_seqs"),
            tensor_parallel=self.tensor_parallel,
            pipeline_parallel=self.pipeline_parallel,
            quantization=quantization if isinstance(quantization, str) else None,
            dtype_bytes=4 if self.text("dtype") in ("float32", "float") else 2,
            kv_cache_dtype=self.text("kv_cache_dtype"),
            block_size=self.number("block_size", DEFAULT_BLOCK_SIZE),
            state_bytes=STATE_BYTES.get(self.text("mamba_ssm_cache_dtype"), 4),
            language_model_only=self.flag("language_model_only"),
            enforce_eager=self.flag("enforce_eager"),
            prefix_caching=self.flag("enable_prefix_caching"),
            speculative_tokens=speculative if isinstance(speculative, int) and 0 < speculative < 64 else 0,
            loras=self.number("max_loras", 1) if self.flag("enable_lora") else 0,
            lora_rank=self.number("max_lora_rank", 16),
            kv_cache_memory_bytes=self.number_or_none("kv_cache_memory_bytes"),
        )

    @cached_property
    def memory(self) -> MemoryEstimate | None:
        """The memory of one GPU of the engine; None if the model's shape or the node's GPU is not known."""
        node = self.pool.facts
        if self.facts is None or not node.gpus or self.size.tensor_parallel * self.size.pipeline_parallel > 4096:
            return None
        a100 = node.gpu == "a100"
        found = estimate(self.facts, self.size, gpu_memory_mib=node.gpu_memory_mib, a100=a100)
        if self.arguments.get("max_model_len") == -1 and found.requests < 1 and found.longest_request:
            # vLLM then takes the longest context that fits.
            size = replace(self.size, max_model_len=found.longest_request)
            found = estimate(self.facts, size, gpu_memory_mib=node.gpu_memory_mib, a100=a100)
        return found


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Prefill and decode of one application."""

    prefill: Engine
    decode: Engine


class Subject:
    """All that a rule may look at."""

    def __init__(self, config: ServeConfig, deployment: Deployment, facts: ModelFacts | None = None) -> None:
        self.config = config
        self.document = config.document
        self.deployment = deployment
        self.engines = [Engine(self.document, role, deployment.pool(role.name), facts) for role in config.roles]

    @cached_property
    def applications(self) -> list[YamlPath]:
        """The paths of all applications."""
        applications = self.document.get(("applications",))
        return [
            ("applications", number) for number in range(len(applications) if isinstance(applications, list) else 0)
        ]

    @cached_property
    def pairs(self) -> list[Pair]:
        """Prefill and decode, for each application that has both."""
        pairs: list[Pair] = []
        for application in self.applications:
            if self.document.get((*application, "import_path")) != PD_BUILDER:
                continue
            engines = {engine.name: engine for engine in self.engines if engine.path[:2] == application}
            if {"prefill", "decode"} <= engines.keys():
                pairs.append(Pair(prefill=engines["prefill"], decode=engines["decode"]))
        return pairs


def _mapping(value: Value) -> Mapping[str, Value]:
    return value if isinstance(value, dict) else {}
