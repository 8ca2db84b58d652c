"""The command itself, with the shipped files: it proves what it says, and leaves nothing behind however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from ray_llm_eks.rehearsal.environment import FOLDER_PREFIX, only_one
from tests.synthesized import ROOT

from .conftest import DEFAULT, free_port

SHARED_MEMORY = Path("/dev/shm")


def command(serve_python: Path, *arguments: str) -> list[str]:
    ray_llm = Path(sys.executable).with_name("ray-llm")
    return [str(ray_llm), "rehearse", *arguments, "--serve-python", str(serve_python), "--port", str(free_port())]


def rehearse(serve_python: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        command(serve_python, *arguments, "--format", "json"),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout)


def traces() -> set[str]:
    """Processes, shared memory and folders of rehearsals."""
    found = {str(path) for path in SHARED_MEMORY.iterdir()}
    found |= {str(path) for path in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*") if path.is_dir()}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if FOLDER_PREFIX.encode() in environment:
            found.add(f"process {process.name}")
    return found


def test_the_default_file_as_it_is(serve_python: Path) -> None:
    """Hybrid, over the file's own transport where it can be loaded."""
    before = traces()
    found = rehearse(serve_python, str(DEFAULT))
    assert found["proven"]
    assert found["architecture"] == "hybrid"
    assert found["proof"]["decode"]["bytes_transferred"] > 0
    assert found["comparison"]["equal"]
    assert found["answer"]["ttft_ms"] > 0
    print(f"first answer after {found['first_answer_s']} s over {found['transport']}")
    assert traces() <= before


def test_the_default_file_over_ucx(serve_python: Path) -> None:
    found = rehearse(serve_python, str(DEFAULT), "--transport", "ucx")
    assert found["proven"]
    assert found["transport"] == "UCX"


def test_engines_that_do_both(serve_python: Path, tmp_path: Path) -> None:
    config = yaml.safe_load(DEFAULT.read_text("utf-8"))
    app = config["applications"][0]
    llm = app["args"]["decode_config"]
    del llm["engine_kwargs"]["kv_transfer_config"]
    app |= {"import_path": "ray.serve.llm:build_openai_app", "args": {"llm_configs": [llm]}}
    file = tmp_path / "aggregated.yaml"
    file.write_text(yaml.safe_dump(config), "utf-8")
    found = rehearse(serve_python, str(file))
    assert found["proven"]
    assert found["proof"] is None
    assert found["engines"] == {"llm": 1}


def test_an_engine_that_cannot_start_is_told_in_one_line(serve_python: Path, tmp_path: Path) -> None:
    config = yaml.safe_load(DEFAULT.read_text("utf-8"))
    for role in ("prefill_config", "decode_config"):
        config["applications"][0]["args"][role]["engine_kwargs"]["bogus"] = 1
    file = tmp_path / "bogus.yaml"
    file.write_text(yaml.safe_dump(config), "utf-8")
    before = traces()
    done = subprocess.run(command(serve_python, str(file)), capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 1
    assert "Unknown engine argument: bogus" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert traces() <= before


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_stopped_while_it_loads_it_leaves_nothing(serve_python: Path, how: signal.Signals) -> None:
    before = traces()
    running = subprocess.Popen(
        command(serve_python, str(DEFAULT)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    for line in running.stdout:
        if "engine(s) start" in line:
            break
    time.sleep(5)
    assert traces() - before
    running.send_signal(how)
    running.communicate(timeout=60)
    assert running.returncode == (-signal.SIGKILL if how is signal.SIGKILL else 130)
    deadline = time.monotonic() + 20
    while traces() - before and time.monotonic() < deadline:
        time.sleep(0.2)
    left = {
        trace for trace in traces() - before if how is not signal.SIGKILL or not trace.startswith(tempfile.gettempdir())
    }
    assert not left


def test_a_taken_port_is_found_before_anything_starts(serve_python: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        argv = [*command(serve_python, str(DEFAULT))[:-1], port]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert f"port {port} is taken" in done.stderr


def test_a_second_rehearsal_is_refused(serve_python: Path) -> None:
    with only_one():
        done = subprocess.run(
            command(serve_python, str(DEFAULT)), capture_output=True, text=True, check=False, timeout=60
        )
    assert done.returncode == 2
    assert f"another rehearsal runs (process {os.getpid()})" in done.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "serve_configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_file(serve_python: Path, path: Path) -> None:
    if path == DEFAULT or not os.environ.get("ALL_FILES"):
        pytest.skip("takes two minutes a file: ALL_FILES=1 runs them")
    assert rehearse(serve_python, str(path))["proven"]
