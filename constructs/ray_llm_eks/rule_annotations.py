"""Shows what rules find as CDK annotations."""

from __future__ import annotations

from aws_cdk import Annotations
from constructs import IConstruct

from .rules import Report, Severity


def annotate(construct: IConstruct, report: Report) -> None:
    """Adds warnings and information of a report to a construct; errors have stopped the synthesis before."""
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
        else:
            annotations.add_info(text)
    for note in report.notes:
        annotations.add_info(f"{note.file}:{note.line} memory of {note.subject}: {note.text}")
