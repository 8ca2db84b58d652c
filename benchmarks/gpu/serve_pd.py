# pyright: basic, reportMissingImports=false
"""Serve the shipped files with Ray Serve LLM on one GPU, two engines sharing it, and measure them.

    python serve_pd.py PHASES.json OUT.jsonl --models DIR --configs serve_configs

Ray must run (serve_pd.sh starts it). PHASES.json is a list of phases: name, file (below --configs), mode (`pd`: the
file's prefill and decode engines; `aggregated`: two engines like its decode engine, without a KV connector), model
(folder below --models), backend, buffer, budget_gib and load (false: only start and answer). A line a phase is written
as soon as its answers are in.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import itertools
import json
import os
import random
import re
import statistics
import time
import urllib.request
from pathlib import Path
from typing import Any

import aiohttp
import yaml

PORT = 8000
METRICS_PORT = 8090
URL = f"http://127.0.0.1:{PORT}/v1/completions"
KEPT = re.compile(
    r"(Error\b|AssertionError|NIXL_ERR|Backend \S+ was instantiated|NIXL compat|Available KV cache|GPU KV cache size|"
    r"VRAM|HMEM|registerMem|libfabric|provider|Actual usage|deprecated|Maximum concurrency|GDN prefill)"
)
DEAD = re.compile(r"(EngineCore failed to start|Engine core initialization failed|EngineDeadError)")


def engine_config(config: dict[str, Any], phase: dict[str, Any], models: Path, total: int) -> dict[str, Any]:
    """A shipped engine configuration, changed only as two engines on one GPU need it."""
    changed = copy.deepcopy(config)
    source = changed["model_loading_config"]["model_source"]
    changed["model_loading_config"]["model_source"] = str(models / phase["model"])
    arguments = changed["engine_kwargs"]
    arguments["gpu_memory_utilization"] = round(phase["budget_gib"] * 2**30 / total, 6)
    if "3.5" in source:
        # Where FlashInfer's kernel for Hopper would be taken; an L4 takes Triton's by itself.
        arguments["gdn_prefill_backend"] = "triton"
    arguments.update(phase.get("engine", {}))
    # Ray sends tokens in batches of 50 ms unless told otherwise: gaps between tokens would show that and nothing else.
    changed.setdefault("experimental_configs", {})["stream_batching_interval_ms"] = 0
    for bundle in changed["placement_group_config"]["bundles"]:
        bundle.update(CPU=2, GPU=0.5)
    transfer = arguments.get("kv_transfer_config")
    if phase["mode"] == "aggregated":
        arguments.pop("kv_transfer_config", None)
    elif transfer:
        transfer.setdefault("kv_connector_extra_config", {})["backends"] = [phase["backend"]]
        transfer["kv_buffer_device"] = phase["buffer"]
        if phase.get("transfer_role"):
            transfer["kv_role"] = phase["transfer_role"]
    return changed


def application(phase: dict[str, Any], configs: Path, models: Path, total: int) -> Any:
    """The Serve application of a phase."""
    from ray.serve.llm import build_openai_app, build_pd_openai_app

    shipped = yaml.safe_load((configs / phase["file"]).read_text("utf-8"))["applications"][0]["args"]
    decode = engine_config(shipped["decode_config"], phase, models, total)
    if phase["mode"] == "aggregated":
        decode["deployment_config"] = {**decode.get("deployment_config", {}), "num_replicas": 2}
        return build_openai_app({"llm_configs": [decode]})
    prefill = engine_config(shipped["prefill_config"], phase, models, total)
    return build_pd_openai_app({**shipped, "prefill_config": prefill, "decode_config": decode})


def log_lines(pattern: re.Pattern[str], since: float, count: int = 40) -> list[str]:
    """Lines of the workers' logs, newest files last, each once."""
    base = os.environ.get("RAY_TMPDIR", "/tmp")
    found: list[str] = []
    files = [(file.stat().st_mtime, file) for file in (Path(base) / "ray/session_latest/logs").glob("worker*")]
    for _, file in sorted(entry for entry in files if entry[0] >= since):
        for line in file.read_text("utf-8", errors="replace").splitlines():
            if pattern.search(line) and "import_utils" not in line:
                found.append(re.sub(r"\x1b\[[0-9;]*m|\(\w+ pid=\d+\)", "", line).strip()[:280])
    return list(dict.fromkeys(found))[-count:]


def wait_running(limit: float, since: float) -> None:
    """Wait until the application runs; stop as soon as an engine is dead."""
    from ray import serve

    begin = time.time()
    while time.time() - begin < limit:
        status = serve.status().applications.get("llm")
        if status and status.status == "RUNNING":
            return
        if status and status.status == "DEPLOY_FAILED":
            raise RuntimeError("DEPLOY_FAILED " + status.message[-1500:])
        if time.time() - begin > 20 and log_lines(DEAD, since, 1):
            raise RuntimeError("an engine died")
        time.sleep(1)
    raise TimeoutError(f"not running after {limit} s")


