"""Rules about placement: do replicas find GPUs, on the nodes that are meant for them?"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ray_llm_eks.instances import efa_gpu_instance_names, instance_facts
from ray_llm_eks.worker_pods import WorkerGroup, WorkerNodes, pods_needed
from ray_llm_eks.yaml_document import Value, YamlPath

from .deployment import NodePool
from .findings import Severity
from .rule import Problem, Rule, rule
from .subject import Engine, Subject

BUILT_IN = ("CPU", "GPU", "memory", "object_store_memory")


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _pools(subject: Subject) -> Iterator[tuple[NodePool, list[Engine]]]:
    """Each node pool once, with the engines that run on it."""
    by_name: dict[str, tuple[NodePool, list[Engine]]] = {}
    for engine in subject.engines:
        by_name.setdefault(engine.pool.name, (engine.pool, []))[1].append(engine)
    yield from by_name.values()


@rule(
    "replicas-exceed-nodes",
    Severity.ERROR,
    title="the replicas that start at once find GPUs",
    consequence="The pods of the replicas that find none stay Pending without an end, and the application never runs.",
    fix="Lower num_replicas, or raise gpu.max_nodes (and desired_nodes), or take a type with more GPUs a node.",
    source="Ray Serve starts a replica when its placement group is placed; one worker pod takes one node "
    "(worker_pods.py).",
)
def replicas_exceed_nodes(subject: Subject) -> Iterator[Problem]:
    """Counts the nodes that all first replicas of a pool need; each role has nodes of its own."""
    for pool, engines in _pools(subject):
        parts: list[str] = []
        nodes = gpus = 0
        for name in dict.fromkeys(engine.name for engine in engines):
            members = [engine for engine in engines if engine.name == name]
            parts.append(f"{sum(e.role.first_replicas for e in members)} {name}")
            gpus += sum(e.role.first_replicas * e.role.gpus_per_replica for e in members)
            nodes += _nodes(members, pool, first=True)
        if nodes > pool.max_nodes:
            yield Problem(
                path=_replica_path(max(engines, key=lambda engine: engine.role.first_replicas)),
                message=f"{' + '.join(parts)} replicas need {_plural(gpus, 'GPU')} on {_plural(nodes, 'node')}; the "
                "node "
                f"group has {_plural(pool.max_nodes, 'node')} ({pool.facts.name}) of {_plural(pool.facts.gpus, 'GPU')}",
            )


def _nodes(engines: list[Engine], pool: NodePool, *, first: bool) -> int:
    roles = [engine.role for engine in engines]
    if first:
        roles = [replace(role, replicas=role.first_replicas) for role in roles]
    bounded = [replace(role, replicas=min(role.replicas, 10_000)) for role in roles]
    return pods_needed(bounded, max(pool.facts.gpus, 1))


def _replica_path(engine: Engine) -> YamlPath:
    for path in (("autoscaling_config", "min_replicas"), ("autoscaling_config",), ("num_replicas",)):
        if engine.get("deployment_config", *path) is not None:
            return engine.at("deployment_config", *path)
    return engine.at("deployment_config") if engine.get("deployment_config") is not None else engine.path


@rule(
    "autoscaling-exceeds-nodes",
    Severity.ERROR,
    title="autoscaling's max_replicas can be reached",
    consequence="Serve asks for replicas that no node will ever hold; under load they stay Pending and nothing scales. "
    "Worker pods are made for max_replicas, so the stack is refused too.",
    fix="Lower max_replicas to what the node group can hold, or raise gpu.max_nodes.",
    source="Ray 2.58 AutoscalingConfig; EKS managed node groups stop at maxSize.",
)
def autoscaling_exceeds_nodes(subject: Subject) -> Iterator[Problem]:
    """Counts the nodes that all roles need at their maximum."""
    for pool, engines in _pools(subject):
        names = dict.fromkeys(engine.name for engine in engines)
        first = sum(_nodes([e for e in engines if e.name == name], pool, first=True) for name in names)
        most = sum(_nodes([e for e in engines if e.name == name], pool, first=False) for name in names)
        if first > pool.max_nodes or most <= pool.max_nodes:
            continue
        for engine in engines:
            if engine.role.replicas > engine.role.first_replicas:
                others = most - _nodes([engine], pool, first=False)
                room = max(pool.max_nodes - others, 0)
                yield Problem(
                    path=_maximum_path(engine),
                    message=f"max_replicas {engine.role.replicas} of {engine.name} cannot be reached: the node group "
                    "has at "
                    f"most {_plural(pool.max_nodes, 'node')} ({pool.facts.name}), and other roles take {others} of "
                    "them, "
                    f"which leaves {_plural(room, 'node')}",
                )


def _maximum_path(engine: Engine) -> YamlPath:
    for path in (("autoscaling_config", "max_replicas"), ("num_replicas",)):
        if engine.get("deployment_config", *path) is not None:
            return engine.at("deployment_config", *path)
    return engine.at("deployment_config")


@rule(
    "parallel-across-nodes",
    Severity.ERROR,
    title="a replica's tensor parallel GPUs are on one node",
    consequence="Either the workers find no GPU and stay Pending, or tensor parallelism is spread over nodes and an "
    "all-reduce crosses EFA twice in every layer for every token.",
    fix="Take an instance type with as many GPUs a node, or a smaller tensor_parallel_size.",
    source="vLLM's parallelism guide: tensor parallel inside a node, pipeline parallel between nodes.",
)
def parallel_across_nodes(subject: Subject) -> Iterator[Problem]:
    """Compares tensor_parallel_size with the GPUs of a node."""
    for engine in subject.engines:
        node, size = engine.pool.facts, engine.tensor_parallel
        if not node.gpus:
            yield Problem(
                path=engine.path, message=f"{engine.name} runs on {node.name}, which has no GPU", fix="Take a GPU type."
            )
        elif size > node.gpus:
            yield Problem(
                path=engine.argument_path("tensor_parallel_size"),
                message=f"tensor_parallel_size {size} of {engine.name} with {_plural(node.gpus, 'GPU')} a node "
                f"({node.name}): "
                "all-reduce would cross EFA at every layer",
                fix=f"{_larger_types(engine, size)} Or set tensor_parallel_size to {node.gpus}; to split a model "
                "over nodes, "
                f"pipeline_parallel_size {-(-size // node.gpus)} with strategy PACK sends far less.",
            )


def _larger_types(engine: Engine, gpus: int) -> str:
    fitting = [name for name in efa_gpu_instance_names() if instance_facts(name).gpus >= gpus]
    family = engine.pool.facts.name.partition(".")[0]
    same = [name for name in fitting if name.startswith(f"{family}.")]
    return f"Instance types with {gpus} GPUs or more: {', '.join((same or fitting)[:3])}." if fitting else ""


@rule(
    "pipeline-parallel-transfer",
    Severity.WARNING,
    title="engines that hand over their KV cache have no pipeline stages",
    consequence="NIXL between engines with pipeline stages is not supported for decode, and fails for hybrid models.",
    fix="Use tensor_parallel_size instead of pipeline_parallel_size for prefill and decode.",
    source="vLLM 0.26 nixl/base_worker.py (NotImplementedError); ray 55775 (open).",
)
def pipeline_parallel_transfer(subject: Subject) -> Iterator[Problem]:
    """Finds pipeline stages beside NIXL."""
    for engine in subject.engines:
        if engine.pipeline_parallel > 1 and engine.nixl_transfers():
            yield Problem(
                path=engine.argument_path("pipeline_parallel_size"),
                message=f"{engine.name} has {engine.pipeline_parallel} pipeline stages and hands over its KV cache "
                "by NIXL",
            )


@rule(
    "tensor-parallel-heads",
    Severity.ERROR,
    title="attention heads can be divided among the GPUs",
    consequence="The engine refuses to start.",
    fix="Choose a tensor_parallel_size that divides the model's heads.",
    source="vLLM 0.26.0: config/model.py verify_with_parallel_config; layers/mamba divide().",
)
def tensor_parallel_heads(subject: Subject) -> Iterator[Problem]:
    """Divides heads, and the linear-attention heads of hybrid models."""
    for engine in subject.engines:
        facts, size = engine.facts, engine.tensor_parallel
        if facts is None or size == 1:
            continue
        heads = {"attention heads": facts.heads}
        if facts.linear:
            heads |= {"linear key heads": facts.linear.key_heads, "linear value heads": facts.linear.value_heads}
        for name, number in heads.items():
            if number % size:
                yield Problem(
                    path=engine.argument_path("tensor_parallel_size"),
                    message=f"{number} {name} of {facts.name} cannot be divided among {size} GPUs",
                )
                break


@rule(
    "bundle-resources",
    Severity.ERROR,
    title="every bundle fits a worker pod",
    consequence="The placement group is never placed: the replica waits without an end, and Serve says only that it is "
    "waiting for resources.",
    fix="Ask for no more than one worker pod has.",
    source="Ray: a bundle is placed on one node; worker pods are as large as their node allows (worker_pods.py).",
)
def bundle_resources(subject: Subject) -> Iterator[Problem]:
    """Compares each bundle, and all of them under STRICT_PACK, with a worker pod's resources."""
    for engine in subject.engines:
        offer = _offer(engine)
        bundles = list(_bundles(engine))
        for number, (path, bundle) in enumerate(bundles):
            wanted = dict(bundle)
            if number == 0:
                # The replica itself runs in the first bundle.
                wanted["CPU"] = wanted.get("CPU", 0) + _replica_cpus(engine)
            yield from _too_much(engine, path, wanted, offer, "a bundle")
        strategy = engine.get("placement_group_config", "strategy")
        if strategy == "STRICT_PACK" and len(bundles) > 1:
            total: dict[str, float] = {}
            for _, bundle in bundles:
                for name, amount in bundle.items():
                    total[name] = total.get(name, 0) + amount
            path = engine.at("placement_group_config", "strategy")
            yield from _too_much(engine, path, total, offer, "all bundles together (STRICT_PACK)")
        elif strategy == "STRICT_SPREAD" and len(bundles) > engine.pool.max_nodes:
            yield Problem(
                path=engine.at("placement_group_config", "strategy"),
                message=f"STRICT_SPREAD puts {len(bundles)} bundles on as many nodes; there are "
                f"{engine.pool.max_nodes}",
            )


