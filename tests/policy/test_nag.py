"""The AwsSolutions rules: no finding but those acknowledged in the code, each with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_s3 as s3
from cdk_nag import AwsSolutionsChecks

from tests.synthesized import SETTINGS, build


def findings(app: cdk.App) -> list[str]:
    cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    try:
        app.synth()
    except RuntimeError as error:  # How jsii passes on that a validation failed; the report has the findings.
        if "validation-report.json" not in str(error):
            raise
    report: dict[str, Any] = json.loads(Path(app.outdir, "validation-report.json").read_text("utf-8"))
    return [
        f"{violation['ruleName']} {construct['constructPath']}"
        for plugin in report["pluginReports"]
        for violation in plugin["violations"]
        for construct in violation["violatingConstructs"]
    ]


@pytest.mark.parametrize("settings", SETTINGS)
def test_no_finding(settings: str, tmp_path: Path) -> None:
    assert findings(build(SETTINGS[settings], str(tmp_path))) == []


def test_the_rules_do_find_things(tmp_path: Path) -> None:
    app = cdk.App(outdir=str(tmp_path))
    s3.Bucket(cdk.Stack(app, "Stack"), "Bucket")
    assert any("AwsSolutions-S1" in finding for finding in findings(app))
