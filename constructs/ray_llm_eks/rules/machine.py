"""Reports for programs: JSON, and SARIF 2.1.0 for code hosts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ray_llm_eks import __version__

from .check import ALL_RULES
from .findings import Finding, Report, Severity
from .secrets import without_secrets

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
UNREADABLE = "unreadable"
"""Rule id of a file that could not be read at all."""


def json_text(reports: Sequence[Report]) -> str:
    """All reports as one JSON object."""
    return json.dumps({"version": 1, "files": [_file(report) for report in reports]}, indent=2, ensure_ascii=False)


def _file(report: Report) -> dict[str, Any]:
    return {
        "file": report.file,
        "errors": len(report.errors),
        "warnings": len(report.warnings),
        "infos": len(report.infos),
        "findings": [_finding(finding) for finding in report.findings],
        "memory": [{"line": note.line, "engine": note.subject, "text": note.text} for note in report.notes],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    values: dict[str, Any] = {
        "rule": finding.rule,
        "severity": str(finding.severity),
        "line": finding.line,
        "column": finding.column,
        "path": finding.where,
        "message": finding.message,
        "consequence": finding.consequence,
        "fix": finding.fix,
        "source": finding.source,
    }
    if finding.silenced is not None:
        values["silenced"] = finding.silenced
    return values


def sarif_text(reports: Sequence[Report]) -> str:
    """All reports as SARIF 2.1.0; an unreadable file is a result like any other."""
    levels = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
    results: list[dict[str, Any]] = []
    for report in reports:
        lines = report.source.splitlines()
        for finding in report.findings:
            region: dict[str, Any] = {"startLine": max(finding.line, 1), "startColumn": max(finding.column, 1)}
            if 0 < finding.line <= len(lines):
                region["snippet"] = {"text": without_secrets(lines[finding.line - 1])}
            location = {"artifactLocation": {"uri": report.file.replace("\\", "/")}, "region": region}
            result: dict[str, Any] = {
                "ruleId": finding.rule,
                "level": levels[finding.severity],
                "message": {"text": f"{finding.message}. At run time: {finding.consequence} Fix: {finding.fix}"},
                "locations": [{"physicalLocation": location}],
            }
            if finding.silenced is not None:
                result["suppressions"] = [{"kind": "external", "justification": finding.silenced}]
            results.append(result)
    driver = {
        "name": "ray-llm",
        "version": __version__,
        "rules": [
            {
                "id": rule.id,
                "shortDescription": {"text": rule.title},
                "fullDescription": {"text": rule.consequence},
                "help": {"text": f"{rule.fix} Source: {rule.source}"},
                "defaultConfiguration": {"level": levels[rule.severity]},
            }
            for rule in ALL_RULES
        ],
    }
    log = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    return json.dumps(log, indent=2, ensure_ascii=False)
