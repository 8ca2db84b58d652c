"""Every template, as it was last accepted (`make snapshots` accepts the present ones)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension

from tests.synthesized import SETTINGS, STACKS, stack

ASSET_HASH = re.compile(r"\b[0-9a-f]{64}\b")


def normalised(value: Any) -> Any:
    """Without what differs between machines or releases of bundled tools: asset hashes."""
    match value:
        case dict():
            return {key: normalised(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list():
            return [normalised(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case str():
            return ASSET_HASH.sub("ASSET", value)
        case _:
            return value


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", STACKS)
def test_template(name: str, settings: str, snapshot: SnapshotAssertion) -> None:
    assert normalised(stack(name, settings).template) == snapshot(extension_class=JSONSnapshotExtension)
