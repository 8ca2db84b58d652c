"""Where the time of a synthesis goes: `python benchmarks/synth.py [runs]`.

Runs app.py as a process of its own, as the CDK command line does, with and without the CDK's validation of templates
(context key @aws-cdk/core:validateAgainstDefaultRules), in turn, after one run of each to warm caches, and prints the
medians. Then the shares of one run: interpreter and imports, building the constructs, synthesizing, and hashing the two
Lambda layers (kubectl and AWS CLI, 60 MB) alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
VALIDATION = "@aws-cdk/core:validateAgainstDefaultRules"

PHASES = """
import time; start = time.perf_counter()
import sys; sys.path.insert(0, sys.argv[1])
import aws_cdk as cdk, app as module
from ray_llm_eks.settings import load_settings
imported = time.perf_counter()
app = cdk.App(outdir=sys.argv[2])
module.build(app, load_settings({}))
built = time.perf_counter()
app.synth()
print(imported - start, built - imported, time.perf_counter() - built)
"""


def run_app(outdir: str, *, validation: bool) -> float:
    """Seconds from process start to exit."""
    environment = {**os.environ, "CDK_OUTDIR": outdir, "CDK_CONTEXT_JSON": json.dumps({VALIDATION: validation})}
    start = time.perf_counter()
    subprocess.run([sys.executable, str(ROOT / "app.py")], cwd=ROOT, env=environment, check=True, capture_output=True)
    return time.perf_counter() - start


def hash_layers(outdir: str) -> tuple[float, int]:
    """Seconds to read and hash the staged layers, and their size in bytes."""
    files = list(Path(outdir).glob("asset.*.zip"))
    start = time.perf_counter()
    for file in files:
        with file.open("rb") as stream:
            hashlib.file_digest(stream, "sha256")
    return time.perf_counter() - start, sum(file.stat().st_size for file in files)


def main() -> None:
    """Prints the table."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(runs + 1):
            for validation, seconds in times.items():
                seconds.append(run_app(folder, validation=validation))
        for validation, seconds in times.items():
            kept = seconds[1:]
            print(
                f"app.py, template validation {'on ' if validation else 'off'}: median {statistics.median(kept):.2f} s "
                f"(min {min(kept):.2f}, max {max(kept):.2f}, {len(kept)} runs)"
            )
        command = [sys.executable, "-c", PHASES, str(ROOT), folder]
        shares = [
            [float(part) for part in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()]
            for _ in range(runs)
        ]
        for name, values in zip(("import", "build", "synth"), zip(*shares, strict=True), strict=True):
            print(f"  {name:6} median {statistics.median(values):.2f} s")
        seconds, size = hash_layers(folder)
        print(f"  hashing the layers ({size / 1e6:.0f} MB) alone: {seconds:.2f} s")


if __name__ == "__main__":
    main()
