"""Each fault of the environment is found before anything starts, and its message says what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ray_llm_eks.cli.main import app
from ray_llm_eks.rehearsal import environment
from ray_llm_eks.rehearsal.environment import (
    GIB,
    available_memory_bytes,
    check_disk,
    check_memory,
    check_python_version,
    find_serve_python,
    inspect_serve_python,
    only_one,
    remove_leftovers,
)
from ray_llm_eks.rehearsal.errors import NotRehearsable
from tests.synthesized import ROOT

FILE = str(ROOT / "serve_configs" / "qwen3.5-9b-pd.yaml")


def test_too_little_memory() -> None:
    with pytest.raises(NotRehearsable, match=r"5\.0 GiB of memory are free; .* close other programs"):
        check_memory(5 * GIB)
    check_memory(6 * GIB)


def test_too_little_disk(tmp_path: Path) -> None:
    with pytest.raises(NotRehearsable, match=r"7\.0 GiB of disk are free at .* point TMPDIR to another disk"):
        check_disk(tmp_path, free=7 * GIB)
    check_disk(tmp_path, free=8 * GIB)


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  9 kB\nMemAvailable:   16777216 kB\n", "ascii")
    assert available_memory_bytes(meminfo, tmp_path) == 16 * GIB
    (tmp_path / "memory.max").write_text(f"{8 * GIB}\n", "ascii")
    (tmp_path / "memory.current").write_text(f"{3 * GIB}\n", "ascii")
    assert available_memory_bytes(meminfo, tmp_path) == 5 * GIB
    (tmp_path / "memory.max").write_text("max\n", "ascii")
    assert available_memory_bytes(meminfo, tmp_path) == 16 * GIB


@pytest.mark.parametrize("version", [(3, 10), (3, 14)])
def test_an_unsupported_python(version: tuple[int, int]) -> None:
    with pytest.raises(NotRehearsable, match="SERVE_PYTHON"):
        check_python_version(version, Path("python"))


def test_a_python_without_the_wheels() -> None:
    with pytest.raises(NotRehearsable, match=r"has no ray, .*make serve-setup"):
        inspect_serve_python(Path(sys.executable))


def test_a_python_that_does_not_start(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such library >&2\nexit 3\n", "ascii")
    broken.chmod(0o755)
    with pytest.raises(NotRehearsable, match="no such library"):
        inspect_serve_python(broken)


def test_no_serve_environment_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cdk.json").write_text("{}", "ascii")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotRehearsable, match="make serve-setup"):
        find_serve_python(None)


def test_a_named_python_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotRehearsable, match="--serve-python"):
        find_serve_python(tmp_path / "python")


def test_the_serve_environment_is_found_from_a_folder_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / ".venv-serve" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    below = tmp_path / "docs"
    below.mkdir()
    monkeypatch.chdir(below)
    assert find_serve_python(None) == python


def test_two_at_once(tmp_path: Path) -> None:
    with (
        only_one(tmp_path),
        pytest.raises(NotRehearsable, match=r"another rehearsal runs \(process \d+\)"),
        only_one(tmp_path),
    ):
        pass
    with only_one(tmp_path):
        pass


def test_leftovers_of_a_killed_rehearsal_go(tmp_path: Path) -> None:
    left = tmp_path / f"{environment.FOLDER_PREFIX}abc"
    (left / "r").mkdir(parents=True)
    other = tmp_path / "other"
    other.mkdir()
    with only_one(tmp_path):
        assert remove_leftovers(tmp_path) == [left]
    assert other.exists()
    assert not left.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-file.yaml"], "there is no file no-such-file.yaml"),
        ([FILE, "--model", "/no/model"], "--model"),
        ([FILE, "--serve-python", "/no/python"], "--serve-python"),
        ([FILE, "--serve-python", sys.executable], "make serve-setup"),
    ],
    ids=["file", "model", "python", "wheels"],
)
def test_the_command_ends_with_status_2(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["rehearse", *arguments])
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.output
