"""The engine arguments of the vLLM that the image carries (``facts/engine_args.json``, made by ``tools/``)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, kw_only=True)
class EngineArgument:
    """One argument: its type as vLLM annotates it, and the values allowed if that list is complete."""

    name: str
    type: str
    choices: tuple[str | int | float | bool | None, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The members of the annotation when all are plain (int, float, str, bool, None); else empty."""
        members = tuple(part.strip() for part in self.type.split("|"))
        return members if set(members) <= {"int", "float", "str", "bool", "None"} else ()


@cache
def _data() -> dict[str, Any]:
    return json.loads((files("ray_llm_eks") / "facts" / "engine_args.json").read_text("utf-8"))


def vllm_version() -> str:
    """The version of vLLM that the list was made from."""
    return _data()["vllm"]


@cache
def engine_arguments() -> dict[str, EngineArgument]:
    """All arguments that Ray Serve LLM takes in ``engine_kwargs``, by name."""
    return {
        entry["name"]: EngineArgument(
            name=entry["name"],
            type=entry["type"],
            choices=tuple(entry["choices"]) if entry.get("choices_complete") else (),
        )
        for entry in _data()["arguments"]
    }
