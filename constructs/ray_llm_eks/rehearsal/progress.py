"""Says what is happening, and waits with a limit."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO, TypeVar

from .errors import RehearsalFailed

T = TypeVar("T")


@dataclass
class Progress:
    """Prints one line a step, each with the seconds since the beginning."""

    stream: TextIO = field(default_factory=lambda: sys.stdout)
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.started

    def say(self, text: str) -> None:
        """Prints a step."""
        print(f"[{self.seconds:5.1f} s] {text}", file=self.stream, flush=True)

    def write(self, text: str, end: str = "\n") -> None:
        """Prints text as it is."""
        print(text, end=end, file=self.stream, flush=True)


def wait_for(
    probe: Callable[[], T | None],
    *,
    what: str,
    limit_s: float,
    explain: Callable[[], str | None] = lambda: None,
    interval_s: float = 0.5,
) -> T:
    """Calls ``probe`` until it returns something.

    Args:
        probe: returns None as long as there is nothing; raises RehearsalFailed if there never will be.
        what: what is waited for, as in "Ray to start".
        limit_s: seconds until giving up.
        explain: asked when it ends badly: the last relevant error of an engine, if there is one.
        interval_s: seconds between two calls.

    Raises:
        RehearsalFailed: the limit has passed.
    """
    deadline = time.monotonic() + limit_s
    while True:
        found = probe()
        if found is not None:
            return found
        if time.monotonic() > deadline:
            reason = explain()
            raise RehearsalFailed(f"waited {limit_s:.0f} s for {what}" + (f"; {reason}" if reason else ""))
        time.sleep(interval_s)
