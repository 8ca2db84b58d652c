"""The scheduler's rules that the tests of the charts rely on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kube_scheduling import Node, Taint, obstacles, tolerates

GPU = Taint("nvidia.com/gpu", "true")


def pod(**spec: Any) -> dict[str, Any]:
    return {"kind": "Pod", "spec": spec}


def requiring(*terms: dict[str, Any]) -> dict[str, Any]:
    return pod(
        affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}}
    )


def expression(operator: str, *values: str, key: str = "size") -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": [*values]}]}


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Equal", "value": "true"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Equal", "value": "present"}, False),
        ({"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}, True),
        ({"key": "nvidia.com/gpu"}, False),
        ({"value": "true"}, False),
        ({"key": "aws.amazon.com/efa", "operator": "Exists"}, False),
    ],
)
def test_tolerations(toleration: dict[str, str], covers: bool) -> None:
    assert tolerates(toleration, GPU) is covers


def test_an_unknown_toleration_operator_is_an_error() -> None:
    with pytest.raises(ValueError, match="Near"):
        tolerates({"key": "nvidia.com/gpu", "operator": "Near"}, GPU)


@pytest.mark.parametrize(
    ("term", "matches"),
    [
        (expression("In", "3", "4"), True),
        (expression("In", "4"), False),
        (expression("In", "3", key="other"), False),
        (expression("NotIn", "4"), True),
        (expression("NotIn", "3"), False),
        (expression("NotIn", "3", key="other"), True),
        (expression("Exists"), True),
        (expression("Exists", key="other"), False),
        (expression("DoesNotExist"), False),
        (expression("DoesNotExist", key="other"), True),
        (expression("Gt", "2"), True),
        (expression("Gt", "3"), False),
        (expression("Lt", "10"), True),
        (expression("Lt", "3"), False),
        (expression("Gt", "2", key="other"), False),
        (expression("Gt", "2", key="zone"), False),
        ({}, False),
        ({"matchExpressions": []}, False),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}, False),
        (
            {**expression("Exists"), "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]},
            False,
        ),
    ],
)
def test_required_node_affinity(term: dict[str, Any], matches: bool) -> None:
    node = Node(name="n1", labels={"size": "3", "zone": "a"})
    assert obstacles(requiring(term), node) == ([] if matches else ["affinity"])


def test_one_term_of_several_is_enough_and_no_term_is_none() -> None:
    node = Node(labels={"size": "3"})
    assert obstacles(requiring(expression("In", "4"), expression("In", "3")), node) == []
    assert obstacles(requiring(), node) == ["affinity"]


def test_all_expressions_of_a_term_must_hold() -> None:
    both = {
        "matchExpressions": expression("Exists")["matchExpressions"]
        + expression("In", "b", key="zone")["matchExpressions"]
    }
    assert obstacles(requiring(both), Node(labels={"size": "3", "zone": "a"})) == ["affinity"]
    assert obstacles(requiring(both), Node(labels={"size": "3", "zone": "b"})) == []


def test_a_preference_is_no_obstacle() -> None:
    preferred = pod(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}})
    assert obstacles(preferred, Node(taints=[Taint("a", effect="PreferNoSchedule")])) == []


def test_every_obstacle_is_told() -> None:
    node = Node(labels={"size": "3"}, taints=[GPU, Taint("vpc.amazonaws.com/efa")])
    workload = requiring(expression("In", "4"))
    workload["spec"]["nodeSelector"] = {"size": "4"}
    assert obstacles(workload, node) == ["taint nvidia.com/gpu", "taint vpc.amazonaws.com/efa", "selector", "affinity"]


def test_daemon_sets_tolerate_what_their_controller_adds() -> None:
    node = Node(taints=[Taint("node.kubernetes.io/unschedulable")])
    template: dict[str, Any] = {"spec": {"template": {"spec": {}}}}
    assert obstacles({"kind": "Deployment", **template}, node) == ["taint node.kubernetes.io/unschedulable"]
    assert obstacles({"kind": "DaemonSet", **template}, node) == []
