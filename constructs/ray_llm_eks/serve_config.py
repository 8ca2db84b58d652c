"""Reads a Ray Serve config file and finds what a deployment needs to know: the roles and their sizes.

Reading is lenient: a value that makes no sense counts as its default here, and is found by the rules (``rules/``),
which see everything at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import DocumentError
from .yaml_document import Document, Value, YamlPath, parse_document, read_document

PD_BUILDER = "ray.serve.llm:build_pd_openai_app"
OPENAI_BUILDER = "ray.serve.llm:build_openai_app"
DP_BUILDER = "ray.serve.llm:build_dp_openai_app"

AUTO_REPLICAS = 100
"""What Ray Serve may scale to with ``num_replicas: auto`` and no ``max_replicas``."""


@dataclass(frozen=True, kw_only=True)
class Role:
    """One kind of engine in an application: prefill, decode, or llm where an engine does both."""

    name: str
    model_id: str
    model_source: str | None
    """Hub id or absolute path; None where the file names none, or one in another form."""
    replicas: int
    """Replicas to make room for: ``num_replicas``, or autoscaling's ``max_replicas``, each times the data parallel
    size."""
    gpus_per_replica: int
    """Tensor parallel size times pipeline parallel size."""
    path: YamlPath = ()
    """Where the LLMConfig of the role is in the file."""
    first_replicas: int = 1
    """Replicas that start at once: ``num_replicas``, or autoscaling's ``initial_replicas`` or ``min_replicas``."""


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """A Ray Serve config file: its own text, and the roles found in it."""

    path: str
    text: str
    roles: tuple[Role, ...]
    document: Document

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
        return cls._of(read_document(path))

    @classmethod
    def parse(cls, text: str, *, path: str = "<text>") -> ServeConfig:
        """Reads the text of a file.

        Raises:
            ConfigurationError: no YAML, or not a Serve config.
        """
        return cls._of(parse_document(text, path=path))

    @classmethod
    def _of(cls, document: Document) -> ServeConfig:
        applications = document.get(("applications",))
        if not isinstance(applications, list) or not applications:
            raise DocumentError(
                document.path, "is not a Ray Serve config: it must be a mapping with a list of applications"
            )
        roles = [role for number in range(len(applications)) for role in _roles(document, ("applications", number))]
        return cls(path=document.path, text=document.text, roles=tuple(roles), document=document)


def _roles(document: Document, application: YamlPath) -> Iterator[Role]:
    builder = document.get((*application, "import_path"))
    if builder == PD_BUILDER:
        for name in ("prefill", "decode"):
            yield from _role(document, name, (*application, "args", f"{name}_config"))
    elif builder == DP_BUILDER:
        yield from _role(document, "llm", (*application, "args", "llm_config"))
    elif builder == OPENAI_BUILDER:
        configs = document.get((*application, "args", "llm_configs"))
        for number in range(len(configs) if isinstance(configs, list) else 0):
            yield from _role(document, "llm", (*application, "args", "llm_configs", number))


def _role(document: Document, name: str, path: YamlPath) -> Iterator[Role]:
    if not isinstance(document.get(path), dict):
        return
    model_id = document.get((*path, "model_loading_config", "model_id"))
    source = document.get((*path, "model_loading_config", "model_source"))
    data_parallel = _count(document.get((*path, "engine_kwargs", "data_parallel_size")))
    first, most = _replicas(document, (*path, "deployment_config"))
    yield Role(
        name=name,
        model_id=model_id if isinstance(model_id, str) else "",
        model_source=_text(source if source is not None else model_id),
        replicas=most * data_parallel,
        first_replicas=first * data_parallel,
        gpus_per_replica=_count(document.get((*path, "engine_kwargs", "tensor_parallel_size")))
        * _count(document.get((*path, "engine_kwargs", "pipeline_parallel_size"))),
        path=path,
    )


def _replicas(document: Document, path: YamlPath) -> tuple[int, int]:
    """Replicas at the start, and at most."""
    number = document.get((*path, "num_replicas"))
    scaling = (*path, "autoscaling_config")
    if not isinstance(document.get(scaling), dict) and number != "auto":
        return _count(number), _count(number)
    most = document.get((*scaling, "max_replicas"))
    least = document.get((*scaling, "initial_replicas"))
    if least is None:
        least = document.get((*scaling, "min_replicas"))
    at_most = _count(most, AUTO_REPLICAS if number == "auto" else 1)
    return min(_count(least, 1, least=0), at_most), at_most


def _count(value: Value, default: int = 1, *, least: int = 1) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value < 10**6 else default


def _text(value: Value) -> str | None:
    return value if isinstance(value, str) else None
