"""``ray-llm rules``: every rule, what goes wrong without it, the fix and its source."""

from __future__ import annotations

import sys
import textwrap
from enum import StrEnum
from typing import Annotated

import typer

from ray_llm_eks.rules import ALL_RULES, Rule


class Format(StrEnum):
    """How rules are printed."""

    HUMAN = "human"
    MARKDOWN = "markdown"


def rules(format: Annotated[Format, typer.Option(help="How rules are printed.")] = Format.HUMAN) -> None:
    """List all rules."""
    typer.echo(markdown() if format is Format.MARKDOWN else _human(), nl=format is Format.HUMAN)


def _human() -> str:
    return "\n\n".join(_paragraph(rule) for rule in ALL_RULES)


def _paragraph(rule: Rule) -> str:
    lines = [f"{rule.id} ({rule.severity}): {rule.title}"]
    for name, text in (("at run time", rule.consequence), ("fix", rule.fix), ("source", rule.source)):
        lines.append(textwrap.fill(f"{name}: {text}", 110, initial_indent="    ", subsequent_indent="        "))
    return "\n".join(lines)


def markdown() -> str:
    """The page docs/rules.md."""
    head = (
        "# Rules\n\n"
        "Made by `ray-llm rules --format markdown`; do not edit. A synth and `ray-llm check` run every rule; errors "
        "stop a\n"
        "synth. A rule is silenced by its id, with a reason, in the settings; the silence is shown.\n\n"
        "| rule | severity | what it asks |\n|---|---|---|\n"
    )
    table = "".join(f"| [{rule.id}](#{rule.id}) | {rule.severity} | {_cell(rule.title)} |\n" for rule in ALL_RULES)
    return head + table + "".join(_section(rule) for rule in ALL_RULES)


def _section(rule: Rule) -> str:
    return (
        f"\n## {rule.id}\n\n"
        f"*{rule.severity.capitalize()}.* {rule.title[:1].upper()}{rule.title[1:]}.\n\n"
        f"- At run time: {rule.consequence}\n- Fix: {rule.fix}\n- Source: {rule.source}\n"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(typer.run(rules))
