"""What a rule is: a small function over plain data, with words for what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ray_llm_eks.yaml_document import YamlPath

from .findings import Severity
from .subject import Subject


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One place where a rule is broken. What is None is as the rule says."""

    path: YamlPath
    message: str
    """What is wrong here, with the figures."""
    fix: str | None = None
    consequence: str | None = None
    severity: Severity | None = None


Check = Callable[[Subject], Iterable[Problem]]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule; ``check`` yields its problems and never raises."""

    id: str
    severity: Severity
    title: str
    """What the rule asks, in a few words."""
    consequence: str
    """What happens at run time if it is ignored."""
    fix: str
    source: str
    """Where this is known from."""
    check: Check


def rule(
    id: str, severity: Severity, *, title: str, consequence: str, fix: str, source: str
) -> Callable[[Check], Rule]:
    """Makes a rule of a function."""

    def decorate(check: Check) -> Rule:
        return Rule(id=id, severity=severity, title=title, consequence=consequence, fix=fix, source=source, check=check)

    return decorate
