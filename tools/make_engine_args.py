"""Write vLLM's engine arguments as JSON, read from its source: nothing of vLLM is imported.

Usage: make_engine_args.py WHEEL_OR_FOLDER [OUT.json]

WHEEL_OR_FOLDER is a vllm wheel, or a folder that holds the unpacked package `vllm` and its dist-info.
The result is {"vllm": VERSION, "arguments": [{"name", "type", "default", "class", "choices"?}, ...]}: `type` is the annotation's
text, `default` the text of the default with one level of indirection resolved (`ModelConfig.seed` becomes `0`), `choices` the
values that a Literal alias in the annotation allows.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

ARG_UTILS = "vllm/engine/arg_utils.py"
CLASSES = ("EngineArgs", "AsyncEngineArgs")
FRONTEND = ("vllm/entrypoints/openai/cli_args.py", ("BaseFrontendArgs", "FrontendArgs"))


class Source:
    """The Python files of one vllm distribution, from a wheel or from a folder."""

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path) if path.is_file() else None
        self._root = path
        self.names = (
            [n for n in self._zip.namelist() if n.endswith((".py", "METADATA"))]
            if self._zip
            else [p.relative_to(path).as_posix() for p in path.rglob("*") if p.name.endswith((".py", "METADATA"))]
        )

    def read(self, name: str) -> str:
        if self._zip:
            return self._zip.read(name).decode("utf-8")
        return (self._root / name).read_text("utf-8")

    def version(self) -> str:
        for name in self.names:
            if re.fullmatch(r"vllm(_\w+)?-[^/]+\.dist-info/METADATA", name):
                found = re.search(r"^Version: (\S+)", self.read(name), re.M)
                if found:
                    return found.group(1)
        raise SystemExit("no vllm-*.dist-info/METADATA: not a vllm wheel or unpacked vllm")


def fields(tree: ast.Module, name: str) -> list[ast.AnnAssign]:
    """The annotated assignments of the class called `name`, in order."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return [n for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
    return []


class Resolver:
    """Finds what `SomeConfig.field` and Literal aliases stand for in vllm/config and a few other modules."""

    def __init__(self, source: Source) -> None:
        self.defaults: dict[tuple[str, str], str] = {}
        self.bases: dict[str, list[str]] = {}
        self.aliases: dict[str, ast.expr] = {}
        self.enums: dict[str, list[str]] = {}
        wanted = [n for n in source.names if n.startswith("vllm/config/") and n.endswith(".py")]
        wanted += [
            ARG_UTILS,
            "vllm/model_executor/layers/quantization/__init__.py",
            "vllm/model_executor/model_loader/__init__.py",
            "vllm/v1/attention/backends/registry.py",
        ]
        for name in (n for n in wanted if n in source.names):
            self._scan(ast.parse(source.read(name)))

    def _scan(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self.bases[node.name] = [ast.unparse(b) for b in node.bases]
                for item in node.body:
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None:
                        self.defaults[node.name, item.target.id] = ast.unparse(item.value)
                    elif (
                        isinstance(item, ast.Assign)
                        and isinstance(item.targets[0], ast.Name)
                        and any("Enum" in b for b in self.bases[node.name])
                    ):
                        self.enums.setdefault(node.name, []).append(item.targets[0].id)
        for node in tree.body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            value = getattr(node, "value", None)
            if isinstance(target, ast.Name) and isinstance(value, ast.expr):
                self.aliases.setdefault(target.id, value)

    def default(self, node: ast.expr | None) -> str | None:
        if node is None:
            return None
        text = ast.unparse(node)
        found = re.fullmatch(r"(\w+)\.(\w+)", text) or re.fullmatch(r"get_field\((\w+), '(\w+)'\)", text)
        if not found:
            return text
        return self.defaults.get((found.group(1), found.group(2)), text)

    def choices(self, node: ast.expr, depth: int = 0) -> list[Any]:
        """Literal values that the annotation allows; empty when it is open-ended or not made of literals."""
        if depth > 6:
            return []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return self.choices(node.left, depth + 1) + self.choices(node.right, depth + 1)
        if isinstance(node, ast.Subscript):
            head = ast.unparse(node.value)
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if head == "Literal":
                out: list[Any] = []
                for item in inner:
                    if isinstance(item, ast.Constant):
                        out.append(item.value)
                    else:
                        out += self.choices(item, depth + 1)
                return out
            if head in ("Optional", "Union"):
                return [c for item in inner for c in self.choices(item, depth + 1)]
            return []
        if isinstance(node, ast.Name) and node.id in self.aliases:
            return self.choices(self.aliases[node.id], depth + 1)
        return []


def arguments(source: Source) -> list[dict[str, Any]]:
    resolver = Resolver(source)
    tree = ast.parse(source.read(ARG_UTILS))
    out: list[dict[str, Any]] = []
    for cls in CLASSES:
        for field in fields(tree, cls):
            assert isinstance(field.target, ast.Name)
            entry: dict[str, Any] = {
                "name": field.target.id,
                "type": ast.unparse(field.annotation),
                "default": resolver.default(field.value),
                "class": cls,
            }
            choices = resolver.choices(field.annotation)
            if choices:
                entry["choices"] = sorted(dict.fromkeys(choices), key=str)
                open_ended = re.search(r"(?<!\w)str(?!\w)", entry["type"]) is not None
                entry["choices_complete"] = not open_ended
            out.append(entry)
    name, classes = FRONTEND
    if name in source.names:
        tree = ast.parse(source.read(name))
        for cls in classes:
            for field in fields(tree, cls):
                assert isinstance(field.target, ast.Name)
                out.append(
                    {
                        "name": field.target.id,
                        "type": ast.unparse(field.annotation),
                        "default": resolver.default(field.value),
                        "class": cls,
                    }
                )
    return out


def main(argv: list[str]) -> int:
    if len(argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    source = Source(Path(argv[1]))
    found = arguments(source)
    if not any(a["name"] == "tensor_parallel_size" for a in found):
        raise SystemExit(f"{ARG_UTILS} has no EngineArgs.tensor_parallel_size: vLLM's layout changed, read it")
    text = json.dumps({"vllm": source.version(), "arguments": found}, indent=1) + "\n"
    if len(argv) == 3:
        Path(argv[2]).write_text(text, "utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
