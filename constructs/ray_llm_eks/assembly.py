"""Reads a synthesized cloud assembly: stacks, resources, and the Kubernetes manifests in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ConfigurationError

MANIFEST_TYPE = "Custom::AWSCDK-EKS-KubernetesResource"
CHART_TYPE = "Custom::AWSCDK-EKS-HelmChart"


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One stack of an assembly."""

    name: str
    template_file: Path
    dependencies: tuple[str, ...]
    template: dict[str, Any]
    termination_protection: bool

    @property
    def resources(self) -> dict[str, dict[str, Any]]:
        """Resources by logical id."""
        return self.template.get("Resources", {})

    def of_type(self, resource_type: str) -> list[dict[str, Any]]:
        """The properties of all resources of a type."""
        return [r.get("Properties", {}) for r in self.resources.values() if r["Type"] == resource_type]

    def manifests(self) -> Iterator[dict[str, Any]]:
        """The Kubernetes objects that the stack applies, with tokens in them as ``${LogicalId.Attribute}``."""
        for properties in self.of_type(MANIFEST_TYPE):
            yield from json.loads(plain(properties["Manifest"]))


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """A cloud assembly, stacks in the order of deployment."""

    stacks: tuple[Stack, ...]

    @classmethod
    def load(cls, folder: Path) -> Assembly:
        """Reads the folder that ``cdk synth`` wrote.

        Raises:
            ConfigurationError: there is no assembly in the folder.
        """
        try:
            manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        except (OSError, json.JSONDecodeError):
            raise ConfigurationError(f"{folder} holds no cloud assembly: run ray-llm synth first") from None
        artifacts = manifest["artifacts"]
        stacks = {
            name: Stack(
                name=artifact.get("displayName", name),
                template_file=(file := folder / artifact["properties"]["templateFile"]),
                dependencies=tuple(d for d in artifact.get("dependencies", ()) if _is_stack(artifacts.get(d))),
                template=json.loads(file.read_text("utf-8")),
                termination_protection=artifact["properties"].get("terminationProtection", False),
            )
            for name, artifact in artifacts.items()
            if _is_stack(artifact)
        }
        ordered: list[Stack] = []
        while len(ordered) < len(stacks):
            placed = {stack.name for stack in ordered}
            ordered += [s for s in stacks.values() if s.name not in placed and placed.issuperset(s.dependencies)][:1]
        return cls(stacks=tuple(ordered))


def _is_stack(artifact: dict[str, Any] | None) -> bool:
    return artifact is not None and artifact["type"] == "aws:cloudformation:stack"


def plain(value: Any) -> str:
    """A property as text, CloudFormation functions in it written as ``${…}``."""
    if isinstance(value, str):
        return value
    (function, argument), *_ = value.items()
    match function:
        case "Fn::Join":
            separator, parts = argument
            return separator.join(plain(part) for part in parts)
        case "Ref":
            return f"${{{argument}}}"
        case "Fn::GetAtt":
            return f"${{{'.'.join(argument)}}}"
        case _:
            return f"${{{argument['OutputName'] if isinstance(argument, dict) else argument}}}"