def _offer(engine: Engine) -> dict[str, float]:
    facts = engine.pool.facts
    nodes = WorkerNodes(facts=facts, max_nodes=engine.pool.max_nodes, node_role=engine.pool.name)
    group = WorkerGroup(role=engine.name, pods=1, nodes=nodes)
    offer: dict[str, float] = {
        "CPU": group.cpus,
        "GPU": facts.gpus,
        "memory": group.memory_gib * (1 << 30),
        "object_store_memory": 4 << 30,
    }
    for role in ("prefill", "decode", "llm"):
        offer[role] = facts.gpus
    if engine.pool.accelerator:
        offer[f"accelerator_type:{engine.pool.accelerator}"] = 1
    return offer


def _too_much(
    engine: Engine, path: YamlPath, wanted: Mapping[str, float], offer: Mapping[str, float], what: str
) -> Iterator[Problem]:
    for name, amount in wanted.items():
        if name in offer and amount > offer[name]:
            yield Problem(
                path=(*path, name) if name in (engine.document.get(path) or ()) else path,  # pyright: ignore
                message=f"{what} of {engine.name} asks for {amount:g} {name}; a worker pod on "
                f"{engine.pool.facts.name} has "
                f"{offer[name]:g}",
            )


def _replica_cpus(engine: Engine) -> float:
    cpus = engine.get("deployment_config", "ray_actor_options", "num_cpus")
    return float(cpus) if isinstance(cpus, (int, float)) and not isinstance(cpus, bool) else 1.0


