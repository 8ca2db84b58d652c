"""The rule against secrets in the file, and what it takes to print a line without them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ray_llm_eks.yaml_document import Value, YamlPath

from .findings import Severity
from .rule import Problem, Rule, rule
from .subject import Subject

_VALUES = re.compile(
    r"hf_[A-Za-z0-9]{16,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}"
    r"|sk-[A-Za-z0-9_-]{20,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}"
    r"|xox[abpr]-[\w-]{10,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|://[^/\s:@]+:[^/\s:@]{3,}@"
)
"""Forms that only secrets have."""
_NAMES = re.compile(
    r"(?i)(^|_|-)(token|secret|password|passwd|api_?key|access_?key|private_?key|credentials?)(_?file)?$"
)
_HARMLESS_NAMES = re.compile(r"(?i)(^|_)(pad|eos|bos|unk|stop|think|reasoning)_?token$|_file$|_path$")
HIDDEN = "…"


@rule(
    "secret-in-file",
    Severity.ERROR,
    title="no secret is written in the file",
    consequence="The file's text becomes the RayService's serveConfigV2: whoever may read templates, the repository "
    "or the "
    "cluster's objects reads the secret.",
    fix="Put it into Secrets Manager (serving.hugging_face_token_secret for a Hub token), remove it here, and revoke "
    "it.",
    source="This library: serveConfigV2 is the file's own text.",
)
def secret_in_file(subject: Subject) -> Iterator[Problem]:
    """Finds values that look like secrets, and texts under names of secrets. Never repeats the value."""
    seen: set[tuple[int, int]] = set()
    for path, value in _texts(subject.document.root, ()):
        name = str(path[-1]) if path else ""
        by_value = _VALUES.search(value)
        by_name = _NAMES.search(name) and not _HARMLESS_NAMES.search(name) and _may_be_secret(value)
        if not by_value and not by_name:
            continue
        place = subject.document.place(path)
        # The same text may be reached through several anchors.
        if (place.line, place.column) not in seen:
            seen.add((place.line, place.column))
            what = "looks like a secret" if by_value else "is the name of a secret, with a value"
            yield Problem(path=path, message=f"{name or 'a value'} {what}")


def _may_be_secret(value: str) -> bool:
    """Whether a text under the name of a secret may be one: no sentence, and no placeholder."""
    return len(value) >= 8 and " " not in value and not value.startswith(("$", "<", "{{"))


def _texts(value: Value, path: YamlPath) -> Iterator[tuple[YamlPath, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _texts(inner, (*path, number))


def without_secrets(line: str) -> str:
    """A line of the file, fit to be printed: values that look like secrets, or stand after their names, are hidden."""
    line = _VALUES.sub(HIDDEN, line)
    return re.sub(
        r"(?i)(\b[\w-]*(?:token|secret|password|passwd|api_?key|access_?key|private_?key|credentials?)[\"']?\s*:\s*)"
        r"(?![\[{&*|>]|true\b|false\b|null\b|\d+\s*(?:[,}\]#]|$))([^,}\s]+)",
        rf"\1{HIDDEN}",
        line,
    )


RULES: tuple[Rule, ...] = (secret_in_file,)
