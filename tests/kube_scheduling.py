"""On which nodes a pod may land, by the rules of the Kubernetes scheduler that do not depend on other pods.

Node selector, required node affinity, taints and tolerations: the filters NodeAffinity and TaintToleration, as the
DaemonSet controller applies them too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DAEMON_TOLERATIONS: Sequence[Mapping[str, str]] = [
    *(
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute"}
        for key in ("not-ready", "unreachable")
    ),
    *(
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoSchedule"}
        for key in ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
    ),
]
"""What the DaemonSet controller adds to every pod of a DaemonSet."""


@dataclass(frozen=True)
class Taint:
    """A taint on a node."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True)
class Node:
    """What the scheduler sees of a node."""

    name: str = "node"
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    taints: Sequence[Taint] = ()


def obstacles(workload: Mapping[str, Any], node: Node) -> list[str]:
    """Why the pods of a workload (DaemonSet, Deployment, Pod) cannot run on a node; empty where they can.

    Args:
        workload: the Kubernetes object.
        node: the node.

    Returns:
        ``taint KEY`` for each taint in the way, then ``selector`` and ``affinity``.
    """
    pod: dict[str, Any] = workload["spec"] if workload["kind"] == "Pod" else workload["spec"]["template"]["spec"]
    tolerations: list[Mapping[str, Any]] = list(pod.get("tolerations", ()))
    if workload["kind"] == "DaemonSet":
        tolerations += DAEMON_TOLERATIONS
        if pod.get("hostNetwork"):
            tolerations.append({"key": "node.kubernetes.io/network-unavailable", "operator": "Exists"})
    found = [
        f"taint {taint.key}"
        for taint in node.taints
        # PreferNoSchedule is a wish only.
        if taint.effect in ("NoSchedule", "NoExecute") and not any(tolerates(t, taint) for t in tolerations)
    ]
    selector: Mapping[str, str] = pod.get("nodeSelector", {})
    if any(node.labels.get(key) != value for key, value in selector.items()):
        found.append("selector")
    affinity: dict[str, Any] = pod.get("affinity", {})
    node_affinity: dict[str, Any] = affinity.get("nodeAffinity", {})
    required: dict[str, Any] | None = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None and not any(_term_matches(term, node) for term in required["nodeSelectorTerms"]):
        found.append("affinity")
    return found


def tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    """Whether a toleration covers a taint. No effect covers all effects; no key (with Exists) covers all keys."""
    if toleration.get("effect") not in (None, "", taint.effect):
        return False
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    if key not in ("", taint.key):
        return False
    match operator:
        case "Exists":
            return True
        case "Equal":
            return key != "" and (toleration.get("value") or "") == taint.value
        case _:
            raise ValueError(f"toleration operator {operator!r}")


def _term_matches(term: Mapping[str, Any], node: Node) -> bool:
    """One term: all its expressions and fields must hold; a term without any matches no node."""
    by_label = [(e, node.labels.get(e["key"])) for e in term.get("matchExpressions") or ()]
    by_field = [(e, {"metadata.name": node.name}[e["key"]]) for e in term.get("matchFields") or ()]
    requirements = by_label + by_field
    return bool(requirements) and all(_holds(expression, value) for expression, value in requirements)


def _holds(expression: Mapping[str, Any], value: str | None) -> bool:
    values: Sequence[str] = expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return _is_number(value) and int(str(value)) > int(values[0])
        case "Lt":
            return _is_number(value) and int(str(value)) < int(values[0])
        case operator:
            raise ValueError(f"node affinity operator {operator!r}")


def _is_number(value: str | None) -> bool:
    return value is not None and value.removeprefix("-").isdigit()
