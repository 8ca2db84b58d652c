"""Write vLLM's engine arguments as JSON, read from its source: nothing of vLLM is imported.

Usage: make_engine_args.py WHEEL_OR_FOLDER [OUT.json]

WHEEL_OR_FOLDER is a vllm wheel, or a folder that holds the unpacked package ``vllm`` and its dist-info. The result is
``{"vllm": VERSION, "arguments": [{"name", "type", "default", "class", "choices"?}, …]}``: ``type`` is the annotation's
text, ``default`` the text of the default with one level of indirection resolved (``ModelConfig.seed`` becomes ``0``),
``choices`` the values that a Literal alias in the annotation allows.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from pathlib import Path

OUT = Path(__file__).parent.parent / "constructs" / "ray_llm_eks" / "facts" / "engine_args.json"

ARG_UTILS = "vllm/engine/arg_utils.py"
CLASSES = ("EngineArgs", "AsyncEngineArgs")
FRONTEND = "vllm/entrypoints/openai/cli_args.py"
FRONTEND_CLASSES = ("BaseFrontendArgs", "FrontendArgs")
LITERALS = (
    ARG_UTILS,
    "vllm/model_executor/layers/quantization/__init__.py",
    "vllm/model_executor/model_loader/__init__.py",
    "vllm/v1/attention/backends/registry.py",
)

Argument = dict[str, object]


class Source:
    """The Python files of one vllm distribution, from a wheel or from a folder."""

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path) if path.is_file() else None
        self._root = path
        names = self._zip.namelist() if self._zip else [p.relative_to(path).as_posix() for p in path.rglob("*")]
        self.names = frozenset(name for name in names if name.endswith((".py", "METADATA")))

    def read(self, name: str) -> str:
        """The text of one file."""
        if self._zip:
            return self._zip.read(name).decode("utf-8")
        return (self._root / name).read_text("utf-8")

    def version(self) -> str:
        """The version in the dist-info."""
        for name in sorted(self.names):
            if re.fullmatch(r"vllm(_\w+)?-[^/]+\.dist-info/METADATA", name):
                found = re.search(r"^Version: (\S+)", self.read(name), re.M)
                if found:
                    return found[1]
        raise SystemExit("no vllm-*.dist-info/METADATA: not a vllm wheel or unpacked vllm")


def fields(tree: ast.Module, name: str) -> list[tuple[str, ast.AnnAssign]]:
    """The annotated assignments of the class called ``name``, in order."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return [
                (item.target.id, item)
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            ]
    return []


class Resolver:
    """Finds what ``SomeConfig.field`` and Literal aliases stand for in vllm/config and a few other modules."""

    def __init__(self, source: Source) -> None:
        self.defaults: dict[tuple[str, str], str] = {}
        self.aliases: dict[str, ast.expr] = {}
        wanted = sorted(name for name in source.names if name.startswith("vllm/config/") and name.endswith(".py"))
        for name in (name for name in (*wanted, *LITERALS) if name in source.names):
            self._scan(ast.parse(source.read(name)))

    def _scan(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                for item in node.body:
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None:
                        self.defaults[node.name, item.target.id] = ast.unparse(item.value)
        for node in tree.body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            value = getattr(node, "value", None)
            if isinstance(target, ast.Name) and isinstance(value, ast.expr):
                self.aliases.setdefault(target.id, value)

    def default(self, node: ast.expr | None) -> str | None:
        """The text of a default, looked up where it is another class's."""
        if node is None:
            return None
        text = ast.unparse(node)
        found = re.fullmatch(r"(\w+)\.(\w+)", text) or re.fullmatch(r"get_field\((\w+), '(\w+)'\)", text)
        return self.defaults.get((found[1], found[2]), text) if found else text

    def choices(self, node: ast.expr, depth: int = 0) -> list[object]:
        """Literal values that the annotation allows; empty when it is not made of literals."""
        if depth > 6:
            return []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return self.choices(node.left, depth + 1) + self.choices(node.right, depth + 1)
        if isinstance(node, ast.Name) and node.id in self.aliases:
            return self.choices(self.aliases[node.id], depth + 1)
        if not isinstance(node, ast.Subscript):
            return []
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        head = ast.unparse(node.value)
        if head == "Literal":
            return [
                choice
                for item in inner
                for choice in ([item.value] if isinstance(item, ast.Constant) else self.choices(item, depth + 1))
            ]
        if head in ("Optional", "Union"):
            return [choice for item in inner for choice in self.choices(item, depth + 1)]
        return []


def arguments(source: Source) -> list[Argument]:
    """All arguments: the engine's own, then those of the OpenAI front end that Ray Serve LLM splits off."""
    resolver = Resolver(source)
    tree = ast.parse(source.read(ARG_UTILS))
    found: list[Argument] = []
    for cls in CLASSES:
        for name, field in fields(tree, cls):
            entry = _entry(resolver, cls, name, field)
            choices = resolver.choices(field.annotation)
            if choices:
                entry["choices"] = sorted(dict.fromkeys(choices), key=str)
                entry["choices_complete"] = re.search(r"(?<!\w)str(?!\w)", str(entry["type"])) is None
            found.append(entry)
    if FRONTEND in source.names:
        tree = ast.parse(source.read(FRONTEND))
        found += [_entry(resolver, cls, *field) for cls in FRONTEND_CLASSES for field in fields(tree, cls)]
    return found


def _entry(resolver: Resolver, cls: str, name: str, field: ast.AnnAssign) -> Argument:
    return {
        "name": name,
        "type": ast.unparse(field.annotation),
        "default": resolver.default(field.value),
        "class": cls,
    }


def main(argv: list[str]) -> int:
    """Writes the file; returns the exit status."""
    if len(argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    source = Source(Path(argv[1]))
    found = arguments(source)
    if not any(argument["name"] == "tensor_parallel_size" for argument in found):
        raise SystemExit(f"{ARG_UTILS} has no EngineArgs.tensor_parallel_size: vLLM's layout changed, read it")
    text = json.dumps({"vllm": source.version(), "arguments": found}, indent=1) + "\n"
    (Path(argv[2]) if len(argv) == 3 else OUT).write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
