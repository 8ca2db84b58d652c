"""Finds, in Ray's logs, the line that says why an engine did not start or died: not the frames around it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

ANSI = re.compile(r"\x1b\[[0-9;]*m")
PREFIX = re.compile(r"^(\((?:EngineCore|Worker|APIServer|ServeReplica|pid)[^)]*\)\s*)+|^:[a-z_]+:")
LEVEL = re.compile(
    r"^(?:ERROR|WARNING|INFO|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\]\s*|"
    r"^ERROR \d{4}-\d\d-\d\d [\d:,]+ \S+ \S+ -- "
)
ERROR = re.compile(
    r"^(?:[a-z_][\w.]*\.)?((?:[A-Z]\w*)?(?:Error|Exception|Interrupt|NotFound|nixl\w+Error))\b(?:: ?(.*))?$"
)
KILLED = re.compile(r"(out of memory|OOM|Killed|SIGKILL|SIGSEGV|Segmentation fault|core dumped)", re.IGNORECASE)

WRAPPERS = re.compile(
    r"see (the )?(root cause|stack trace)|EngineDeadError|RayTaskError|RayActorError|ActorDiedError|"
    r"RuntimeError: Engine core initialization failed|CancelledError|KeyboardInterrupt|BrokenPipeError|EOFError|"
    r"The actor died|Error: Traceback \(|Traceback of|WorkerCrashedError|"
    r"ServeReplica|task is not done|ConnectionResetError|"
    r"Failed to initialize (replica|deployment)|SystemExit",
    re.IGNORECASE,
)
"""Errors that only say that there was another one."""

NOISE = re.compile(
    r"psutil|telemetry|usage_stats|prometheus|opencensus|dashboard|metrics agent|pynvml|NVMLError", re.IGNORECASE
)
MORE_LINES = 3
LONGEST = 400


def relevant_error(lines: Iterable[str]) -> str | None:
    """The first error that is not merely the echo of another one; None if there is none.

    The innermost process fails first, and its traceback ends with the reason; all that follows repeats it.
    """
    texts = [_plain(line) for line in lines]
    wrapper: str | None = None
    for index, text in enumerate(texts):
        found = ERROR.match(text)
        if not found or NOISE.search(text):
            continue
        if WRAPPERS.search(text):
            wrapper = wrapper or text
            continue
        return _whole(text, texts[index + 1 : index + 1 + MORE_LINES])
    killed = next((text for text in texts if KILLED.search(text) and not NOISE.search(text)), None)
    return killed or wrapper


def relevant_error_in_logs(session: Path, since: float = 0.0) -> str | None:
    """As :func:`relevant_error`, over the engines' logs in a Ray session folder, oldest file first.

    Args:
        session: Ray's session folder (``session_latest``).
        since: files last written before this time (seconds since the epoch) are left out.
    """
    logs = session / "logs"
    # A worker's own output holds the engines' (they are its children); the controller's log holds failed builds.
    files = [*logs.glob("worker-*"), *logs.glob("serve/*.log")]
    files = [path for path in files if path.is_file() and path.stat().st_mtime >= since]
    candidates: list[tuple[int, str]] = []
    for path in sorted(files, key=lambda path: (path.parent.name == "serve", path.stat().st_mtime)):
        error = relevant_error(path.read_text("utf-8", "replace").splitlines())
        if error:
            candidates.append((1 if WRAPPERS.search(error) else 0, error))
    return min(candidates, key=lambda candidate: candidate[0])[1] if candidates else None


def _plain(line: str) -> str:
    text = ANSI.sub("", line).strip()
    for pattern in (PREFIX, LEVEL, PREFIX):
        text = pattern.sub("", text).strip()
    return text


def _whole(text: str, following: Sequence[str]) -> str:
    """Some messages go on: pydantic's say what is wrong on the lines after the first."""
    if re.search(r"validation errors? for", text):
        text = " ".join([text, *(line for line in following if line and not line.startswith("For further"))])
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
