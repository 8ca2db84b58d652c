"""Asks one streaming chat question and times the answer; standard library only: there is no OpenAI client here."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from .errors import RehearsalFailed


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A streamed answer."""

    text: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    ttft_s: float
    """Time to first token: from sending the request to the first piece of text."""
    itl_s: float
    """Inter-token latency: mean time between tokens after the first."""
    finish_reason: str | None

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt in tokens, chat template included."""
        return len(self.prompt_token_ids)


def ask(
    port: int,
    *,
    model: str,
    question: str,
    max_tokens: int,
    timeout_s: float,
    on_text: Callable[[str], None] = lambda _: None,
) -> Answer:
    """Streams a greedy answer from the OpenAI-compatible endpoint on this machine.

    Raises:
        RehearsalFailed: no answer, an error, or a stream that ends early; with what the server said.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        # vLLM's own extension: the ids, so that the answer can be compared token by token.
        "return_token_ids": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    started = time.monotonic()
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise RehearsalFailed(f"the question was answered with HTTP {response.status}: {_message(response.read())}")
        return _collect(response, started, on_text)
    except (OSError, http.client.HTTPException) as error:
        raise RehearsalFailed(f"no answer within {timeout_s:.0f} s: {error or type(error).__name__}") from None
    finally:
        connection.close()


def _collect(response: http.client.HTTPResponse, started: float, on_text: Callable[[str], None]) -> Answer:
    text = ""
    prompt_ids: list[int] = []
    ids: list[int] = []
    first = last = 0.0
    reason: str | None = None
    done = False
    while line := response.readline():
        data = line.decode("utf-8", "replace").strip().removeprefix("data:").strip()
        if data == "[DONE]":
            done = True
            break
        if not data:
            continue
        chunk: dict[str, Any] = json.loads(data)
        if "error" in chunk:
            raise RehearsalFailed(f"the answer broke off: {_message(data.encode())}")
        prompt_ids += chunk.get("prompt_token_ids") or []
        choices: list[dict[str, Any]] = chunk.get("choices") or []
        for choice in choices:
            new: list[int] = choice.get("token_ids") or []
            delta: dict[str, Any] = choice.get("delta") or {}
            piece: str = delta.get("content") or ""
            if new or piece:
                last = time.monotonic()
                first = first or last
            ids += new
            text += piece
            if piece:
                on_text(piece)
            reason = choice.get("finish_reason") or reason
    # A stream whose KV cache did not arrive ends like a complete one, but without a reason.
    if not done or not first or reason is None:
        raise RehearsalFailed(f"the answer broke off after {len(ids)} tokens, without a word why")
    return Answer(
        text=text,
        prompt_token_ids=tuple(prompt_ids),
        token_ids=tuple(ids),
        ttft_s=first - started,
        itl_s=(last - first) / max(1, len(ids) - 1),
        finish_reason=reason,
    )


def _message(body: bytes) -> str:
    """What an error says, without the stack that Ray puts into it."""
    text = body.decode("utf-8", "replace")
    try:
        content: dict[str, Any] = json.loads(text)
    except ValueError:
        return text[:300]
    error: object = content.get("error")
    message = cast(dict[str, Any], error).get("message") if isinstance(error, dict) else content.get("detail")
    lines = [line for line in str(message or text).splitlines() if line.strip()]
    return lines[-1][:300] if lines else text[:300]
