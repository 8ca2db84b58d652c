"""The folder `constructs` must not hide the package `constructs`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.synthesized import ROOT


@pytest.mark.parametrize("folder", [ROOT, ROOT / "tests", ROOT / "constructs"], ids=["root", "tests", "constructs"])
def test_import_constructs_gives_the_installed_package(folder: Path) -> None:
    code = "import constructs, sys; print(constructs.__file__); constructs.Construct"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert "site-packages" in done.stdout


def test_the_source_root_is_no_package() -> None:
    assert not (ROOT / "constructs" / "__init__.py").exists()
