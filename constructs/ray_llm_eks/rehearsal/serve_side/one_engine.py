"""Runs one engine that does prefill and decode itself, over prompts that have been answered already.

Reads ``{"model", "engine_kwargs", "requests": [{"prompt": ids, "answer": ids}]}`` from a JSON file and writes, for each
request, the greedy answer of this engine and how far each token of the given answer is from this engine's own choice.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path


def main() -> None:
    """Command line: input file and output file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    task = json.loads(arguments.input.read_text("utf-8"))

    from vllm import LLM, SamplingParams
    from vllm.engine.arg_utils import EngineArgs

    known = {field.name for field in fields(EngineArgs)} - {"kv_transfer_config"}
    engine = LLM(
        **{
            **{name: value for name, value in task["engine_kwargs"].items() if name in known},
            "model": task["model"],
            # Each request is compared with an engine that computes all of it.
            "enable_prefix_caching": False,
        }
    )
    requests = task["requests"]
    greedy = engine.generate(
        [{"prompt_token_ids": request["prompt"]} for request in requests],
        [SamplingParams(temperature=0, max_tokens=max(1, len(request["answer"]))) for request in requests],
        use_tqdm=False,
    )
    forced = engine.generate(
        [{"prompt_token_ids": request["prompt"] + request["answer"]} for request in requests],
        SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1),
        use_tqdm=False,
    )
    results = []
    for request, own, teacher in zip(requests, greedy, forced, strict=True):
        gaps = []
        for position, token in enumerate(request["answer"], start=len(request["prompt"])):
            candidates = teacher.prompt_logprobs[position]
            best = max(candidate.logprob for candidate in candidates.values())
            gaps.append(best - candidates[token].logprob)
        results.append({"greedy": list(own.outputs[0].token_ids), "gaps": gaps})
    arguments.output.write_text(json.dumps(results), "utf-8")


if __name__ == "__main__":
    main()
