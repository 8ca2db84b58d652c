"""Write the JSON Schema of Serve config files for editors, from the typed model that synth uses.

Usage: make_editor_schema.py [OUT.json]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ray_llm_eks.engine_arguments import EngineArgument, engine_arguments, vllm_version
from ray_llm_eks.ray_schema import (
    DP_BUILDER,
    OPENAI_BUILDER,
    PD_BUILDER,
    DPOpenAiServingArgs,
    LLMServingArgs,
    PDServingArgs,
    PlacementGroupConfig,
    ServeFile,
)

OUT = Path(__file__).parent.parent / "constructs" / "ray_llm_eks" / "facts" / "serve-config.schema.json"
JSON_TYPES = {"int": "integer", "float": "number", "str": "string", "bool": "boolean", "None": "null"}
BUILDERS = {PD_BUILDER: PDServingArgs, OPENAI_BUILDER: LLMServingArgs, DP_BUILDER: DPOpenAiServingArgs}


def editor_schema() -> dict[str, Any]:
    """The schema: the file, and by builder the arguments, with placement groups and engine arguments filled in."""
    schema = ServeFile.model_json_schema()
    definitions: dict[str, Any] = schema["$defs"]
    branches: list[dict[str, Any]] = []
    for builder, model in BUILDERS.items():
        inner = model.model_json_schema(ref_template="#/$defs/{model}")
        definitions.update(inner.pop("$defs", {}))
        definitions[model.__name__] = inner
        branches.append(
            {
                "if": {"properties": {"import_path": {"const": builder}}, "required": ["import_path"]},
                "then": {"properties": {"args": {"$ref": f"#/$defs/{model.__name__}"}}, "required": ["args"]},
            }
        )
    group = PlacementGroupConfig.model_json_schema(ref_template="#/$defs/{model}")
    definitions.update(group.pop("$defs", {}))
    definitions["PlacementGroupConfig"] = group
    definitions["EngineArguments"] = _engine_arguments()
    properties = definitions["LLMConfig"]["properties"]
    properties["placement_group_config"] = {"anyOf": [{"$ref": "#/$defs/PlacementGroupConfig"}, {"type": "null"}]}
    properties["engine_kwargs"] = {"$ref": "#/$defs/EngineArguments"}
    definitions["Application"]["allOf"] = branches
    whole = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Ray Serve config for Ray Serve LLM",
        "$comment": f"Made by tools/make_editor_schema.py; engine arguments of vLLM {vllm_version()}.",
        **{key: value for key, value in schema.items() if key not in ("title", "$defs")},
        "definitions": definitions,
    }
    # Draft 7, which editors read, keeps definitions under another name than pydantic.
    return json.loads(json.dumps(whole).replace("#/$defs/", "#/definitions/"))


def _engine_arguments() -> dict[str, Any]:
    properties = {name: _property(argument) for name, argument in sorted(engine_arguments().items())}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _property(argument: EngineArgument) -> dict[str, Any]:
    if argument.choices:
        return {"description": argument.type, "enum": [*argument.choices, None]}
    if argument.kinds:
        return {"description": argument.type, "type": [JSON_TYPES[kind] for kind in argument.kinds]}
    return {"description": argument.type}


def text() -> str:
    """The schema as it is in the file."""
    return json.dumps(editor_schema(), indent=1) + "\n"


def main(argv: list[str]) -> int:
    """Writes the file; returns the exit status."""
    (Path(argv[1]) if len(argv) > 1 else OUT).write_text(text(), "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
