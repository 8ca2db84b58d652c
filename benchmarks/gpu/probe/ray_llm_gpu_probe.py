# pyright: basic, reportMissingImports=false
"""A vLLM plugin that writes down what an engine's start takes: bytes of each memory part, seconds of each stage.

Put this folder on PYTHONPATH: vLLM finds the plugin by its entry point and loads it in every worker process.

PROBE_FILE: JSON lines go there. PROBE_LOCK: a lock file; engines that share it start one after the other, because vLLM
measures the memory of the whole GPU while it starts.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_installed = False


def note(event: str, **fields: Any) -> None:
    """Add a line to PROBE_FILE."""
    path = os.environ.get("PROBE_FILE")
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, "pid": os.getpid(), "t": round(time.time(), 3), **fields}) + "\n")


def _memory(worker: Any) -> dict[str, int]:
    return {
        "total": int(worker.init_snapshot.total_memory),
        "free_at_start": int(worker.init_snapshot.free_memory),
        "budget": int(worker.requested_memory),
        "weights": int(worker.model_runner.model_memory_usage),
        "peak_activation": int(worker.peak_activation_memory),
        "non_torch": int(worker.non_torch_memory),
        "cuda_graph_estimate": int(worker.cudagraph_memory_estimate),
        "cache_available": int(worker.available_kv_cache_memory_bytes),
    }


def _after(name: str, worker: Any, result: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    if name == "determine_available_memory" and hasattr(worker, "peak_activation_memory"):
        return _memory(worker)
    if name == "initialize_from_config" and arguments:
        config = arguments[0]
        tensors = getattr(config, "kv_cache_tensors", [])
        groups = [type(group.kv_cache_spec).__name__ for group in getattr(config, "kv_cache_groups", [])]
        return {
            "blocks": getattr(config, "num_blocks", 0),
            "cache_bytes": sum(tensor.size for tensor in tensors),
            "groups": groups,
        }
    return {}


def _timed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if name == "init_device" and os.environ.get("PROBE_LOCK"):
            self.probe_lock = Path(os.environ["PROBE_LOCK"]).open("a")  # noqa: SIM115
            fcntl.flock(self.probe_lock, fcntl.LOCK_EX)
        if name == "compile_or_warm_up_model":
            capture = self.model_runner.capture_model

            def capturing() -> Any:
                start, size = time.time(), capture()
                note("capture_model", seconds=round(time.time() - start, 3), cuda_graphs=int(size or 0))
                return size

            self.model_runner.capture_model = capturing
        start = time.time()
        note(name + ":begin")
        result = method(self, *args, **kwargs)
        note(name, seconds=round(time.time() - start, 3), **_after(name, self, result, args))
        if name == "compile_or_warm_up_model" and getattr(self, "probe_lock", None):
            self.probe_lock.close()
            self.probe_lock = None
        return result

    return wrapper


def _own_ports() -> None:
    """Let every process look for a port in a range of its own: engines that start together otherwise collide."""
    from vllm.utils import network_utils

    def get_open_port() -> int:
        return network_utils._get_open_port(start_port=24000 + os.getpid() % 500 * 16, max_attempts=1000)

    network_utils.get_open_port = get_open_port
    for name in ("vllm.v1.executor.ray_executor_v2", "vllm.v1.executor.ray_executor"):
        if name in sys.modules:
            sys.modules[name].get_open_port = get_open_port  # type: ignore[attr-defined]
    if "vllm.v1.executor.ray_executor_v2" in sys.modules:
        # vLLM 0.26: every engine tries the same ports from 100 on, so two that start together take the same one.
        executor = sys.modules["vllm.v1.executor.ray_executor_v2"].RayExecutorV2
        executor._select_tcpstore_port = staticmethod(lambda *_: get_open_port())


def install() -> None:
    """Entry point: wrap the stages of vLLM's GPU worker."""
    global _installed
    if _installed:
        return
    _installed = True
    from vllm.v1.worker.gpu_worker import Worker

    for name in (
        "init_device",
        "load_model",
        "determine_available_memory",
        "initialize_from_config",
        "compile_or_warm_up_model",
    ):
        setattr(Worker, name, _timed(name, getattr(Worker, name)))
    if os.environ.get("PROBE_LOCK"):
        _own_ports()
