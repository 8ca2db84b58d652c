"""Reads YAML as Ray does (PyYAML's safe loader), keeps the line and column of every value, and refuses what would hurt.

Scalars mean what they mean to Ray: ``on`` is true, ``0o10`` is text, ``2026-12-01`` is a date. Refused, with a place:
what is no UTF-8 text, syntax errors, several documents in one file, a key given twice or that is no text, cycles
through anchors, and documents that are too large, too deep or grow too large through anchors.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeAlias, cast

import yaml
from yaml.composer import ComposerError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.reader import ReaderError

from .errors import DocumentError

MAX_BYTES = 256 * 1024
"""A Serve config has a few kilobytes; PyYAML reads about 200 kB a second."""
MAX_DEPTH = 60
MAX_VALUES = 5_000
"""Values after anchors are followed: keeps a YAML bomb from growing."""

YamlPath: TypeAlias = tuple[str | int, ...]
"""Where a value is: keys and list positions from the root, such as ``("applications", 0, "args")``."""
Value: TypeAlias = "str | int | float | bool | datetime.date | list[Value] | dict[str, Value] | None"
"""What PyYAML's safe loader makes of a document whose keys are text."""

_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map", "timestamp")
)


@dataclass(frozen=True, slots=True)
class Place:
    """A stretch of one line; lines and columns count from 1."""

    line: int
    column: int
    width: int = 1


class Document:
    """A YAML document: its value, and where each part of it stands."""

    def __init__(self, path: str, text: str, root: Value, places: Mapping[YamlPath, tuple[Place, Place]]) -> None:
        self.path = path
        self.text = text
        self.root = root
        self._places = places

    def place(self, path: YamlPath) -> Place:
        """Where to point for a path: a scalar, the key of a mapping or list; else the nearest thing around it."""
        while path and path not in self._places:
            path = path[:-1]
        key, value = self._places.get(path, (Place(1, 1), Place(1, 1)))
        return key if isinstance(self.get(path), (dict, list)) else value

    def get(self, path: YamlPath) -> Value:
        """The value at a path; None where there is none."""
        value = self.root
        for part in path:
            try:
                value = value[part]  # pyright: ignore
            except (TypeError, LookupError):
                return None
        return cast(Value, value)

    def line(self, number: int) -> str:
        """The text of a line (counted from 1), without its end; empty if there is none."""
        lines = self.text.splitlines()
        return lines[number - 1] if 0 < number <= len(lines) else ""


