"""Reports: order, silence, and one set of findings for a place that several aliases share."""

from __future__ import annotations

from pathlib import Path

from ray_llm_eks.model_cache import MOUNT_PATH
from ray_llm_eks.rules import Deployment, check_serve_config, unknown_rules
from ray_llm_eks.rules.app_deployment import deployment_of
from ray_llm_eks.serve_config import ServeConfig
from ray_llm_eks.settings import load_settings
from tests.unit.rules.example import G6, engine, kwargs, on, pd_config, put, report_of

ROOT = Path(__file__).parents[3]


def test_all_findings_at_once_in_the_order_of_the_file() -> None:
    config = pd_config()
    put(kwargs(config, "prefill"), "task", "generate")
    put(kwargs(config), "gpu_memory_utilization", 2)
    put(engine(config), "model_loading_config", "model_id", "other")
    report = report_of(config)
    assert {f.rule for f in report.errors} >= {"unknown-engine-argument", "memory-utilization", "model-ids-differ"}
    lines = [finding.line for finding in report.findings]
    assert lines == sorted(lines)


def test_a_silenced_rule_is_shown_and_does_not_count() -> None:
    config = pd_config()
    put(kwargs(config), "trust_remote_code", True)
    put(kwargs(config), "task", "generate")
    silenced = {"unknown-engine-argument": "our own build of vLLM", "remote-code": "reviewed on 2026-11-30"}
    report = report_of(config, G6, silenced)
    assert report.errors == []
    assert report.warnings == []
    assert {f.rule for f in report.silenced} == set(silenced)
    assert "silenced error [unknown-engine-argument]" in report.text()
    assert "silenced: our own build of vLLM" in report.text()
    assert "0 errors, 0 warnings, 1 info, 2 silenced" in report.text()


def test_unknown_ids_can_be_found() -> None:
    assert unknown_rules(["remote-code", "no-such-rule"]) == ["no-such-rule"]


def test_a_place_behind_an_anchor_is_named_once_for_each_message() -> None:
    text = (ROOT / "serve_configs" / "qwen3.5-9b-pd.yaml").read_text("utf-8")
    report = report_of(text.replace("[LIBFABRIC]", "[libfabric]"))
    assert len([f for f in report.errors if f.rule == "backend-name"]) == 1


def test_the_deployment_of_the_settings() -> None:
    deployment = deployment_of(
        load_settings(
            {
                "gpu": {"decode": {"instance_type": "g6e.8xlarge", "min_nodes": 1, "desired_nodes": 1, "max_nodes": 1}},
                "serving": {"hugging_face_token_secret": "hub-token", "model_s3_uri": "s3://bucket/models/x"},
            }
        )
    )
    assert deployment.pool("prefill").facts.name == "g6.8xlarge"
    assert deployment.pool("decode").facts.name == "g6e.8xlarge"
    assert deployment.pool("llm").max_nodes == 2
    assert deployment.has_hub_token
    assert deployment.stages_from_s3
    assert deployment.ray_version == "2.58.0"
    assert deployment.pool("prefill").has_efa


def test_the_default_settings_have_nothing_to_report() -> None:
    settings = load_settings(None)
    config = ServeConfig.load(ROOT / settings.serving.serve_config)
    report = check_serve_config(config, deployment_of(settings))
    assert (report.errors, report.warnings) == ([], [])


def test_the_mount_path_is_that_of_the_model_cache() -> None:
    assert Deployment(pools={}).model_mount == MOUNT_PATH


def test_other_builders_are_passed_through() -> None:
    text = "applications:\n- name: mine\n  import_path: my.module:app\n  args: {anything: [1, 2]}\n"
    report = report_of(text, on("g6.8xlarge"))
    assert [f.rule for f in report.findings] == ["not-checked"]


def test_data_parallel_files_are_read() -> None:
    text = """
applications:
- name: dp
  import_path: ray.serve.llm:build_dp_openai_app
  args:
    llm_config:
      model_loading_config: {model_id: m, model_source: Qwen/Qwen3-8B}
      engine_kwargs: {data_parallel_size: 2, max_model_len: 4096, gpu_memory_utilization: 0.9}
"""
    config = ServeConfig.parse(text)
    assert [(role.name, role.replicas, role.gpus_per_replica) for role in config.roles] == [("llm", 2, 1)]
    assert report_of(text).errors == []
    assert "replicas-exceed-nodes" in {f.rule for f in report_of(text, on("g6.8xlarge", 1)).errors}