def _bundles(engine: Engine) -> Iterator[tuple[YamlPath, dict[str, float]]]:
    """The bundles of one replica, as Ray will ask for them, with the place of each."""
    workers = engine.tensor_parallel * engine.pipeline_parallel
    group = engine.get("placement_group_config")
    if isinstance(group, dict):
        each = group.get("bundle_per_worker")
        if isinstance(each, dict):
            for _ in range(min(workers, 4096)):
                yield engine.at("placement_group_config", "bundle_per_worker"), _amounts(each)
            return
        listed = group.get("bundles")
        if isinstance(listed, list):
            for number, bundle in enumerate(listed):
                if isinstance(bundle, dict):
                    yield engine.at("placement_group_config", "bundles", number), _amounts(bundle)
            return
    for _ in range(min(workers, 4096)):
        yield engine.path, {"GPU": 1.0}


def _amounts(bundle: Mapping[str, Value]) -> dict[str, float]:
    return {
        name: float(amount)
        for name, amount in bundle.items()
        if isinstance(amount, (int, float)) and not isinstance(amount, bool)
    }


@rule(
    "bundle-count",
    Severity.ERROR,
    title="there is one GPU bundle for each of the engine's workers",
    consequence="The engine fails when it starts: the placement group has fewer GPUs than tensor x pipeline parallel "
    "size, "
    "or a bundle with more than one.",
    fix="Write one bundle with GPU: 1 for each worker, or bundle_per_worker.",
    source="vLLM 0.26.0: v1/executor/ray_utils.py initialize_ray_cluster.",
)
def bundle_count(subject: Subject) -> Iterator[Problem]:
    """Counts GPU bundles; more than needed is a warning, for they stand idle."""
    for engine in subject.engines:
        if engine.get("placement_group_config") is None:
            continue
        gpu_bundles = [(path, bundle["GPU"]) for path, bundle in _bundles(engine) if bundle.get("GPU", 0) > 0]
        workers = engine.tensor_parallel * engine.pipeline_parallel
        place = engine.at("placement_group_config")
        for path, amount in gpu_bundles:
            if amount > 1:
                yield Problem(path=(*path, "GPU"), message=f"a bundle with {amount:g} GPUs; vLLM takes one a bundle")
        if not gpu_bundles:
            yield Problem(path=place, message=f"no bundle of {engine.name} has a GPU", fix="Add GPU: 1 to the bundles.")
        elif gpu_bundles and len(gpu_bundles) < workers:
            yield Problem(
                path=place,
                message=f"{_plural(len(gpu_bundles), 'GPU bundle')} for {_plural(workers, 'worker')} of {engine.name}",
            )
        elif len(gpu_bundles) > workers:
            yield Problem(
                path=place,
                severity=Severity.WARNING,
                message=f"{_plural(len(gpu_bundles), 'GPU bundle')} for {_plural(workers, 'worker')} of {engine.name}: "
                "the others are held and stand idle",
            )


