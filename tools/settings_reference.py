"""Writes docs/settings.md from the settings model: `python tools/settings_reference.py`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ray_llm_eks.settings import Settings

TARGET = Path(__file__).parent.parent / "docs" / "settings.md"

HEAD = """\
# Settings

All settings live under the one context key `ray-llm` in `cdk.json`; each has a default, and an unknown key is an error.
`-c ray-llm='{…}'` (JSON or YAML) overrides single settings of `cdk.json` for one command. This page is made from the
code by `python tools/settings_reference.py`.

```json
{"context": {"ray-llm": {"gpu": {"zone": "us-west-2b"}, "cluster": {"kubernetes_version": "1.36"}}}}
```
"""

KUBECTL = """
## The kubectl layer

kubectl must be within one minor version of the cluster, and each minor version has a package of its own,
`aws-cdk.lambda-layer-kubectl-v29` to `-v37`. `requirements.txt` has v36, for the default, and v29. For a Kubernetes
version that neither suits, synthesis names the package to install. `cluster.kubectl_layer` forces one.
"""


def model_of(field: FieldInfo) -> type[BaseModel] | None:
    """The settings class of a field, if it is a group of settings."""
    for candidate in (field.annotation, *get_args(field.annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def rows(model: type[BaseModel], path: str) -> Iterator[str]:
    """Table rows of a model's own fields."""
    for name, field in model.model_fields.items():
        if model_of(field) and field.default is not None and field.default is not PydanticUndefined:
            continue
        default = field.get_default(call_default_factory=True)
        shown = "required" if default is PydanticUndefined else f"`{json.dumps(default, default=str)}`"
        text = re.sub(r"\s+", " ", field.description or "").replace("|", "\\|")
        yield f"| `{path}{name}` | {shown} | {text} |"


def sections(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """A section for each group of settings."""
    title = path.rstrip(".") or "top level"
    yield f"\n## {title}\n\n{model.__doc__ or ''}\n\n| setting | default | |\n|---|---|---|"
    yield from rows(model, path)
    for name, field in model.model_fields.items():
        if group := model_of(field):
            many = "tuple" in str(field.annotation)
            yield from sections(group, f"{path}{name}{'[]' if many else ''}.")


def page() -> str:
    """The whole page."""
    return HEAD + "\n".join(sections(Settings)) + "\n" + KUBECTL


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
    sys.exit()
