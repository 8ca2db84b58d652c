"""Rules about running it: queues, upgrades, versions, access to models, and what should not be in a file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from ray_llm_eks.engine_arguments import vllm_version
from ray_llm_eks.worker_pods import pods_needed

from .findings import Severity
from .rule import Problem, Rule, rule
from .subject import Engine, Subject


@cache
def _facts(name: str) -> dict[str, Any]:
    return tomllib.loads((files("ray_llm_eks") / "facts" / name).read_text("utf-8"))


@dataclass(frozen=True)
class Versions:
    """What an image carries; empty where it is not known."""

    ray: str = ""
    vllm: str = ""


def image_versions(image: str) -> Versions:
    """Ray's and vLLM's version in an image: from the facts, or Ray's from the tag of a rayproject image."""
    name = image.partition("@")[0].rsplit("/", 1)[-1]
    if known := _facts("images.toml").get(name):
        return Versions(ray=known["ray"], vllm=known["vllm"])
    if found := re.fullmatch(r"ray(?:-llm|-ml)?:(\d+\.\d+\.\d+)(?:[-.].*)?", name):
        return Versions(ray=found[1])
    return Versions()


@rule(
    "image-versions",
    Severity.ERROR,
    title="rayVersion is the Ray in the image",
    consequence="KubeRay writes commands for rayVersion that the image's Ray may not know; head and workers fail to "
    "start.",
    fix="Set serving.ray_version to the image's Ray.",
    source="KubeRay: rayVersion must match the image; facts/images.toml.",
)
def image_has_versions(subject: Subject) -> Iterator[Problem]:
    """Compares the image's Ray with rayVersion, and its vLLM with the list of engine arguments."""
    deployment = subject.deployment
    versions = image_versions(deployment.image)
    if versions.ray and deployment.ray_version and versions.ray != deployment.ray_version:
        yield Problem(
            path=(),
            message=f"the image {deployment.image} has Ray {versions.ray}, rayVersion says {deployment.ray_version}",
        )
    if versions.vllm and versions.vllm != vllm_version():
        yield Problem(
            path=(),
            severity=Severity.WARNING,
            message=f"the image has vLLM {versions.vllm}; engine arguments are checked against {vllm_version()}",
            consequence="Arguments that came or went between the two versions are judged wrongly.",
            fix="Make the list anew: tools/make_engine_args.py WHEEL.",
        )


@rule(
    "known-fault",
    Severity.ERROR,
    title="Ray and vLLM have no known fault that this file runs into",
    consequence="See the message; each has its source.",
    fix="Use the versions of the default image.",
    source="facts/known_faults.toml.",
)
def known_fault(subject: Subject) -> Iterator[Problem]:
    """Looks up the versions of the image, or of rayVersion where the image is not known."""
    versions = image_versions(subject.deployment.image)
    ray = versions.ray or subject.deployment.ray_version
    for fault in _facts("known_faults.toml")["fault"]:
        ranges = [(ray, fault.get("ray")), (versions.vllm, fault.get("vllm"))]
        if not all(bounds is None or _within(version, bounds) for version, bounds in ranges):
            continue
        if fault.get("disaggregated") and not subject.pairs:
            continue
        for engine in subject.engines[:1] if not fault.get("needs") else subject.engines:
            needs: Mapping[str, object] = fault.get("needs", {})
            if all(engine.arguments.get(name) == value for name, value in needs.items()):
                yield Problem(
                    path=engine.argument_path(next(iter(needs))) if needs else engine.path[:2],
                    severity=Severity(fault.get("severity", "error")),
                    message=f"Ray {ray or '?'}, vLLM {versions.vllm or '?'}: {fault['message']} ({fault['source']})",
                    fix=fault["fix"],
                )


def _within(version: str, bounds: Mapping[str, str]) -> bool:
    if not version:
        return False
    number = _numbers(version)
    return _numbers(bounds.get("from", "0")) <= number <= _numbers(bounds.get("to", "9999"))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


