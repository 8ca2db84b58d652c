"""Reading YAML: places, what is refused, and how long that takes."""

from __future__ import annotations

import datetime
import time
from pathlib import Path

import pytest
import yaml

from ray_llm_eks.errors import DocumentError
from ray_llm_eks.yaml_document import MAX_BYTES, parse_document, read_document

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 10)}]\n" for n in range(9)
)
MERGE_BOMB = "m0: &m0 {a: 1}\n" + "".join(
    f"m{n}: &m{n}\n  <<: [{', '.join([f'*m{n - 1}'] * 10)}]\n" for n in range(1, 10)
)

REFUSED = {
    "tab": ("a:\n\t- b", "2:1: a tab where YAML wants spaces"),
    "syntax": ("a: b: c", "1:5: is no valid YAML: mapping values are not allowed here"),
    "two-documents": ("a: 1\n---\nb: 2", "2:1: a second document begins here"),
    "duplicate-key": ("a: 1\nb: 2\na: 3", "3:1: the key a is given twice (first in line 1)"),
    "yaml-bomb": (BOMB, "grows beyond 5000 values"),
    "cycle": ("a: &a\n  b: *a", "an anchor contains itself"),
    "list-cycle": ("&a [*a]", "an anchor contains itself"),
    "merge-cycle": ("a: &a\n  <<: *a", "an anchor contains itself"),
    "deep-list": ("[" * 100_000, "nested deeper than 60 levels"),
    "deep-mapping": ("".join(" " * n + "a:\n" for n in range(400)), "nested deeper than 60 levels"),
    "undefined-alias": ("a: *b", "found undefined alias"),
    "boolean-key": ("on: 1", "the key on is read as True (YAML 1.1), not as text: write 'on' in quotes"),
    "list-key": ("? [a]\n: 1", "a key must be text"),
    "impossible-date": ("a: 2026-13-45", "no value that YAML can read"),
    "huge-number": ("a: " + "9" * 5000, "no value that YAML can read"),
    "control-character": ("a: \x01", "a character that YAML does not allow"),
    "python-object": ("a: !!python/object/apply:os.system [x]", "1:4: the tag !!python/object/apply:os.system"),
    "binary-value": ("a: !!binary aGk=", "the tag !!binary has no place"),
    "too-large": ("a: " + "b" * MAX_BYTES, "is larger than 256 KiB"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason_and_in_time(name: str) -> None:
    text, reason = REFUSED[name]
    start = time.process_time()
    with pytest.raises(DocumentError) as caught:
        parse_document(text, path="file.yaml")
    assert reason in str(caught.value)
    assert str(caught.value).startswith("file.yaml")
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x7fELF\x00\x01\x02", "is a binary file"),
        ("a: 1".encode("utf-16"), "is UTF-16 text; Ray reads UTF-8"),
        ("a: 1".encode("utf-16-le"), "is a binary file"),
        (b"a: 1\nb: \xff\xfe", "is not UTF-8 text"),
        (b"a: b\n" * 1_000_000, "is larger than 256 KiB"),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "serve.yaml"
    path.write_bytes(data)
    with pytest.raises(DocumentError, match=reason):
        read_document(path)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="there is no such file"):
        read_document(tmp_path / "none.yaml")
    with pytest.raises(DocumentError, match="is a folder"):
        read_document(tmp_path)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_document(path).root == {"a": 1}


def test_scalars_mean_what_they_mean_to_ray() -> None:
    text = "a: on\nb: 0o10\nc: 010\nd: 2026-12-01\ne: 1:30\nf: 1e3\ng: ~\nh: .5\ni: 0x10\n"
    document = parse_document(text)
    assert document.root == yaml.safe_load(text)
    assert document.get(("b",)) == "0o10"
    assert document.get(("d",)) == datetime.date(2026, 12, 1)


def test_anchors_and_merges_mean_what_they_mean_to_ray() -> None:
    text = "base: &base {x: 1, y: 2}\none: *base\ntwo:\n  <<: *base\n  y: 3\nthree:\n  <<: [*base, {z: 4}]\n"
    assert parse_document(text).root == yaml.safe_load(text)


def test_places_of_keys_and_values() -> None:
    document = parse_document("a:\n  b: [1, 22]\n  c:\n    d: word\n")
    assert (document.place(("a", "b", 1)).line, document.place(("a", "b", 1)).column) == (2, 10)
    assert document.place(("a", "b", 1)).width == 2
    # A mapping or a list is pointed at by its key, something missing by what is around it.
    assert (document.place(("a", "c")).line, document.place(("a", "c")).column) == (3, 3)
    assert document.place(("a", "c", "none", "below")) == document.place(("a", "c"))
    assert document.get(("a", "c", "d")) == "word"
    assert document.get(("a", "b", 7)) is None
    assert document.get(("a", "b", "x")) is None


def test_many_merges_take_little_time() -> None:
    start = time.process_time()
    assert parse_document(MERGE_BOMB).get(("m9", "a")) == 1
    assert time.process_time() - start < 2
