"""The driver's side of :mod:`.warden`: everything that a rehearsal starts is started through one of these."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .errors import RehearsalFailed

SHARED_MEMORY_BYTES = 2 << 30
READY_LIMIT_S = 20.0
STOP_LIMIT_S = 40.0
WARDEN = Path(__file__).with_name("warden.py")


class Sandbox:
    """Processes with a network and shared memory of their own, all of them gone when it is closed.

    Where the kernel refuses namespaces (``isolated`` is False, ``reason`` says why), processes are still found and
    killed to the last one, but share this machine's network.
    """

    def __init__(
        self,
        *,
        listeners: Sequence[socket.socket] = (),
        keep_open: Sequence[int] = (),
        remove: Sequence[Path] = (),
        isolate: bool = True,
    ) -> None:
        """Starts the warden.

        Args:
            listeners: listening sockets of this side, for :meth:`relay`.
            keep_open: handles that must stay open until all is stopped, such as a lock's.
            remove: folders to remove when all is stopped.
            isolate: whether to try namespaces at all.

        Raises:
            RehearsalFailed: the warden did not come up.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(WARDEN)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[*(listener.fileno() for listener in listeners), *keep_open],
            start_new_session=True,
        )
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._exit_codes: dict[str, int] = {}
        threading.Thread(target=self._read, daemon=True).start()
        self._send(
            {
                "remove": [str(folder) for folder in remove],
                "shared_memory_bytes": SHARED_MEMORY_BYTES,
                "isolate": isolate,
            }
        )
        try:
            ready = self._events.get(timeout=READY_LIMIT_S)
        except queue.Empty:
            self._process.kill()
            raise RehearsalFailed("the process that watches over the rehearsal did not start") from None
        self.isolated: bool = ready.get("isolated", False)
        self.reason: str = ready.get("reason", "")
        self.fabric: bool = ready.get("fabric", False)

    def relay(self, listener: socket.socket, port: int) -> None:
        """Leads connections to a listening socket of this side to a port inside."""
        self._send({"relay": listener.fileno(), "port": port})

    def run(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        """Starts a program inside; its output goes to ``log``. A name may be used again once its program has ended."""
        self._take_exit_codes()
        self._exit_codes.pop(name, None)
        self._send({"run": name, "argv": list(argv), "env": dict(env), "log": str(log)})

    def kill_all(self, name: str) -> None:
        """Kills all that runs inside; ``exit_code(name)`` is 0 when it is gone. Programs can be started again."""
        self._take_exit_codes()
        self._exit_codes.pop(name, None)
        self._send({"kill": name})

    def exit_code(self, name: str) -> int | None:
        """How a program ended; None while it runs.

        Raises:
            RehearsalFailed: the warden itself is gone.
        """
        self._take_exit_codes()
        if name not in self._exit_codes and self._process.poll() is not None:
            raise RehearsalFailed("the process that watches over the rehearsal was killed")
        return self._exit_codes.get(name)

    def close(self) -> list[int]:
        """Kills all that runs inside, waits until it is gone, and returns the numbers of processes that survived."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            return [self._process.pid]
        while not self._events.empty():
            event = self._events.get()
            if event.get("event") == "stopped":
                return list(event["left"])
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second Ctrl-C must not leave anything behind: the warden finishes its work whatever happens to us.
        self.close()

    def _take_exit_codes(self) -> None:
        while not self._events.empty():
            event = self._events.get()
            if event.get("event") == "exit":
                self._exit_codes[event["name"]] = event["code"]

    def _send(self, message: Mapping[str, object]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RehearsalFailed("the process that watches over the rehearsal was killed") from None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(json.loads(line))


def listen(port: int) -> socket.socket:
    """A socket that listens on loopback; port 0 takes a free one.

    Raises:
        OSError: the port is taken.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    os.set_inheritable(listener.fileno(), True)
    return listener
