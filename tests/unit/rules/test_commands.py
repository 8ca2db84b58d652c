"""``ray-llm check`` and ``ray-llm rules``: output, exit status, speed of what they import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from ray_llm_eks.cli.check import check
from ray_llm_eks.cli.rules import markdown, rules
from ray_llm_eks.rules import ALL_RULES
from tests.unit.rules.example import engine, kwargs, pd_config, put, text_of, transfer

ROOT = Path(__file__).parents[3]
GOOD = ROOT / "serve_configs" / "qwen3.5-9b-pd.yaml"

app = typer.Typer()
app.command()(check)
app.command()(rules)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    # No cdk.json here: the settings are the defaults.
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    config = pd_config()
    put(kwargs(config), "kv_transfer_config", transfer(kv_connector_extra_config={}))
    put(kwargs(config), "task", "generate")
    path = tmp_path / "bad.yaml"
    path.write_text(text_of(config))
    return path


def test_a_good_file() -> None:
    result = run("check", GOOD)
    assert result.exit_code == 0, result.output
    assert "0 errors, 0 warnings, 1 info" in result.output
    assert "memory: decode on g6.8xlarge: 19.81 GiB = 16.80 weights" in result.output


def test_errors_are_shown_with_the_line_and_a_caret(bad: Path) -> None:
    result = run("check", bad)
    assert result.exit_code == 1
    lines = result.output.splitlines()
    head = next(n for n, line in enumerate(lines) if "[unknown-engine-argument]" in line)
    number = bad.read_text().splitlines().index("        task: generate") + 1
    assert f"  {number}:15 error [unknown-engine-argument] task is no engine argument" in lines[head]
    assert lines[head + 1].endswith("|         task: generate")
    assert lines[head + 2].endswith("|               ^^^^^^^^")
    assert lines[head + 2].index("^") == lines[head + 1].index("generate")
    # All findings at once, not the first.
    assert "[backend-missing]" in result.output


def test_several_files_are_grouped_and_the_worst_decides(bad: Path, tmp_path: Path) -> None:
    assert run("check", GOOD, bad).exit_code == 1
    missing = tmp_path / "missing.yaml"
    result = run("check", bad, missing, GOOD)
    assert result.exit_code == 2
    assert result.output.index(str(bad)) < result.output.index(str(missing)) < result.output.index(str(GOOD))
    assert "[unreadable] there is no such file" in result.output


@pytest.mark.parametrize("data", [b"\x00\x01", b"a: [", "a: 1".encode("utf-16"), b"a:\n\t- b", b"- a", b"", b"3"])
def test_what_is_no_serve_config_gives_one_error_and_status_2(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_bytes(data)
    result = run("check", path)
    assert result.exit_code == 2
    assert result.output.count("error [") == 1
    assert "Traceback" not in result.output


def test_json(bad: Path) -> None:
    result = run("check", bad, "--format", "json")
    assert result.exit_code == 1
    found = json.loads(result.output)["files"][0]
    assert found["file"] == str(bad)
    assert found["errors"] == 3  # the backend, the argument, and no backend in common with prefill
    finding = next(f for f in found["findings"] if f["rule"] == "unknown-engine-argument")
    assert finding["path"] == "applications[0].args.decode_config.engine_kwargs.task"
    assert finding["severity"] == "error"
    assert len(found["memory"]) == 2


def test_sarif(bad: Path, tmp_path: Path) -> None:
    result = run("check", bad, tmp_path / "missing.yaml", "--format", "sarif")
    assert result.exit_code == 2
    log: dict[str, Any] = json.loads(result.output)
    assert log["version"] == "2.1.0"
    sarif = log["runs"][0]
    assert {rule["id"] for rule in sarif["tool"]["driver"]["rules"]} == {rule.id for rule in ALL_RULES}
    ids = [entry["ruleId"] for entry in sarif["results"]]
    assert "backend-missing" in ids
    assert "unreadable" in ids
    region = sarif["results"][ids.index("unknown-engine-argument")]["locations"][0]["physicalLocation"]["region"]
    assert region["snippet"] == {"text": "        task: generate"}


def test_other_nodes_than_the_settings() -> None:
    assert run("check", GOOD, "--instance-type", "g6.4xlarge").exit_code == 1
    assert run("check", GOOD, "--instance-type", "p5en.48xlarge", "--nodes", "2").exit_code == 0
    assert run("check", GOOD, "--nodes", "1").exit_code == 1


def test_the_settings_in_cdk_json_are_the_defaults(tmp_path: Path) -> None:
    settings = {"gpu": {"instance_type": "g6e.8xlarge", "desired_nodes": 2}}
    (tmp_path / "cdk.json").write_text(json.dumps({"context": {"ray-llm": settings}}))
    assert "decode on g6e.8xlarge" in run("check", GOOD).output


def test_rules_silenced_in_the_settings_are_shown_and_do_not_count(bad: Path, tmp_path: Path) -> None:
    reasons = dict.fromkeys(("unknown-engine-argument", "backend-missing", "transfers-differ"), "tried out")
    (tmp_path / "cdk.json").write_text(json.dumps({"context": {"ray-llm": {"rules": {"silence": reasons}}}}))
    result = run("check", bad)
    assert result.exit_code == 0, result.output
    assert "silenced: tried out" in result.output
    assert "0 errors, 0 warnings, 0 infos, 3 silenced" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["check"],
        ["check", GOOD, "--instance-type", "g6.9xlarge"],
        ["check", GOOD, "--nodes", "0"],
        ["check", GOOD, "--nodes", "many"],
        ["check", GOOD, "--format", "xml"],
        ["check", GOOD, "--model-config", "missing.json"],
        ["check", GOOD, "--strict"],
    ],
)
def test_wrong_use_is_status_2(arguments: list[object]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_broken_settings_are_status_2(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"context": {"ray-llm": {"gpus": {}}}}', '{"context": []}'):
        (tmp_path / "cdk.json").write_text(text)
        result = run("check", GOOD)
        assert result.exit_code == 2, result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)


def test_a_file_name_that_is_no_utf8(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/serve\xff.yaml"))
    path.write_text("a: [")
    for kind in ("human", "json", "sarif"):
        result = run("check", path, "--format", kind)
        assert result.exit_code == 2
        assert isinstance(result.exception, SystemExit)


def test_thousands_of_unknown_arguments_are_told_in_time(tmp_path: Path) -> None:
    config = pd_config()
    kwargs(config).update({f"nonsense_{number}": number for number in range(4000)})
    path = tmp_path / "serve.yaml"
    path.write_text(text_of(config))
    start = time.process_time()
    assert run("check", path).exit_code == 1
    assert time.process_time() - start < 10


def test_a_model_config_replaces_the_profile(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "num_hidden_layers": 4,
                "hidden_size": 128,
                "intermediate_size": 256,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "vocab_size": 512,
            }
        )
    )
    result = run("check", GOOD, "--model-config", path)
    assert "19.81 GiB = 0.00 weights" in result.output


def test_a_secret_is_never_printed(tmp_path: Path) -> None:
    secret = "hf" + "_" + "Qw3rTy" * 5
    config = pd_config()
    put(engine(config), "runtime_env", {"env_vars": {"HF_TOKEN": secret, "MY_PASSWORD": "hunter2hunter2"}})
    put(kwargs(config), "api_key", "correct-horse-battery")
    path = tmp_path / "serve.yaml"
    path.write_text(text_of(config))
    for kind in ("human", "json", "sarif"):
        result = run("check", path, "--format", kind)
        assert result.exit_code == 1
        assert "secret-in-file" in result.output
        for word in (secret, "hunter2hunter2", "correct-horse-battery"):
            assert word not in result.output


def test_rules_are_listed() -> None:
    result = run("rules")
    assert result.exit_code == 0
    for rule in ALL_RULES:
        assert f"{rule.id} ({rule.severity}): {rule.title}" in result.output


def test_the_page_of_rules_is_current() -> None:
    assert run("rules", "--format", "markdown").output == markdown()
    page = (ROOT / "docs" / "rules.md").read_text("utf-8")
    assert page == markdown(), "run: ray-llm rules --format markdown > docs/rules.md"


def test_nothing_slow_is_imported() -> None:
    code = (
        "import sys, ray_llm_eks.cli.check, ray_llm_eks.cli.rules\n"
        "print(*[m for m in ('aws_cdk', 'jsii', 'constructs', 'boto3', 'requests', 'ray', 'vllm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_pre_commit_hook_calls_the_command() -> None:
    import yaml

    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    assert hook["entry"] == "ray-llm check"
    assert hook["language"] == "python"