def read_document(path: Path) -> Document:
    """Reads a file.

    Raises:
        DocumentError: missing, unreadable, too large, not UTF-8, or whatever ``parse_document`` refuses.
    """
    name = str(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise DocumentError(name, "there is no such file") from None
    except IsADirectoryError:
        raise DocumentError(name, "is a folder, not a file") from None
    except OSError as error:
        raise DocumentError(name, f"cannot be read: {error.strerror or error}") from None
    except ValueError:  # a NUL in the name
        raise DocumentError(name, "is not the name of a file") from None
    if len(data) > MAX_BYTES:
        raise DocumentError(name, f"is larger than {MAX_BYTES // 1024} KiB; a Serve config has a few kilobytes")
    return parse_document(_decode(data, name), path=name)


def parse_document(text: str, *, path: str = "<text>") -> Document:
    """Reads the text of one YAML document.

    Raises:
        DocumentError: see the module's docstring.
    """
    if len(text) > MAX_BYTES:
        raise DocumentError(path, f"is larger than {MAX_BYTES // 1024} KiB; a Serve config has a few kilobytes")
    try:
        return _Loader(path, text).load()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise DocumentError(path, _explain(error, text, line), line, column) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise DocumentError(
            path, f"contains a character that YAML does not allow: {chr(error.character)!r}", line
        ) from None
    except yaml.YAMLError as error:
        raise DocumentError(path, f"is no valid YAML: {error}") from None
    except RecursionError:
        raise DocumentError(path, f"is nested deeper than {MAX_DEPTH} levels") from None


def _decode(data: bytes, path: str) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DocumentError(path, "is UTF-16 text; Ray reads UTF-8: save it as UTF-8")
    if b"\0" in data:
        raise DocumentError(path, "is a binary file, not YAML text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DocumentError(path, "is not UTF-8 text: save it as UTF-8", line) from None


def _explain(error: yaml.MarkedYAMLError, text: str, line: int) -> str:
    problem = str(error.problem or error.context or "is no valid YAML")
    lines = text.splitlines()
    if "\\t" in problem or (0 < line <= len(lines) and lines[line - 1].lstrip(" ").startswith("\t")):
        return "a tab where YAML wants spaces: indent with spaces"
    if "expected a single document" in str(error.context):
        return "a second document begins here (---); only one is read: split the file"
    context = f" ({error.context})" if error.context and error.problem else ""
    return f"is no valid YAML: {problem}{context}"


class _Loader:
    """Composes nodes with PyYAML and makes plain values of them, following anchors within limits."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._text = text
        self._yaml = _DepthLimitedLoader(text)
        self._places: dict[YamlPath, tuple[Place, Place]] = {}
        self._open: set[int] = set()

    def load(self) -> Document:
        try:
            node = self._yaml.get_single_node()
            root = self._value(node, (), _place(node)) if node else None
        finally:
            self._yaml.dispose()  # pyright: ignore[reportUnknownMemberType]
        return Document(self._path, self._text, root, self._places)

    def _value(self, node: Node, path: YamlPath, key: Place) -> Value:
        self._places[path] = (key, _place(node))
        if len(self._places) > MAX_VALUES:
            self._refuse(node, f"grows beyond {MAX_VALUES} values when its anchors are followed")
        if len(path) > MAX_DEPTH:
            self._refuse(node, f"is nested deeper than {MAX_DEPTH} levels")
        if node.tag not in _PLAIN_TAGS:
            self._refuse(node, f"the tag {_short_tag(node.tag)} has no place here")
        if isinstance(node, ScalarNode):
            return self._scalar(node)
        if id(node) in self._open:
            self._refuse(node, "an anchor contains itself (a cycle through *aliases)")
        self._open.add(id(node))
        try:
            if isinstance(node, SequenceNode):
                items = cast(list[Node], node.value)
                return [self._value(item, (*path, number), _place(item)) for number, item in enumerate(items)]
            return self._mapping(cast(MappingNode, node), path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: MappingNode, path: YamlPath) -> Value:
        pairs = cast(list[tuple[Node, Node]], node.value)
        seen: dict[str, Node] = {}
        for key_node, _ in pairs:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self._key(key_node)
            if key in seen:
                first = seen[key].start_mark.line + 1
                self._refuse(key_node, f"the key {key} is given twice (first in line {first}); the last would win")
            seen[key] = key_node
        if any(key_node.tag == "tag:yaml.org,2002:merge" for key_node, _ in pairs):
            # Counted first: PyYAML would follow a cycle of merges without end, and copies what it merges.
            self._merged_size(node, 0, ())
            self._yaml.flatten_mapping(node)
            pairs = cast(list[tuple[Node, Node]], node.value)
        return {
            (key := self._key(key_node)): self._value(value, (*path, key), _place(key_node))
            for key_node, value in pairs
        }

    def _merged_size(self, node: Node, size: int, above: tuple[int, ...]) -> int:
        if id(node) in above:
            self._refuse(node, "an anchor contains itself (a cycle through << and *aliases)")
        if size > MAX_VALUES:
            self._refuse(node, f"grows beyond {MAX_VALUES} values when its anchors are followed")
        above = (*above, id(node))
        if isinstance(node, SequenceNode):
            for item in cast(list[Node], node.value):
                size = self._merged_size(item, size, above)
        elif isinstance(node, MappingNode):
            for key, value in cast(list[tuple[Node, Node]], node.value):
                merge = key.tag == "tag:yaml.org,2002:merge"
                size = self._merged_size(value, size, above) if merge else size + 1
        return size + 1

    def _key(self, node: Node) -> str:
        if not isinstance(node, ScalarNode):
            self._refuse(node, "a key must be text, not a list or mapping")
        key = self._scalar(node)
        if not isinstance(key, str):
            written = str(node.value)
            reason = f"the key {written} is read as {key!r} (YAML 1.1), not as text: write '{written}' in quotes"
            self._refuse(node, reason)
        return key

    def _scalar(self, node: ScalarNode) -> Value:
        try:
            return cast(Value, self._yaml.construct_object(node))  # pyright: ignore[reportUnknownMemberType]
        except yaml.YAMLError:
            raise
        except (ValueError, OverflowError, ArithmeticError, LookupError) as error:
            self._refuse(node, f"{str(node.value)[:40]!r} is no value that YAML can read: {str(error)[:80]}")

    def _refuse(self, node: Node, reason: str) -> NoReturn:
        place = _place(node)
        raise DocumentError(self._path, reason, place.line, place.column)


class _DepthLimitedLoader(yaml.SafeLoader):
    """PyYAML's safe loader; composing stops at a depth, long before Python's own limit."""

    _depth = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH + 1:
            mark = self.peek_event().start_mark  # pyright: ignore
            raise ComposerError(None, None, f"nested deeper than {MAX_DEPTH} levels", mark)  # pyright: ignore
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def _place(node: Node) -> Place:
    start, end = node.start_mark, node.end_mark
    width = end.column - start.column if end.line == start.line else 1
    return Place(start.line + 1, start.column + 1, max(width, 1))


def _short_tag(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")