@rule(
    "accelerator-type",
    Severity.ERROR,
    title="accelerator_type is the GPU of the nodes",
    consequence="The replica waits without an end for a node with that accelerator.",
    fix="Name the GPU of the node group, or leave accelerator_type out.",
    source="Ray 2.58: bundles get accelerator_type:NAME; ray.util.accelerators.",
)
def accelerator_type(subject: Subject) -> Iterator[Problem]:
    """Compares with the pool's GPU."""
    for engine in subject.engines:
        wanted = engine.get("accelerator_type")
        there = engine.pool.accelerator
        if not isinstance(wanted, str) or there is None:
            continue
        name = "A10G" if wanted == "A10" else wanted
        if name != there and name.partition("-")[0] != there:
            yield Problem(
                path=engine.at("accelerator_type"),
                message=f"{engine.name} asks for accelerator_type {wanted}; {engine.pool.facts.name} has {there}",
                fix=f"Write accelerator_type: {there}, or leave it out.",
            )


@rule(
    "unknown-resource",
    Severity.ERROR,
    title="bundles ask for resources that some worker pod has",
    consequence="The replica waits without an end for a resource that no node offers.",
    fix="Ask for CPU, GPU and the role's own resource (prefill, decode or llm), which the worker pods of that role "
    "have.",
    source="This library's worker pods start Ray with one resource named after their role, as many as the node has "
    "GPUs.",
)
def unknown_resource(subject: Subject) -> Iterator[Problem]:
    """Finds custom resources that no worker group has, and a role's bundle bound to another role."""
    roles = list(dict.fromkeys(engine.name for engine in subject.engines))
    for engine in subject.engines:
        seen: set[YamlPath] = set()
        for path, bundle in _bundles(engine):
            if path in seen:
                continue
            seen.add(path)
            for name, amount in bundle.items():
                if not amount or name in BUILT_IN or name.startswith(("accelerator_type:", "node:")):
                    continue
                if name not in roles:
                    near = difflib.get_close_matches(name, roles, n=1, cutoff=0.5)
                    hint = f"; did you mean {near[0]}?" if near else f"; they have {', '.join(roles)}"
                    yield Problem(path=(*path, name), message=f"no worker pod has a resource {name}{hint}")
                elif name != engine.name:
                    yield Problem(
                        path=(*path, name),
                        message=f"{engine.name} asks for the resource {name}: it would take the nodes of {name}",
                        fix=f"Write {engine.name}: 1.",
                    )


