"""The process that owns everything a rehearsal starts, and leaves nothing of it behind.

Run as a script by :mod:`.sandbox`, standard library only. It gives itself (where the kernel lets it) a network of its
own, so that none of Ray's ports can be reached from outside or collide with another program's, and a /dev/shm of its
own, which vanishes with its last user. It adopts every process that a child of its leaves behind, and when its standard
input ends (because it is told to stop, or because whoever started it died) it kills all of them before it goes itself.

Protocol: JSON lines. First line in: ``{"isolate", "shared_memory_bytes", "remove"}``. Then, any number of times,
``{"relay": HANDLE, "port": N}``, ``{"run": NAME, "argv": […], "env": {…}, "log": PATH}`` or ``{"kill": NAME}``. Out:
``{"event": "ready", …}``, ``{"event": "exit", "name": NAME, "code": N}``, and at the end
``{"event": "stopped", "left": […]}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
MS_NOSUID_NODEV = 0x2 | 0x4
MS_REC_PRIVATE = 0x4000 | 0x40000
PR_SET_CHILD_SUBREAPER = 36
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
SHARED_MEMORY = Path("/dev/shm")
FABRIC_ADDRESS = "127.77.0.1"
"""A second address inside: libfabric's tcp provider refuses to work on the loopback interface."""

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Reads the first line, isolates itself, serves until standard input ends."""
    start: dict[str, Any] = json.loads(sys.stdin.readline())
    # A terminal's Ctrl-C is for the one that started us; it will end our standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = set(_shared_memory_files())
    isolated, reason = _isolate(int(start["shared_memory_bytes"])) if start["isolate"] else (False, "not asked for")
    fabric = isolated and _second_interface()
    try:
        asyncio.run(_Warden().serve({"isolated": isolated, "reason": reason, "fabric": fabric}))
    finally:
        left = _kill_all()
        if not isolated:
            _remove_shared_memory(before)
        for folder in start["remove"]:
            shutil.rmtree(folder, ignore_errors=True)
        _tell({"event": "stopped", "left": left})


class _Warden:
    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._children: list[subprocess.Popen[bytes]] = []
        self._relays: list[asyncio.Server] = []

    async def serve(self, ready: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        reader = asyncio.StreamReader(limit=1 << 24)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        _tell({"event": "ready", **ready})
        while line := await reader.readline():
            order = json.loads(line)
            if "relay" in order:
                self._relays.append(await self._relay(order["relay"], order["port"]))
            elif "kill" in order:
                _kill_all()
                _tell({"event": "exit", "name": order["kill"], "code": 0})
            else:
                self._run(order)
        for relay in self._relays:
            relay.close()

    async def _relay(self, handle: int, port: int) -> asyncio.Server:
        async def connected(near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
            try:
                far, far_out = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                near_out.close()
                return
            # At the end, connections may still be open.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(_pump(near, far_out), _pump(far, near_out))
            far_out.close()
            near_out.close()

        # The socket was opened outside, and stays there; the connection that it is relayed to is made in here.
        return await asyncio.start_server(connected, sock=socket.socket(fileno=handle))

    def _run(self, order: dict[str, Any]) -> None:
        with Path(order["log"]).open("ab") as log:
            try:
                child = subprocess.Popen(
                    order["argv"],
                    env=order["env"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                log.write(f"{error}\n".encode())
                _tell({"event": "exit", "name": order["run"], "code": 127})
                return
        self._names[child.pid] = order["run"]
        self._children.append(child)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if name := self._names.pop(pid, None):
                _tell({"event": "exit", "name": name, "code": os.waitstatus_to_exitcode(status)})


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
        # Only this direction has ended; the answer may still be under way.
        sink.write_eof()
    except OSError:
        sink.close()


def _isolate(shared_memory_bytes: int) -> tuple[bool, str]:
    """Moves this process into namespaces of its own; returns whether that worked, and why not."""
    # A child tries first: a process for which only half of it works could not go back.
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            _enter_namespaces(shared_memory_bytes)
        except OSError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as answer:
        reason = answer.read()
    os.waitpid(child, 0)
    if not reason:
        _enter_namespaces(shared_memory_bytes)
    return not reason, reason


def _enter_namespaces(shared_memory_bytes: int) -> None:
    user, group = os.getuid(), os.getgid()
    flags = CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWIPC
    if user == 0:
        _check(_libc.unshare(flags), "unshare")
    else:
        _check(_libc.unshare(flags | CLONE_NEWUSER), "unshare")
        Path("/proc/self/setgroups").write_text("deny", "ascii")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1", "ascii")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1", "ascii")
    _check(_libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None), "mount /")
    options = f"size={shared_memory_bytes},mode=1777".encode()
    _check(_libc.mount(b"tmpfs", bytes(SHARED_MEMORY), b"tmpfs", MS_NOSUID_NODEV, options), "mount /dev/shm")
    _loopback_up()


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(handle, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(handle, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def _second_interface() -> bool:
    """A pair of virtual interfaces that lead nowhere, one with an address; False where there is no ``ip`` command."""
    ip = shutil.which("ip", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    commands = (
        ["link", "add", "fab0", "type", "veth", "peer", "name", "fab1"],
        ["addr", "add", f"{FABRIC_ADDRESS}/24", "dev", "fab0"],
        ["link", "set", "fab0", "up"],
        ["link", "set", "fab1", "up"],
    )
    return ip is not None and all(
        subprocess.run([ip, *command], check=False, capture_output=True).returncode == 0 for command in commands
    )


def _kill_all(limit_s: float = 20.0) -> list[int]:
    """Kills every descendant; orphans are ours too, since we adopt them. Returns what is left after the limit."""
    deadline = time.monotonic() + limit_s
    while descendants := _descendants():
        if time.monotonic() > deadline:
            return descendants
        for pid in descendants:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)
    return []


def _descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                # The name, in parentheses, may hold anything; the parent's number is the second field after it.
                parent = int((folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    found: list[int] = []
    queue = [os.getpid()]
    while queue:
        offspring = children.get(queue.pop(), [])
        found += offspring
        queue += offspring
    return found


def _shared_memory_files() -> list[Path]:
    with contextlib.suppress(OSError):
        return [path for path in SHARED_MEMORY.iterdir() if path.is_file() and path.stat().st_uid == os.getuid()]
    return []


def _remove_shared_memory(before: set[Path]) -> None:
    """Without a /dev/shm of our own: removes new files of this user that no process has open any more."""
    in_use = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            in_use += maps.read_text("utf-8", "replace")
    for path in _shared_memory_files():
        if path not in before and str(path) not in in_use:
            path.unlink(missing_ok=True)


def _tell(message: dict[str, Any]) -> None:
    # Whoever started us may be gone: there is still work to do.
    with contextlib.suppress(OSError):
        print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
