"""Reports for people: grouped by file, each finding with its source line and a caret."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .findings import Finding, Report, Severity
from .secrets import without_secrets

MAX_LINE = 110


def human_text(reports: Sequence[Report]) -> str:
    """All reports, then one line that counts; without colours, for terminals and logs alike."""
    blocks = [_file_text(report) for report in reports]
    return "\n\n".join([*blocks, _summary(reports)])


def _file_text(report: Report) -> str:
    lines = report.source.splitlines()
    parts = [report.file]
    parts += [_finding_text(finding, lines) for finding in report.findings]
    if report.notes:
        parts.append("\n".join(f"  memory: {note.subject}: {note.text}" for note in report.notes))
    if len(parts) == 1 or not report.findings:
        parts[0] += ": nothing found"
    return "\n\n".join(parts)


def _finding_text(finding: Finding, lines: Sequence[str]) -> str:
    kind = f"silenced {finding.severity}" if finding.silenced is not None else finding.severity
    head = f"  {finding.line}:{finding.column} {kind} [{finding.rule}] {finding.message}"
    shown = [head, *_source_text(finding, lines)]
    if finding.silenced is not None:
        return "\n".join([*shown, f"      silenced: {finding.silenced}"])
    return "\n".join([*shown, f"      at run time: {finding.consequence}", f"      fix: {finding.fix}"])


def _source_text(finding: Finding, lines: Sequence[str]) -> list[str]:
    if not finding.path or not 0 < finding.line <= len(lines):
        return []
    line = lines[finding.line - 1]
    safe = without_secrets(line)
    start, width = finding.column - 1, finding.width
    if safe != line:
        width = 1
        start = min(start, max(len(safe) - 1, 0))
    if len(safe) > MAX_LINE:
        # A long flow mapping: show what is around the place.
        cut = max(0, min(start - MAX_LINE // 3, len(safe) - MAX_LINE))
        safe, start = ("…" if cut else "") + safe[cut : cut + MAX_LINE], start - cut + (1 if cut else 0)
    caret = " " * start + "^" * max(1, min(width, len(safe) - start))
    number = str(finding.line)
    return [f"      {number} | {safe}", f"      {' ' * len(number)} | {caret}"]


def _summary(reports: Sequence[Report]) -> str:
    counts = Counter(f.severity for report in reports for f in report.findings if f.silenced is None)
    silenced = sum(len(report.silenced) for report in reports)
    words = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "info"}
    text = ", ".join(f"{counts[kind]} {word}{'' if counts[kind] == 1 else 's'}" for kind, word in words.items())
    return text + (f", {silenced} silenced" if silenced else "")
