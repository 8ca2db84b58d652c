"""``ray-llm rehearse``: the deployed Serve config, running on this machine."""

from __future__ import annotations

import json
import signal
import sys
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from ray_llm_eks.errors import ConfigurationError
from ray_llm_eks.rehearsal.errors import RehearsalFailed
from ray_llm_eks.rehearsal.progress import Progress
from ray_llm_eks.rehearsal.rehearse import DEFAULT_PORT, Options, Rehearsal, Rehearse, Result

PROVEN, FAILED, NOT_REHEARSABLE, INTERRUPTED = 0, 1, 2, 130


class TransportName(StrEnum):
    """NIXL backends that run on CPU."""

    UCX = "ucx"
    LIBFABRIC = "libfabric"


class Format(StrEnum):
    """How the result is printed."""

    HUMAN = "human"
    JSON = "json"


def rehearse(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The Ray Serve config that would be deployed.")],
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave it serving on loopback until Ctrl-C, for your own client.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port on loopback.", min=1, max=65535)] = DEFAULT_PORT,
    transport: Annotated[
        TransportName | None, typer.Option(help="NIXL backend instead of the file's own.", case_sensitive=False)
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="tiny|PATH", help="A stand-in made on the spot, or a model's folder on this machine.")
    ] = "tiny",
    output: Annotated[Format, typer.Option("--format", help="json: one object on standard output.")] = Format.HUMAN,
    serve_python: Annotated[
        Path | None, typer.Option(help="Python that Ray runs in; default: .venv-serve/bin/python of this project.")
    ] = None,
) -> None:
    """Run the Serve config that would be deployed here, prefill and decode as two engines, and prove that it works.

    Needs no GPU, no AWS account and no model hub. Status: 0 proven, 1 it does not work, 2 it cannot be rehearsed here
    (bad file, bad environment), 130 interrupted.
    """
    progress = Progress(stream=sys.stdout if output is Format.HUMAN else sys.stderr)
    options = Options(
        file=file,
        port=port,
        transport=None if transport is None else "UCX" if transport is TransportName.UCX else "LIBFABRIC",
        model=None if model == "tiny" else Path(model).absolute(),
        serve_python=serve_python,
    )

    def on_result(rehearsal: Rehearsal, result: Result) -> None:
        if output is Format.JSON:
            print(json.dumps(_as_data(rehearsal, result, keep=keep)), flush=True)

    signal.signal(signal.SIGTERM, _interrupt)
    try:
        result = Rehearse(options=options, progress=progress, keep=keep, on_result=on_result).run()
    except ConfigurationError as error:
        _end(NOT_REHEARSABLE, str(error))
    except RehearsalFailed as error:
        _end(FAILED, str(error))
    except KeyboardInterrupt:
        _end(INTERRUPTED, "interrupted; everything is stopped")
    if not result.proven:
        _end(FAILED, "it runs, but not as it must: see above")


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _end(status: int, message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(status)


def _as_data(rehearsal: Rehearsal, result: Result, *, keep: bool) -> dict[str, Any]:
    plan, answer, proof, comparison = result.plan, result.answer, result.proof, result.comparison
    data: dict[str, Any] = {
        "proven": result.proven,
        "model_id": plan.model_id,
        "architecture": plan.architecture,
        "transport": plan.transport,
        "engines": {role.name: role.replicas for role in plan.roles},
        "swaps": [{"path": swap.path, "reason": swap.reason} for swap in plan.swaps],
        "not_rehearsed": list(plan.notes),
        "diff": plan.diff,
        "isolated": rehearsal.isolated,
        "first_answer_s": round(result.first_answer_s, 1),
        "answer": {
            "text": answer.text,
            "prompt_tokens": answer.prompt_tokens,
            "tokens": len(answer.token_ids),
            "finish_reason": answer.finish_reason,
            "ttft_ms": round(answer.ttft_s * 1000, 1),
            "itl_ms": round(answer.itl_s * 1000, 2),
        },
        "proof": proof and {"holds": proof.holds, "prefill": vars(proof.prefill), "decode": vars(proof.decode)},
        "comparison": comparison and vars(comparison),
    }
    if keep:
        data |= {
            "url": f"http://127.0.0.1:{rehearsal.port}/v1",
            "dashboard_port": rehearsal.api.dashboard_port,
            "metrics_port": rehearsal.api.metrics_port,
            "token_file": str(rehearsal.token_file),
        }
    return data
