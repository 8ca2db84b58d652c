"""What a check finds, and how it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ray_llm_eks.errors import ConfigurationError
from ray_llm_eks.yaml_document import YamlPath


class Severity(StrEnum):
    """How bad a finding is; only errors stop a synth."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a rule found in one place of one file."""

    rule: str
    severity: Severity
    file: str
    line: int
    column: int
    width: int
    path: YamlPath
    message: str
    consequence: str
    fix: str
    source: str
    silenced: str | None = None
    """Why this finding does not count, if its rule is silenced."""

    @property
    def where(self) -> str:
        """The YAML path as text: ``applications[0].args.decode_config``."""
        return path_text(self.path)


@dataclass(frozen=True, kw_only=True)
class Note:
    """A figure worth printing for one engine, such as what its memory goes to."""

    file: str
    line: int
    subject: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """All findings of one file, in the order of the file; silenced ones are kept and shown, but do not count."""

    file: str
    source: str
    """The file's text."""
    findings: Sequence[Finding]
    notes: Sequence[Note] = ()

    def of(self, severity: Severity) -> list[Finding]:
        """The findings of one severity that count."""
        return [f for f in self.findings if f.severity is severity and f.silenced is None]

    @property
    def errors(self) -> list[Finding]:
        """What could not work."""
        return self.of(Severity.ERROR)

    @property
    def warnings(self) -> list[Finding]:
        """What works badly, or not always."""
        return self.of(Severity.WARNING)

    @property
    def infos(self) -> list[Finding]:
        """What is worth knowing."""
        return self.of(Severity.INFO)

    @property
    def silenced(self) -> list[Finding]:
        """What a rule found that the settings silence."""
        return [f for f in self.findings if f.silenced is not None]

    def raise_errors(self) -> None:
        """Raises ``ConfigurationError`` with the whole report if there is an error in it."""
        if self.errors:
            raise ConfigurationError(f"the Serve config cannot work on these nodes\n\n{self.text()}")

    def text(self) -> str:
        """The report for people: findings with their source lines, notes, a count."""
        from .human import human_text

        return human_text([self])


def path_text(path: YamlPath) -> str:
    """``("applications", 0, "args")`` as ``applications[0].args``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "(the whole file)"