@rule(
    "upgrade-needs-nodes",
    Severity.ERROR,
    title="the upgrade strategy finds the GPUs that it needs",
    consequence="The second cluster's pods stay Pending, the first is never given up, and the upgrade hangs for ever.",
    fix="Set serving.upgrade_strategy to None, or raise gpu.max_nodes to twice what the replicas need.",
    source="KubeRay 1.7: NewCluster starts a whole second RayCluster before it drops the first.",
)
def upgrade_needs_nodes(subject: Subject) -> Iterator[Problem]:
    """Compares twice the nodes in use with what the groups may have."""
    if not subject.deployment.upgrade_strategy.startswith("NewCluster"):
        return
    pools = {engine.pool.name: engine.pool for engine in subject.engines}
    for pool in pools.values():
        engines = [engine for engine in subject.engines if engine.pool.name == pool.name]
        needed = sum(
            pods_needed(
                [replace(e.role, replicas=min(e.role.replicas, 10_000)) for e in engines if e.name == name],
                max(pool.facts.gpus, 1),
            )
            for name in dict.fromkeys(engine.name for engine in engines)
        )
        if needed <= pool.max_nodes < 2 * needed:
            yield Problem(
                path=engines[0].path[:2],
                message=f"{subject.deployment.upgrade_strategy} needs {2 * needed} nodes of {pool.facts.name} for a "
                "while; the "
                f"node group has at most {pool.max_nodes}",
            )


@rule(
    "ongoing-requests",
    Severity.WARNING,
    title="max_ongoing_requests is near to what the engine can run at once",
    consequence="Far too few, and the GPU waits while requests queue in Serve; far too many, and they queue inside "
    "one engine "
    "while another is free.",
    fix="Leave max_ongoing_requests out (the engine queues), or set it near to max_num_seqs.",
    source="Ray 2.58: Serve LLM's default is 1e9; vLLM runs at most max_num_seqs at once.",
)
def ongoing_requests(subject: Subject) -> Iterator[Problem]:
    """Compares with the sequences that the engine runs, and the full-length requests that fit."""
    for engine in subject.engines:
        limit = engine.get("deployment_config", "max_ongoing_requests")
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1 or engine.memory is None:
            continue
        runs = engine.memory.max_num_seqs
        fits = max(engine.memory.requests, 1)
        path = engine.at("deployment_config", "max_ongoing_requests")
        if limit < min(runs, fits) / 2:
            yield Problem(
                path=path,
                message=f"max_ongoing_requests {limit} of {engine.name}: {min(runs, int(fits))} requests of full "
                "length could "
                "run at once",
            )
        elif 8 * max(runs, fits) < limit < 10**6:
            yield Problem(
                path=path,
                message=f"max_ongoing_requests {limit} of {engine.name}: it runs {runs} sequences at once, and "
                f"{fits:.0f} requests of full length fit",
            )


@rule(
    "remote-code",
    Severity.WARNING,
    title="no code of a model repository runs",
    consequence="Whoever can write to the model's repository runs code in your cluster, with the workers' rights.",
    fix="Remove trust_remote_code; most models need no code of their own any more.",
    source="Hugging Face Hub: remote code runs in the loading process.",
)
def remote_code(subject: Subject) -> Iterator[Problem]:
    """Finds trust_remote_code: true."""
    for engine in subject.engines:
        if engine.flag("trust_remote_code"):
            yield Problem(
                path=engine.at("engine_kwargs", "trust_remote_code"),
                message=f"{engine.name} runs code out of the repository of {engine.model_name}",
            )


@rule(
    "gated-model",
    Severity.ERROR,
    title="a gated model has a token",
    consequence="The Hugging Face Hub answers 401 or 403, and no engine starts.",
    fix="Accept the model's terms on the Hub and set serving.hugging_face_token_secret to a Secrets Manager secret "
    "with the "
    "token.",
    source="facts/model_families.toml (gated).",
)
def gated_model(subject: Subject) -> Iterator[Problem]:
    """Looks at models that are known to be gated."""
    if subject.deployment.has_hub_token:
        return
    for engine in subject.engines:
        if engine.model and engine.model.gated:
            yield Problem(
                path=engine.at("model_loading_config", "model_source"),
                message=f"{engine.model.name} is gated, and no token is set",
            )


