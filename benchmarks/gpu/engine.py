# pyright: basic, reportMissingImports=false
"""Start one vLLM engine after another, each in its own process, and write down what its start took.

    python engine.py run CASES.json OUT.jsonl --models DIR [--only NAME ...] [--until SECONDS]

CASES.json is a list of cases: name, model (folder below DIR), budget_gib, engine (vLLM's engine arguments) and, if
wanted, clear (caches to empty first), alone (nothing else starts meanwhile), drop_page_cache and requests. A line a
case is written as soon as it is over. The next process imports vLLM while the case before it runs, but touches the GPU
only afterwards.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

KEPT = re.compile(
    r"(Available KV cache memory|GPU KV cache size|Maximum concurrency|Model loading took|Loading weights took|"
    r"Estimated CUDA graph|CUDA graph pool memory|Graph capturing finished|torch\.compile took|Dynamo bytecode|"
    r"Directly load|Compiling a graph|init engine|Actual usage|attention block size|GDN prefill|attention backend|"
    r"FLASH_ATTN|FlashInfer|Encoder cache|ValueError|RuntimeError|OutOfMemory|Error:|assert)"
)
CACHES = ("vllm", "inductor", "triton", "flashinfer", "cuda")


def environment(work: Path) -> dict[str, str]:
    """The variables of the model cache, with every cache in a folder of its own."""
    cache = work / "cache"
    names = {
        "VLLM_CACHE_ROOT": "vllm",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TRITON_CACHE_DIR": "triton",
        "FLASHINFER_WORKSPACE_BASE": "flashinfer",
        "CUDA_CACHE_PATH": "cuda",
    }
    found = {name: str(cache / folder) for name, folder in names.items()}
    found |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    found |= {"PYTHONUNBUFFERED": "1", "VLLM_SSM_CONV_STATE_LAYOUT": "DS", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    return found


def gpu_used_gib() -> float:
    """Memory in use on the first GPU, by all processes."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    return float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]) / 1024


def sizes(folder: Path) -> dict[str, float]:
    """MB in each cache folder."""
    found: dict[str, float] = {}
    for name in CACHES:
        files = [file for file in (folder / name).rglob("*") if file.is_file()] if (folder / name).exists() else []
        found[name] = round(sum(file.stat().st_size for file in files) / 1e6, 1)
    return found


def one(case: dict[str, Any], models: Path, work: Path) -> dict[str, Any]:
    """Run one case in this process."""
    started = time.time()
    import torch
    from vllm import LLM, SamplingParams

    imported = time.time()
    lock = (work / "engine.lock").open("a")
    fcntl.flock(lock, fcntl.LOCK_EX)
    waited = time.time()
    while gpu_used_gib() > case.get("idle_gib", 1.5) and time.time() - waited < 30:
        time.sleep(0.3)
    result: dict[str, Any] = {"name": case["name"], "import_s": round(imported - started, 2)}
    if case.get("drop_page_cache"):
        subprocess.run(["sync"], check=True)
        Path("/proc/sys/vm/drop_caches").write_text("3\n", "utf-8")
    result["caches_before_mb"] = sizes(work / "cache")
    result["gpu_used_before_gib"] = round(gpu_used_gib(), 2)
    total = torch.cuda.get_device_properties(0).total_memory
    arguments = {**case["engine"], "gpu_memory_utilization": round(case["budget_gib"] * 2**30 / total, 6)}
    result["engine"], result["model"] = arguments, case["model"]
    begin = time.time()
    try:
        engine = LLM(model=str(models / case["model"]), **arguments)
        result["engine_s"] = round(time.time() - begin, 2)
        sampling = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
        for length in case.get("requests", [64]):
            start = time.time()
            engine.generate(
                {"prompt_token_ids": [300 + i * 37 % 1500 for i in range(length)]}, sampling, use_tqdm=False
            )
            result.setdefault("request_s", []).append([length, round(time.time() - start, 3)])
        config = engine.llm_engine.vllm_config
        result["block_size"] = config.cache_config.block_size
        result["num_gpu_blocks"] = config.cache_config.num_gpu_blocks
        result["capture_sizes"] = len(config.compilation_config.cudagraph_capture_sizes or [])
        result["prefix_caching"] = config.cache_config.enable_prefix_caching
        result["torch_peak_after"] = torch.cuda.max_memory_allocated()
        result["gpu_used_after_gib"] = round(gpu_used_gib(), 2)
    except BaseException as error:
        result["error"] = f"{type(error).__name__}: {error}"[:1500]
        result["engine_s"] = round(time.time() - begin, 2)
    result["caches_after_mb"] = sizes(work / "cache")
    return result


