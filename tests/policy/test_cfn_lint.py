"""cfn-lint over every template: no error, and no warning but one that is explained here."""

from __future__ import annotations

from pathlib import Path

import pytest
from cfnlint.api import lint_file  # pyright: ignore[reportMissingTypeStubs]

from tests.synthesized import SETTINGS, STACKS, stack

EXPLAINED = {
    # The CDK writes DependsOn for whole constructs, which says again what references already imply.
    "W3005",
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", STACKS)
def test_no_unexplained_finding(name: str, settings: str) -> None:
    found = [
        f"{match.rule.id} line {match.linenumber}: {match.message}"
        for match in lint_file(stack(name, settings).template_file)
        if match.rule.id not in EXPLAINED
    ]
    assert found == []


def test_lint_does_find_things(tmp_path: Path) -> None:
    file = tmp_path / "template.json"
    file.write_text('{"Resources": {"A": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlok": "10.0.0.0/16"}}}}')
    assert [match.rule.id for match in lint_file(file)]
