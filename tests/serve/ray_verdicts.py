"""Runs in the serve environment: what Ray's own classes say of Serve configs.

Reads a JSON list of YAML texts on standard input, writes a JSON list of reasons for refusal on standard output, null
where a file is accepted: by Serve's schema, by the builder of each application, and by the engine's own arguments.
"""

# Ray is installed in the serve environment only.
# pyright: basic, reportMissingImports=false
from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
warnings.simplefilter("ignore")


def main() -> int:
    """Judges all texts; returns the exit status."""
    import ray
    import yaml
    from ray.llm._internal.serve.serving_patterns.data_parallel.builder import DPOpenAiServingArgs
    from ray.llm._internal.serve.serving_patterns.prefill_decode.builder import PDServingArgs
    from ray.serve.llm import LLMServingArgs, build_dp_openai_app, build_openai_app, build_pd_openai_app
    from ray.serve.schema import ServeDeploySchema

    logging.disable(logging.CRITICAL)
    # The builders ask for the runtime_env of the application's task, which would start a whole cluster here.
    ray.get_runtime_context = lambda: SimpleNamespace(runtime_env={})
    builders = {
        "ray.serve.llm:build_pd_openai_app": (PDServingArgs, build_pd_openai_app),
        "ray.serve.llm:build_openai_app": (LLMServingArgs, build_openai_app),
        "ray.serve.llm:build_dp_openai_app": (DPOpenAiServingArgs, build_dp_openai_app),
    }

    def judge(text: str) -> str | None:
        try:
            config = ServeDeploySchema.model_validate(yaml.safe_load(text))
            for application in config.applications:
                if application.import_path not in builders:
                    continue
                model, build = builders[application.import_path]
                arguments: Any = model.model_validate(application.args)
                for llm in _configs(arguments):
                    llm.get_engine_config().get_initialization_kwargs()
                build(application.args)
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:500]
        return None

    json.dump([judge(text) for text in json.load(sys.stdin)], sys.stdout)
    return 0


def _configs(arguments: Any) -> list[Any]:
    if hasattr(arguments, "llm_configs"):
        return list(arguments.llm_configs)
    if hasattr(arguments, "llm_config"):
        return [arguments.llm_config]
    return [arguments.prefill_config, arguments.decode_config]


if __name__ == "__main__":
    raise SystemExit(main())