@rule(
    "roles-share-a-node",
    Severity.ERROR,
    title="prefill and decode are on different nodes",
    consequence="Ray packs replicas: both roles may land on one node, where EFA goes through shared memory and may "
    "copy a "
    "GPU address as if it were host memory; and the nodes of the other role stand idle.",
    fix="Ask for the role's resource in every bundle: bundles: [{CPU: 4, GPU: 1, prefill: 1}] and decode: 1.",
    source="Ray Serve packs replicas onto nodes; libfabric 12328, dynamo 7764 (same-node EFA peers).",
)
def roles_share_a_node(subject: Subject) -> Iterator[Problem]:
    """Looks for a role that is not bound to its worker pods, where Ray could put it beside the other.

    On nodes of one kind that only one replica fits, nothing can go wrong, and nothing is said.
    """
    for pair in subject.pairs:
        engines = (pair.prefill, pair.decode)
        loose = [engine for engine in engines if not _bound(engine)]
        if not loose:
            continue
        pools = {engine.pool.name: engine.pool for engine in engines}
        together = pair.prefill.role.gpus_per_replica + pair.decode.role.gpus_per_replica
        crowded = [pool for pool in pools.values() if pool.facts.gpus >= together]
        for engine in loose:
            if crowded:
                yield Problem(
                    path=_bundle_place(engine),
                    message=f"{engine.name} is not bound to its own nodes, and a node ({crowded[0].facts.name}, "
                    f"{crowded[0].facts.gpus} GPUs) has room for both roles",
                    fix=f"Add {engine.name}: 1 to each of its bundles.",
                )
            elif len(pools) > 1:
                yield Problem(
                    path=_bundle_place(engine),
                    severity=Severity.WARNING,
                    message=f"{engine.name} is not bound to its own nodes ({engine.pool.facts.name}) and may take "
                    "those of "
                    "the other role",
                    fix=f"Add {engine.name}: 1 to each of its bundles.",
                )


def _bound(engine: Engine) -> bool:
    bundles = list(_bundles(engine))
    return bool(bundles) and all(bundle.get(engine.name, 0) > 0 for _, bundle in bundles)


def _bundle_place(engine: Engine) -> YamlPath:
    if engine.get("placement_group_config") is not None:
        return engine.at("placement_group_config")
    return engine.path


@rule(
    "engines-start-together",
    Severity.WARNING,
    title="engines that share a node do not start at the same instant",
    consequence="Two engines that start on one node at the same instant take the same torch distributed port, and "
    "one dies; "
    "Serve starts it again, so it may pass or go round in circles.",
    fix="Deploy with as many replicas as nodes first, and raise num_replicas when they run; or use larger replicas.",
    source="Ran: two engines on one node with Ray 2.58 and vLLM 0.26.",
)
def engines_start_together(subject: Subject) -> Iterator[Problem]:
    """Finds roles with more replicas than nodes for them, so that some replicas must share one."""
    for engine in subject.engines:
        nodes = _nodes([engine], engine.pool, first=True)
        if engine.role.first_replicas > nodes:
            yield Problem(
                path=_replica_path(engine),
                message=f"{engine.role.first_replicas} replicas of {engine.name} start on {_plural(nodes, 'node')} "
                f"({engine.pool.facts.name})",
            )


@rule(
    "huge-pages",
    Severity.ERROR,
    title="libfabric asks for no huge pages",
    consequence="libfabric finds no huge pages in the pod and fails, or the process is killed.",
    fix="Remove FI_EFA_USE_HUGE_PAGE; it is not needed.",
    source="libfabric EFA provider; nodes reserve no hugepages-2Mi and worker pods request none.",
)
def huge_pages(subject: Subject) -> Iterator[Problem]:
    """Finds FI_EFA_USE_HUGE_PAGE in the environment."""
    for engine in subject.engines:
        value, path = engine.environment.get("FI_EFA_USE_HUGE_PAGE", (None, ()))
        if isinstance(value, (str, int)) and str(value).lower() not in ("", "0", "false", "no", "off"):
            yield Problem(path=path, message="FI_EFA_USE_HUGE_PAGE is on, and the nodes have no huge pages")


RULES: tuple[Rule, ...] = (
    replicas_exceed_nodes,
    autoscaling_exceeds_nodes,
    parallel_across_nodes,
    pipeline_parallel_transfer,
    tensor_parallel_heads,
    bundle_resources,
    bundle_count,
    accelerator_type,
    unknown_resource,
    roles_share_a_node,
    engines_start_together,
    huge_pages,
)
