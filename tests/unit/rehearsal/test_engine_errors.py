"""The reason, not the frames around it: on lines of real failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from ray_llm_eks.rehearsal.engine_errors import relevant_error, relevant_error_in_logs

KERNEL = """\
(EngineCore pid=22) ERROR 12-01 15:44:10 [core.py:1100] EngineCore encountered a fatal error.
(EngineCore pid=22) ERROR 12-01 15:44:10 [core.py:1100] Traceback (most recent call last):
(EngineCore pid=22) ERROR 12-01 15:44:10 [core.py:1100]   File "qwen3_next.py", line 5, in forward
(EngineCore pid=22) ERROR 12-01 15:44:10 [core.py:1100] AssertionError: CPU GDN attention requires BF16.
ERROR 12-01 15:44:11 [async_llm.py:700] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. \
See stack trace (above) for the root cause.
"""
VALIDATION = """\
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, The model has no tokenizer [type=value_error]
    For further information visit the site
RuntimeError: Failed to create vLLM engine config
"""
BACKEND = """\
(Worker pid=9) KeyError: 'ucx'
(EngineCore pid=8) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
\x1b[36mray::ServeReplica:llm:Prefill:m.initialize_and_get_metadata()\x1b[39m (pid=7, ip=127.0.0.1)
"""


@pytest.mark.parametrize(
    ("log", "error"),
    [
        (KERNEL, "AssertionError: CPU GDN attention requires BF16."),
        (
            VALIDATION,
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig "
            "Value error, The model has no tokenizer [type=value_error] "
            "RuntimeError: Failed to create vLLM engine config",
        ),
        (BACKEND, "KeyError: 'ucx'"),
        (
            "ModuleNotFoundError: No module named 'torchvision'\nValueError: later",
            "ModuleNotFoundError: No module named 'torchvision'",
        ),
        ("INFO all is well\nPSUtilError: psutil is missing", None),
    ],
    ids=["kernel", "validation", "backend", "first", "none"],
)
def test_the_reason_is_found(log: str, error: str | None) -> None:
    assert relevant_error(log.splitlines()) == error


def test_an_engine_that_was_killed_is_said_to_be() -> None:
    assert relevant_error(["Worker 12 was terminated: SIGKILL"]) == "Worker 12 was terminated: SIGKILL"


def test_a_wrapper_is_better_than_nothing() -> None:
    line = "EngineDeadError: EngineCore encountered an issue."
    assert relevant_error([line]) == line


def test_the_innermost_log_wins(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    (logs / "serve").mkdir(parents=True)
    (logs / "serve" / "controller.log").write_text("RuntimeError: the deployment failed\n", "utf-8")
    (logs / "worker-1.out").write_text(BACKEND, "utf-8")
    assert relevant_error_in_logs(tmp_path) == "KeyError: 'ucx'"


def test_no_logs_no_error(tmp_path: Path) -> None:
    assert relevant_error_in_logs(tmp_path) is None


def test_a_long_error_is_cut() -> None:
    found = relevant_error(["ValueError: " + "x" * 5000])
    assert found is not None
    assert len(found) < 500