def counters(roles: dict[str, str]) -> dict[str, float]:
    """vLLM's counters on Ray's metrics port, by role.

    Sums of histograms are rough: Ray's agent adds up the middles of the buckets, not the values. Counts are right.
    """
    text = urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORT}/metrics", timeout=20).read().decode()
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = re.match(r"(ray_vllm_(?:nixl|prompt_tokens|generation_tokens|external)\S*?)\{(.*)\} (\S+)$", line)
        if not match or "_bucket" in match[1] or "_created" in match[1]:
            continue
        role = next((role for ident, role in roles.items() if ident in match[2]), "engine")
        source = re.search(r'source="([^"]*)"', match[2])
        name = f"{role} {match[1]}" + (f"[{source[1]}]" if source else "")
        found[name] = found.get(name, 0.0) + float(match[3])
    return found


def replica_roles() -> dict[str, str]:
    """Replica ids and the role that each belongs to."""
    try:
        with urllib.request.urlopen("http://127.0.0.1:8265/api/serve/applications/", timeout=10) as answer:
            deployments = json.load(answer)["applications"]["llm"]["deployments"]
    except (OSError, KeyError, ValueError):
        return {}
    return {
        replica["replica_id"]: name.split(":")[0].lower()
        for name, deployment in deployments.items()
        for replica in deployment.get("replicas", [])
    }


async def one(
    session: Any, model: str, length: int, tokens: int, chooser: random.Random
) -> tuple[float, list[float], float]:
    """One streamed request: time to the first token, gaps between tokens, whole time."""
    prompt = [chooser.randrange(300, 1900) for _ in range(length)]
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    begin, times = time.perf_counter(), []
    async with session.post(URL, json=body) as answer:
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {(await answer.text())[:300]}")
        async for line in answer.content:
            if line.startswith(b"data:") and b"[DONE]" not in line:
                times.append(time.perf_counter())
    return times[0] - begin, [b - a for a, b in itertools.pairwise(times)], time.perf_counter() - begin


def percentile(values: list[float], share: float) -> float:
    """A percentile in milliseconds."""
    ordered = sorted(values)
    return round(1000 * ordered[min(len(ordered) - 1, int(share / 100 * len(ordered)))], 2)


async def load(model: str, lengths: list[int], roles: dict[str, str], quick: bool) -> dict[str, Any]:
    """Time single requests, then decodes beside long prompts; read the counters around each prompt length."""
    chooser = random.Random(0)
    result: dict[str, Any] = {"single": {}}
    timeout = aiohttp.ClientTimeout(300)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        for length in (64, lengths[-1], 64, lengths[-1], lengths[0], 64):
            await one(session, model, length, 8, chooser)
        for length in lengths:
            await asyncio.sleep(2.5)
            before = counters(roles)
            times = [(await one(session, model, length, 2, chooser))[0] for _ in range(5)]
            await asyncio.sleep(2.5)
            after = counters(roles)
            row: dict[str, Any] = {"ttft_ms_median": round(1000 * statistics.median(times), 1)}
            row["ttft_ms"] = [round(1000 * value, 1) for value in times]
            moved = {name: after[name] - before.get(name, 0.0) for name in after if "nixl" in name}
            row["counters"] = {name: round(value, 6) for name, value in moved.items() if value}
            result["single"][length] = row
        runs = [await one(session, model, 64, 128, chooser) for _ in range(3)]
        gaps = [gap for run in runs for gap in run[1]]
        result["decode_alone_ms"] = {"p50": percentile(gaps, 50), "p99": percentile(gaps, 99)}
        if quick:
            return result
        stop, long_runs = asyncio.Event(), []
        long_length = min(3500, lengths[-1])

        async def background() -> None:
            while not stop.is_set():
                long_runs.append(await one(session, model, long_length, 4, chooser))

        tasks = [asyncio.create_task(background()) for _ in range(4)]
        await asyncio.sleep(1)
        begin = time.perf_counter()
        runs = await asyncio.gather(*[one(session, model, 64, 128, chooser) for _ in range(8)])
        seconds = time.perf_counter() - begin
        done = len(long_runs)
        stop.set()
        await asyncio.gather(*tasks)
        gaps = [gap for run in runs for gap in run[1]]
        result["mixed"] = {
            "what": f"8 answers of 128 tokens beside 4 endless clients with prompts of {long_length} tokens",
            "itl_ms": {f"p{share}": percentile(gaps, share) for share in (50, 95, 99, 100)},
            "short_ttft_ms": {f"p{share}": percentile([run[0] for run in runs], share) for share in (50, 100)},
            "long_ttft_ms": {f"p{share}": percentile([run[0] for run in long_runs], share) for share in (50, 95)},
            "long_prompts_done": done,
            "seconds": round(seconds, 2),
        }
    return result


