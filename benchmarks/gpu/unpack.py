"""Join the parts that pack.py made and unpack them, on all cores.

python3 unpack.py SITE part.*
"""

from __future__ import annotations

import os
import sys
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path


def extract(archive: Path, folder: Path, share: int, shares: int) -> int:
    """Unpack every `shares`-th file, the largest ones first, so that each worker gets one of them."""
    with zipfile.ZipFile(archive) as file:
        entries = sorted(file.infolist(), key=lambda entry: -entry.file_size)[share::shares]
        for entry in entries:
            # The archive's files carry no mode; some are programs.
            Path(file.extract(entry, folder)).chmod(0o755)
    return len(entries)


def main() -> None:
    """Command line: the folder, then the parts in order."""
    folder, *parts = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / "site.zip"
    with archive.open("wb") as whole:
        for part in sorted(parts):
            whole.write(part.read_bytes())
    with zipfile.ZipFile(archive) as file:
        for name in file.namelist():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
    shares = os.cpu_count() or 2
    with ProcessPoolExecutor(shares) as pool:
        done = sum(pool.map(extract, [archive] * shares, [folder] * shares, range(shares), [shares] * shares))
    archive.unlink()
    print(f"{done} files in {folder}")


if __name__ == "__main__":
    main()
