"""Whatever is started inside is gone afterwards, however it tries to stay."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ray_llm_eks.rehearsal.errors import RehearsalFailed
from ray_llm_eks.rehearsal.progress import wait_for
from ray_llm_eks.rehearsal.sandbox import Sandbox, listen

# A daemon as Ray makes them: twice forked, in a session of its own, deaf to signals, with shared memory.
DAEMON = """
import os, signal, sys, time
from multiprocessing import resource_tracker, shared_memory
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        memory = shared_memory.SharedMemory(create=True, size=4096, name=sys.argv[2])
        resource_tracker.unregister(memory._name, "shared_memory")
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(600)
os._exit(0)
"""
ECHO = """
import socket
server = socket.create_server(("127.0.0.1", 8000))
while True:
    connection, _ = server.accept()
    while data := connection.recv(65536): connection.sendall(data)
    connection.close()
"""


def gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text("utf-8")
    except FileNotFoundError:
        return True


def echoed(listener: socket.socket, payload: bytes) -> bytes:
    with socket.create_connection(listener.getsockname(), timeout=10) as connection:
        connection.sendall(payload)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def start_daemon(sandbox: Sandbox, folder: Path, name: str) -> int:
    pid_file = folder / "pid"
    argv = [sys.executable, "-c", DAEMON, str(pid_file), name]
    sandbox.run("daemon", argv, env=dict(os.environ), log=folder / "log")
    text = wait_for(
        lambda: (pid_file.read_text("ascii") if pid_file.exists() else "") or None, what="the daemon", limit_s=30
    )
    if sandbox.exit_code("daemon") is None:
        wait_for(lambda: sandbox.exit_code("daemon"), what="its parent to end", limit_s=10)
    return int(text)


@pytest.mark.parametrize("isolate", [True, False], ids=["isolated", "shared"])
def test_a_daemon_and_its_shared_memory_do_not_stay(isolate: bool, tmp_path: Path) -> None:
    name = f"test-sandbox-{os.getpid()}-{isolate}"
    removed = tmp_path / "removed"
    removed.mkdir()
    with Sandbox(isolate=isolate, remove=[removed]) as sandbox:
        pid = start_daemon(sandbox, tmp_path, name)
        assert not gone(pid)
        assert Path("/dev/shm", name).exists() != sandbox.isolated
    assert gone(pid)
    assert not Path("/dev/shm", name).exists()
    assert not removed.exists()


def test_nothing_stays_when_the_driver_is_killed(tmp_path: Path) -> None:
    program = f"""
import time
from pathlib import Path
from tests.unit.rehearsal.test_sandbox import Sandbox, start_daemon
sandbox = Sandbox()
print(start_daemon(sandbox, Path({str(tmp_path)!r}), "test-killed-{os.getpid()}"), flush=True)
time.sleep(600)
"""
    driver = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
    assert driver.stdout is not None
    pid = int(driver.stdout.readline())
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    wait_for(lambda: gone(pid) or None, what="the daemon to go", limit_s=10, interval_s=0.1)


def test_a_port_inside_is_reached_only_through_its_relay(tmp_path: Path) -> None:
    with listen(0) as listener, Sandbox(listeners=[listener]) as sandbox:
        if not sandbox.isolated:
            pytest.skip(f"no namespaces here: {sandbox.reason}")
        sandbox.relay(listener, 8000)
        sandbox.run("echo", [sys.executable, "-c", ECHO], env=dict(os.environ), log=tmp_path / "log")
        payload = os.urandom(1 << 15)
        deadline = time.monotonic() + 30
        received = b""
        while received != payload:
            assert time.monotonic() < deadline
            # Until the program inside listens, connections are reset.
            with contextlib.suppress(OSError):
                received = echoed(listener, payload)


def test_how_a_program_ended_is_told(tmp_path: Path) -> None:
    with Sandbox() as sandbox:
        sandbox.run("fails", [sys.executable, "-c", "raise SystemExit(7)"], env=dict(os.environ), log=tmp_path / "log")
        assert wait_for(lambda: sandbox.exit_code("fails"), what="the end", limit_s=30, interval_s=0.05) == 7
        sandbox.run("fails", [sys.executable, "-c", "raise SystemExit(8)"], env=dict(os.environ), log=tmp_path / "log")
        assert wait_for(lambda: sandbox.exit_code("fails"), what="the end", limit_s=30, interval_s=0.05) == 8
        sandbox.run("missing", ["/no/such/program"], env={}, log=tmp_path / "log")
        assert wait_for(lambda: sandbox.exit_code("missing"), what="the end", limit_s=30, interval_s=0.05) == 127


def test_all_can_be_killed_before_the_end(tmp_path: Path) -> None:
    with Sandbox() as sandbox:
        pid = start_daemon(sandbox, tmp_path, f"test-kill-{os.getpid()}")
        sandbox.kill_all("all")
        assert wait_for(lambda: sandbox.exit_code("all"), what="the end", limit_s=30, interval_s=0.05) == 0
        assert gone(pid)
        sandbox.run("after", [sys.executable, "-c", "raise SystemExit(3)"], env=dict(os.environ), log=tmp_path / "log")
        assert wait_for(lambda: sandbox.exit_code("after"), what="the end", limit_s=30, interval_s=0.05) == 3


def test_a_taken_port_is_refused() -> None:
    with listen(0) as taken, pytest.raises(OSError, match="in use"):
        listen(int(taken.getsockname()[1]))


def test_a_wait_ends_with_the_reason() -> None:
    with pytest.raises(RehearsalFailed, match=r"waited 0 s for Godot; he is late"):
        wait_for(lambda: None, what="Godot", limit_s=0, explain=lambda: "he is late", interval_s=0.01)