def finish(case: dict[str, Any], process: subprocess.Popen[bytes], work: Path, out: Path) -> None:
    """Wait for a case's process and write its line."""
    name = case["name"]
    try:
        process.wait(case.get("limit", 400))
    except subprocess.TimeoutExpired:
        process.kill()
    answer = work / f"{name}.json"
    record = json.loads(answer.read_text("utf-8")) if answer.exists() else {"name": name, "error": "no answer"}
    probe = work / f"{name}.probe"
    lines = probe.read_text("utf-8").splitlines() if probe.exists() else []
    events = [event for event in map(json.loads, lines) if not event["event"].endswith(":begin")]
    record["stages"] = {event["event"]: event.get("seconds") for event in events}
    for event in events:
        if event["event"] == "determine_available_memory":
            record["memory"] = {
                key: value for key, value in event.items() if key not in ("event", "pid", "t", "seconds")
            }
        if event["event"] == "capture_model":
            record["cuda_graphs"] = event["cuda_graphs"]
        if event["event"] == "initialize_from_config":
            record["cache"] = {key: event[key] for key in ("blocks", "cache_bytes", "groups") if key in event}
    log = (work / f"{name}.log").read_text("utf-8", errors="replace").splitlines()
    kept = [re.sub(r"\x1b\[[0-9;]*m", "", line)[:300] for line in log if KEPT.search(line)]
    record["log"] = list(dict.fromkeys(kept))[-40:]
    if "error" in record or not answer.exists():
        record["log_tail"] = [line[:300] for line in log[-15:]]
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    memory = {key: round(value / 2**30, 2) for key, value in record.get("memory", {}).items()}
    print("DONE", name, record.get("engine_s"), memory, record["stages"], record.get("error", "")[:300], flush=True)


def run(cases: list[dict[str, Any]], models: Path, out: Path, work: Path, until: float) -> None:
    """Run the cases in order; the next process is started once the one before has the GPU."""
    work.mkdir(parents=True, exist_ok=True)
    begin = time.time()
    here = Path(__file__).resolve()
    site = f"{here.parent / 'probe'}:{os.environ.get('PYTHONPATH', '')}"
    running: list[tuple[dict[str, Any], subprocess.Popen[bytes]]] = []
    for case in cases:
        if until and time.time() - begin > until:
            print("NOT RUN", case["name"], flush=True)
            continue
        name = case["name"]
        while running and (case.get("alone") or case.get("clear")):
            finish(*running.pop(0), work, out)
        for folder in case.get("clear", []):
            shutil.rmtree(work / "cache" / folder, ignore_errors=True)
        for ending in ("json", "probe"):
            (work / f"{name}.{ending}").unlink(missing_ok=True)
        variables = {**os.environ, **environment(work), "PYTHONPATH": site, "PROBE_FILE": str(work / f"{name}.probe")}
        with (work / f"{name}.log").open("wb") as log:
            command = [sys.executable, str(here), "one", json.dumps(case), str(work / f"{name}.json")]
            command += ["--models", str(models), "--work", str(work)]
            process = subprocess.Popen(command, env=variables, stdout=log, stderr=subprocess.STDOUT)
        running.append((case, process))
        if len(running) > 1:
            finish(*running.pop(0), work, out)
        if case.get("alone"):
            finish(*running.pop(0), work, out)
    for rest in running:
        finish(*rest, work, out)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "one"))
    parser.add_argument("cases")
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("/tmp/ray-llm-gpu"))
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--until", type=float, default=0.0, help="start no case after so many seconds")
    args = parser.parse_args()
    if args.what == "one":
        result = one(json.loads(args.cases), args.models, args.work)
        args.out.write_text(json.dumps(result), "utf-8")
        sys.stdout.flush()
        os._exit(0)
    cases = json.loads(Path(args.cases).read_text("utf-8"))
    chosen = [case for case in cases if not args.only or case["name"] in args.only]
    run(chosen, args.models, args.out, args.work, args.until)


if __name__ == "__main__":
    main()