@rule(
    "model-not-staged",
    Severity.WARNING,
    title="a model in a local path is brought there",
    consequence="The engine finds no model in the path and dies, unless you put it there yourself.",
    fix="Set serving.model_s3_uri to the S3 prefix that holds the model.",
    source="This library: an init container copies the prefix to the path that model_source names.",
)
def model_not_staged(subject: Subject) -> Iterator[Problem]:
    """Looks at paths on the cache volume when nothing is staged, and at paths that are not on it."""
    for engine in subject.engines:
        source = engine.role.model_source
        if source is None or not source.startswith("/"):
            continue
        path = engine.at("model_loading_config", "model_source")
        mount = subject.deployment.model_mount
        if not source.startswith(f"{mount}/"):
            yield Problem(
                path=path,
                message=f"{source} is not on the model cache volume ({mount})",
                fix=f"Write a path below {mount}/models.",
            )
        elif not subject.deployment.stages_from_s3:
            yield Problem(path=path, message=f"nothing brings {source} to the worker pods")


@rule(
    "lora-off",
    Severity.ERROR,
    title="an engine that is to load LoRA adapters has them enabled",
    consequence="Requests for an adapter fail: the engine was started without LoRA.",
    fix="Add enable_lora: true (and max_loras, max_lora_rank) to engine_kwargs.",
    source="Ray 2.58 Serve LLM, multi-LoRA; vLLM needs enable_lora at start.",
)
def lora_off(subject: Subject) -> Iterator[Problem]:
    """Finds a lora_config beside an engine without enable_lora."""
    for engine in subject.engines:
        lora = engine.get("lora_config")
        if isinstance(lora, dict) and lora.get("dynamic_lora_loading_path") and not engine.flag("enable_lora"):
            yield Problem(path=engine.at("lora_config"), message=f"{engine.name} has a lora_config and no enable_lora")


@rule(
    "port-base",
    Severity.ERROR,
    title="prefill and decode listen on different ports where they may share a node",
    consequence='"Address already in use" on the handshake listener: one of the engines never starts.',
    fix="Leave NIXL_SIDE_CHANNEL_PORT_BASE out (20000 and 22000), or give each role its own.",
    source="Ray 2.58 PDServingArgs._default_decode_nixl_port_base; ray 60057.",
)
def port_base(subject: Subject) -> Iterator[Problem]:
    """Compares the two bases; engines on nodes of their own cannot collide, so there it is a warning."""
    for pair in subject.pairs:
        bases = [
            engine.get("experimental_configs", "NIXL_SIDE_CHANNEL_PORT_BASE") for engine in (pair.prefill, pair.decode)
        ]
        ports = bases[0] if bases[0] is not None else 20000, bases[1] if bases[1] is not None else 22000
        if ports[0] != ports[1]:
            continue
        engine = pair.decode if bases[1] is not None else pair.prefill
        yield Problem(
            path=engine.at("experimental_configs", "NIXL_SIDE_CHANNEL_PORT_BASE"),
            severity=None if _may_share_a_node(pair.prefill, pair.decode) else Severity.WARNING,
            message=f"prefill and decode both take NIXL ports from {ports[0]}",
        )


def _may_share_a_node(prefill: Engine, decode: Engine) -> bool:
    together = prefill.role.gpus_per_replica + decode.role.gpus_per_replica
    return prefill.pool.name == decode.pool.name and prefill.pool.facts.gpus >= together


RULES: tuple[Rule, ...] = (
    image_has_versions,
    known_fault,
    upgrade_needs_nodes,
    ongoing_requests,
    remote_code,
    gated_model,
    model_not_staged,
    lora_off,
    port_base,
)
