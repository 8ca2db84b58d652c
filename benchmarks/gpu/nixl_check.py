# pyright: basic, reportMissingImports=false
"""What NIXL's backends do on this machine: make an agent, register GPU and host memory, move it between two agents.

    python nixl_check.py OUT.jsonl

Each combination runs in a process of its own; both agents are in that process. Sizes of pieces follow the KV blocks of
the shipped files: 64 KiB of a dense model to 2 MiB of a hybrid one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PIECES = (65536, 262144, 2 * 2**20)
TOTAL = 256 * 2**20


def check(backend: str, device: str) -> dict[str, Any]:
    """One backend and kind of memory, step by step; the step that fails is named."""
    import torch
    from nixl._api import nixl_agent, nixl_agent_config

    result: dict[str, Any] = {"backend": backend, "memory": device}
    step = "make an agent"
    try:
        agents = [nixl_agent(name, nixl_agent_config(backends=[backend])) for name in ("a", "b")]
        result["plugins"] = agents[0].get_plugin_list()
        result["memory_kinds"] = [str(kind) for kind in agents[0].get_backend_mem_types(backend)]
        step = "allocate"
        tensors = [torch.full((TOTAL,), value, dtype=torch.uint8, device=device) for value in (0, 7)]
        step = "register memory"
        for agent, tensor in zip(agents, tensors, strict=True):
            agent.register_memory(agent.get_reg_descs(tensor), backends=[backend])
        step = "exchange metadata"
        peer = agents[0].add_remote_agent(agents[1].get_agent_metadata())
        agents[1].add_remote_agent(agents[0].get_agent_metadata())
        kind = "VRAM" if device == "cuda" else "DRAM"
        step = "transfer"
        result["gib_per_s"] = {}
        for piece in PIECES:
            lists = [
                agents[0].get_xfer_descs(
                    [(tensor.data_ptr() + at, piece, 0) for at in range(0, TOTAL, piece)], mem_type=kind
                )
                for tensor in tensors
            ]
            best = 0.0
            for _ in range(3):
                handle = agents[0].initialize_xfer("READ", lists[0], lists[1], peer)
                begin = time.perf_counter()
                state = agents[0].transfer(handle)
                while state == "PROC":
                    agents[1].get_new_notifs()
                    state = agents[0].check_xfer_state(handle)
                    if time.perf_counter() - begin > 20:
                        raise TimeoutError(f"pieces of {piece} B: still {state} after 20 s")
                best = max(best, TOTAL / 2**30 / (time.perf_counter() - begin))
                agents[0].release_xfer_handle(handle)
                if state != "DONE":
                    raise RuntimeError(f"state {state}")
            result["gib_per_s"][piece] = round(best, 2)
        result["right"] = bool((tensors[0] == 7).all())
    except BaseException as error:
        result["failed_at"], result["error"] = step, f"{type(error).__name__}: {error}"[:500]
    return result


def main() -> None:
    """Without a backend: run all combinations, each in a process of its own."""
    if len(sys.argv) == 4:
        print("RESULT " + json.dumps(check(sys.argv[2], sys.argv[3])), flush=True)
        return
    with Path(sys.argv[1]).open("a", encoding="utf-8") as out:
        for backend in ("UCX", "LIBFABRIC"):
            for device in ("cuda", "cpu"):
                command = [sys.executable, __file__, sys.argv[1], backend, device]
                try:
                    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
                    text, code = done.stdout + done.stderr, done.returncode
                except subprocess.TimeoutExpired as error:
                    text, code = str(error.stdout) + str(error.stderr), -1
                lines = [line for line in text.splitlines() if line.startswith("RESULT ")]
                record = json.loads(lines[0][7:]) if lines else {"backend": backend, "memory": device, "exit": code}
                record["log"] = [line[:250] for line in text.splitlines() if not line.startswith("RESULT ")][-14:]
                out.write(json.dumps(record) + "\n")
                print({key: value for key, value in record.items() if key not in ("log", "plugins")}, flush=True)


if __name__ == "__main__":
    main()
