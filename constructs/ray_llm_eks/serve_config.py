"""Reads a Ray Serve config file and finds what a deployment needs to know: the roles and their sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import yaml

from .errors import ConfigurationError

PD_BUILDER = "ray.serve.llm:build_pd_openai_app"
OPENAI_BUILDER = "ray.serve.llm:build_openai_app"
DP_BUILDER = "ray.serve.llm:build_dp_openai_app"


@dataclass(frozen=True, kw_only=True)
class Role:
    """One kind of engine in an application: prefill, decode, or llm where an engine does both."""

    name: str
    model_id: str
    model_source: str | None
    """Hub id or absolute path; None where the file names none, or one in another form."""
    replicas: int
    """Replicas to make room for: ``num_replicas``, or autoscaling's ``max_replicas``."""
    gpus_per_replica: int
    """Tensor parallel size times pipeline parallel size."""


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """A Ray Serve config file: its own text, and the roles found in it."""

    path: str
    text: str
    roles: tuple[Role, ...]

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode are engines of their own."""
        return any(role.name == "prefill" for role in self.roles)

    @property
    def hub_models(self) -> tuple[str, ...]:
        """The model hub ids that the engines load, each once."""
        sources = (role.model_source for role in self.roles)
        return tuple(dict.fromkeys(s for s in sources if s and not s.startswith("/") and "://" not in s))

    @classmethod
    def load(cls, path: Path) -> ServeConfig:
        """Reads a file.

        Raises:
            ConfigurationError: the file is missing, no text, no YAML, or not a Serve config.
        """
        try:
            text = path.read_text("utf-8")
        except FileNotFoundError:
            raise ConfigurationError(f"serving.serve_config: there is no file {path}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"serving.serve_config: cannot read {path}: {error}") from None
        return cls.parse(text, path=str(path))

    @classmethod
    def parse(cls, text: str, *, path: str = "<text>") -> ServeConfig:
        """Reads the text of a file.

        Raises:
            ConfigurationError: no YAML, or not a Serve config.
        """
        try:
            document: object = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigurationError(f"{path} is no valid YAML: {error}") from None
        applications = document.get("applications") if isinstance(document, dict) else None  # pyright: ignore
        if not isinstance(applications, list) or not applications:
            raise ConfigurationError(
                f"{path} is not a Ray Serve config: it must be a mapping with a list of applications"
            )
        roles = [role for app in cast(list[object], applications) for role in _roles(app, path)]
        return cls(path=path, text=text, roles=tuple(roles))


def _roles(application: object, path: str) -> Iterator[Role]:
    app = _mapping(application, path, "applications[]")
    builder = app.get("import_path")
    args = _mapping(app.get("args") or {}, path, "args")
    if builder == PD_BUILDER:
        for name in ("prefill", "decode"):
            yield _role(name, args.get(f"{name}_config"), path)
    elif builder in (OPENAI_BUILDER, DP_BUILDER):
        configs: object = args.get("llm_configs") or [args.get("llm_config")]
        if not isinstance(configs, Sequence) or isinstance(configs, str):
            raise ConfigurationError(f"{path}: args.llm_configs must be a list")
        for config in cast(Sequence[object], configs):
            yield _role("llm", config, path)


def _role(name: str, config: object, path: str) -> Role:
    config = _mapping(config, path, f"the configuration of {name}")
    loading = _mapping(config.get("model_loading_config") or {}, path, "model_loading_config")
    engine = _mapping(config.get("engine_kwargs") or {}, path, "engine_kwargs")
    deployment = _mapping(config.get("deployment_config") or {}, path, "deployment_config")
    autoscaling = _mapping(deployment.get("autoscaling_config") or {}, path, "autoscaling_config")
    source = loading.get("model_source", loading.get("model_id"))
    replicas = autoscaling.get("max_replicas") or deployment.get("num_replicas") or 1
    return Role(
        name=name,
        model_id=str(loading.get("model_id", "")),
        model_source=source if isinstance(source, str) else None,
        replicas=_positive(1 if replicas == "auto" else replicas, path, f"{name}: number of replicas"),
        gpus_per_replica=_positive(engine.get("tensor_parallel_size", 1), path, "tensor_parallel_size")
        * _positive(engine.get("pipeline_parallel_size", 1), path, "pipeline_parallel_size"),
    )


def _mapping(value: object, path: str, what: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{path}: {what} must be a mapping, not {type(value).__name__}")
    return cast(Mapping[str, object], value)


def _positive(value: object, path: str, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{path}: {what} must be a positive whole number, not {value!r}")
    return value
