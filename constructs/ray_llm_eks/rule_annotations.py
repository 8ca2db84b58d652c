"""Shows what rules find as CDK annotations."""

from __future__ import annotations

from aws_cdk import Annotations
from constructs import IConstruct

from .rules import Report, Severity


def annotate(construct: IConstruct, report: Report) -> None:
    """Adds a report's warnings, silences and memory figures to a construct.

    Errors have stopped the synthesis before; plain information is for ``ray-llm check``.
    """
    annotations = Annotations.of(construct)
    for finding in report.findings:
        place = f"{finding.file}:{finding.line}:{finding.column}"
        text = f"{place} [{finding.rule}] {finding.message}"
        if finding.silenced is not None:
            annotations.add_info(f"{text} (silenced: {finding.silenced})")
        elif finding.severity is Severity.WARNING:
            annotations.add_warning_v2(
                f"ray-llm:{finding.rule}", f"{text} At run time: {finding.consequence} Fix: {finding.fix}"
            )
    for note in report.notes:
        annotations.add_info(f"{note.file}:{note.line} memory of {note.subject}: {note.text}")