async def greedy(model: str, lengths: list[int]) -> list[dict[str, Any]]:
    """Greedy answers to fixed prompts."""
    answers: list[dict[str, Any]] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(300)) as session:
        for length in lengths:
            prompt = [300 + (index * 37 + index // 41) % 1500 for index in range(length)]
            body = {"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
            async with session.post(URL, json={**body, "return_token_ids": True}) as response:
                answer = await response.json()
            choice = answer["choices"][0]
            answers.append({"prompt": length, "tokens": choice.get("token_ids"), "text": choice["text"]})
    return answers


async def judge(model: str, answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Let one engine read another's answers: how far each token is from the token that it holds for the best."""
    judged: list[dict[str, Any]] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(300)) as session:
        for answer in answers:
            length, tokens = answer["prompt"], answer["tokens"]
            prompt = [300 + (index * 37 + index // 41) % 1500 for index in range(length)] + tokens
            body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 1}
            async with session.post(URL, json=body) as response:
                read = await response.json()
            rows = (read.get("choices") or [{}])[0].get("prompt_logprobs")
            if not rows:
                judged.append({"prompt": length, "error": str(read)[:300]})
                continue
            distance: list[float] = []
            for token, row in zip(tokens, rows[length:], strict=True):
                best = max(entry["logprob"] for entry in row.values())
                distance.append(round(best - row[str(token)]["logprob"], 4))
            judged.append(
                {
                    "prompt": length,
                    "best": sum(value == 0 for value in distance),
                    "of": len(tokens),
                    "furthest": max(distance),
                }
            )
    return judged


def compare(phase: dict[str, Any], answers: list[dict[str, Any]], folder: Path, model_id: str) -> dict[str, Any]:
    """Keep a prefill/decode phase's answers; compare an aggregated phase's with all that were kept of its model."""
    if phase["mode"] == "pd":
        (folder / f"answers-{phase['model']}-{phase['name']}.json").write_text(json.dumps(answers), "utf-8")
        return {}
    compared: dict[str, Any] = {}
    for file in sorted(folder.glob(f"answers-{phase['model']}-*.json")):
        kept = json.loads(file.read_text("utf-8"))
        rows = []
        for mine, other in zip(answers, kept, strict=True):
            same = mine["tokens"] == other["tokens"]
            pairs = enumerate(zip(mine["tokens"], other["tokens"], strict=True))
            first = next((index for index, (a, b) in pairs if a != b), None)
            rows.append({"prompt": mine["prompt"], "same": same, "first_difference": first})
        compared[file.stem] = {"greedy": rows, "judged": asyncio.run(judge(model_id, kept))}
    return compared


def run(phase: dict[str, Any], args: argparse.Namespace, total: int) -> None:
    """Run one phase; its line is written before its engines are stopped, which takes long."""
    from ray import serve

    begin = time.time()
    record: dict[str, Any] = {"phase": phase}
    model_id = yaml.safe_load((args.configs / phase["file"]).read_text("utf-8"))["applications"][0]["args"][
        "decode_config"
    ]["model_loading_config"]["model_id"]
    lengths = phase.get("lengths", [512, 2048, 4000])
    probe = Path(os.environ["PROBE_FILE"])
    seen = len(probe.read_text("utf-8").splitlines()) if probe.exists() else 0
    try:
        app = application(phase, args.configs, args.models, total)
        serve._run(app, _blocking=False, name="llm", route_prefix="/")
        wait_running(phase.get("limit", 260), begin)
        record["running_s"] = round(time.time() - begin, 1)
        print("RUNNING", phase["name"], record["running_s"], flush=True)
        answers = asyncio.run(greedy(model_id, [40, 333, 700, 1500, 3000, 3900]))
        record["answers"] = [answer["text"][:60] for answer in answers]
        record["comparison"] = compare(phase, answers, args.out.parent, model_id)
        roles = replica_roles()
        if phase.get("load", True):
            record["load"] = asyncio.run(load(model_id, lengths, roles, phase.get("quick", False)))
        time.sleep(2)
        record["counters"] = counters(roles)
    except Exception as error:
        record["error"], record["after_s"] = repr(error)[:2000], round(time.time() - begin, 1)
    events = [json.loads(line) for line in probe.read_text("utf-8").splitlines()[seen:]] if probe.exists() else []
    record["probe"] = [event for event in events if not event["event"].endswith(":begin")]
    record["log"] = log_lines(KEPT, begin)
    with args.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    print("DONE", phase["name"], record.get("running_s"), record.get("error", "")[:600], flush=True)
    serve.delete("llm")
    time.sleep(3)


def main() -> None:
    """Command line."""
    import ray
    import torch
    from ray import serve

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phases", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--configs", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    total = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 24 * 2**30
    ray.init(address="auto", log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    for phase in json.loads(args.phases.read_text("utf-8")):
        if args.only and phase["name"] not in args.only:
            continue
        run(phase, args, total)


if __name__ == "__main__":
    main()
