"""Runs all rules over one Serve config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ray_llm_eks.model_facts import ModelFacts
from ray_llm_eks.serve_config import ServeConfig

from . import document, engine_arguments, gpu_memory, handover, operation, placement, secrets, transport
from .deployment import Deployment
from .findings import Finding, Note, Report, Severity
from .rule import Problem, Rule
from .subject import Subject

ALL_RULES: tuple[Rule, ...] = (
    *document.RULES,
    *engine_arguments.RULES,
    *gpu_memory.RULES,
    *placement.RULES,
    *transport.RULES,
    *handover.RULES,
    *operation.RULES,
    *secrets.RULES,
)
"""Every rule, by theme."""

_RANK = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


def check_serve_config(
    config: ServeConfig,
    deployment: Deployment,
    silenced: Mapping[str, str] | None = None,
    *,
    model: ModelFacts | None = None,
) -> Report:
    """Checks a Serve config against a deployment.

    Args:
        config: the file.
        deployment: nodes by role, image, and the like.
        silenced: reasons by rule id; findings of these rules are shown and do not count.
        model: the shape of the models in the file, if no profile is to be used.

    Returns:
        All findings, in the order of the file, and what each engine's memory goes to.
    """
    subject = Subject(config, deployment, model)
    reasons = silenced or {}
    findings = [
        _finding(subject, rule, problem, reasons.get(rule.id)) for rule in ALL_RULES for problem in rule.check(subject)
    ]
    findings.sort(key=lambda f: (f.line, f.column, _RANK[f.severity], f.rule))
    return Report(
        file=config.path, source=config.text, findings=_without_repetition(findings), notes=tuple(_notes(subject))
    )


def unknown_rules(ids: Iterable[str]) -> list[str]:
    """Those of the ids that no rule has; for checking settings that silence rules."""
    known = {rule.id for rule in ALL_RULES}
    return [id for id in ids if id not in known]


def _finding(subject: Subject, rule: Rule, problem: Problem, silenced: str | None) -> Finding:
    place = subject.document.place(problem.path)
    return Finding(
        rule=rule.id,
        severity=problem.severity or rule.severity,
        file=subject.document.path,
        line=place.line,
        column=place.column,
        width=place.width,
        path=problem.path,
        message=problem.message,
        consequence=problem.consequence or rule.consequence,
        fix=problem.fix or rule.fix,
        source=rule.source,
        silenced=silenced,
    )


def _without_repetition(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """A value behind an anchor is found once for each alias; what it says of the same place is said once."""
    unique: dict[tuple[str, int, int, str], Finding] = {}
    for finding in findings:
        unique.setdefault((finding.rule, finding.line, finding.column, finding.message), finding)
    return tuple(unique.values())


def _notes(subject: Subject) -> Iterable[Note]:
    for engine in subject.engines:
        if engine.memory is not None:
            place = subject.document.place(engine.path)
            gpus = engine.tensor_parallel * engine.pipeline_parallel
            each = f", each of {gpus} GPUs" if gpus > 1 else ""
            yield Note(
                file=subject.document.path,
                line=place.line,
                subject=f"{engine.name} on {engine.pool.facts.name}{each}",
                text=engine.memory.text(),
            )
