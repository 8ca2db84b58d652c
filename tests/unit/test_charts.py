"""The Helm charts: what the app sets exists in them, and their pods land on the nodes that the app makes.

The reference holds each chart's values and two renderings by Helm, not its templates. What the app's values would
render to is therefore made from the default rendering: the fields that the values reach are replaced in it. That this
gives what Helm gives is itself tested, with the reference's own values and renderings; a value for which no rule is
written here fails.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import aws_cdk as cdk
import pytest
import yaml
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk.assertions import Template

from ray_llm_eks import charts, device_plugins
from ray_llm_eks.assembly import CHART_TYPE
from ray_llm_eks.charts import Chart
from ray_llm_eks.device_plugins import DevicePlugins, EfaDevices, check_efa_devices
from ray_llm_eks.efa_node_group import EfaNodeGroup
from ray_llm_eks.errors import ConfigurationError
from ray_llm_eks.instances import efa_gpu_instance_names, instance_facts
from ray_llm_eks.settings import load_settings
from tests.kube_scheduling import Node, Taint, obstacles
from tests.synthesized import SETTINGS, SHARED, assembly, stack

REFERENCE = SHARED / "data" / "charts"
pytestmark = pytest.mark.skipif(
    not REFERENCE.is_dir(), reason=f"the reference copies of the charts are not in {REFERENCE}"
)

CHARTS = {
    chart.name: chart
    for chart in (
        charts.NVIDIA_DEVICE_PLUGIN,
        charts.EFA_DEVICE_PLUGIN,
        charts.EFA_DRA_DRIVER,
        charts.KUBERAY_OPERATOR,
    )
}
DRA: Mapping[str, Any] = {"gpu": {"efa_devices": "dra"}}
ALL_SETTINGS: Mapping[str, Mapping[str, Any]] = {**SETTINGS, "dra": DRA}
EFA_CHARTS: Mapping[EfaDevices, Chart] = {"device-plugin": charts.EFA_DEVICE_PLUGIN, "dra": charts.EFA_DRA_DRIVER}

Document = dict[str, Any]
Values = Mapping[str, Any]


def folder(chart: Chart) -> Path:
    return REFERENCE / f"{chart.name}-{chart.version}"


@cache
def load(file: Path) -> tuple[Document, ...]:
    return tuple(document for document in yaml.load_all(file.read_text("utf-8"), yaml.CSafeLoader) if document)


def chart_values(chart: Chart) -> Document:
    return load(folder(chart) / "values.yaml")[0]


def installed(settings: str | Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The charts that the app installs, by name: the properties of the template's resources."""
    found = [p for s in assembly(settings).stacks for p in s.of_type(CHART_TYPE)]
    return {p["Chart"]: {**p, "Values": json.loads(p.get("Values", "{}"))} for p in found}


def unknown_keys(ours: Values, theirs: Values, path: str = "") -> Iterator[str]:
    """Paths of keys that the chart's values do not have.

    What the chart leaves empty ({} or null) is free-form, a selector or an affinity, and goes to Kubernetes as it is.
    """
    for key, value in ours.items():
        here = f"{path}.{key}".lstrip(".")
        if key not in theirs:
            yield here
        elif isinstance(value, Mapping) and theirs[key]:
            if isinstance(theirs[key], Mapping):
                yield from unknown_keys(cast(Values, value), theirs[key], here)
            else:
                yield f"{here} (no mapping in the chart)"


def lost_entries(ours: Values, theirs: Values, path: str = "") -> Iterator[str]:
    """Entries of the chart's own lists that a list of ours, which replaces it, does not repeat."""
    for key, value in ours.items():
        here, chart_value = f"{path}.{key}".lstrip("."), theirs.get(key)
        if isinstance(value, Mapping) and isinstance(chart_value, Mapping):
            yield from lost_entries(cast(Values, value), cast(Values, chart_value), here)
        elif isinstance(chart_value, list) and chart_value:
            kept = cast(list[object], value)
            yield from (f"{here}: {entry}" for entry in cast(list[object], chart_value) if entry not in kept)


# How values reach the pods, chart by chart.


def _pods(documents: list[Document]) -> list[Document]:
    return [d["spec"]["template"]["spec"] for d in documents if d["kind"] in ("DaemonSet", "Deployment")]


def _replace(field: str) -> Callable[[Document, Any], None]:
    def apply(pod: Document, value: Any) -> None:
        pod[field] = value

    return apply


def _add_tolerations(pod: Document, value: list[Document]) -> None:
    pod["tolerations"] = [*pod["tolerations"], *value]


def _merge_resources(pod: Document, value: Document) -> None:
    for container in [*pod.get("initContainers", ()), *pod["containers"]]:
        container["resources"] = {**(container.get("resources") or {}), **value}


_EFA_RULES = {"tolerations": _add_tolerations}
RULES: Mapping[str, Mapping[str, Callable[[Document, Any], None]]] = {
    "nvidia-device-plugin": {"tolerations": _replace("tolerations"), "resources": _merge_resources},
    "aws-efa-k8s-device-plugin": _EFA_RULES,
    "aws-dranet": _EFA_RULES,
    "kuberay-operator": {"nodeSelector": _replace("nodeSelector"), "tolerations": _replace("tolerations")},
}


def rendered(chart: Chart, name: str = "default") -> list[Document]:
    """A rendering in the reference."""
    return copy.deepcopy([*load(folder(chart) / "rendered" / f"{name}.yaml")])


def rendered_with(chart: Chart, values: Values) -> list[Document]:
    """The default rendering with values applied to it."""
    documents = rendered(chart)
    for key, value in values.items():
        assert key in RULES[chart.name], f"write a rule for {chart.name}'s value {key}: how does it reach the pods?"
        for pod in _pods(documents):
            RULES[chart.name][key](pod, value)
    return documents


def workload(documents: list[Document], name: str) -> Document:
    """The workload of a name; the NVIDIA chart has a second one with the same labels."""
    (found,) = [d for d in documents if d["kind"] in ("DaemonSet", "Deployment") and d["metadata"]["name"] == name]
    return found


def with_our_values(chart: Chart, settings: str | Mapping[str, Any] = "defaults") -> Document:
    return workload(rendered_with(chart, installed(settings)[chart.name]["Values"]), chart.name)


# Nodes as the app makes them.


def node_of(properties: Mapping[str, Any], instance_type: str, name: str) -> Node:
    """A node of a managed node group: the group's labels and taints, and what kubelet and EKS set by themselves."""
    effects = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute", "PREFER_NO_SCHEDULE": "PreferNoSchedule"}
    return Node(
        name=name,
        labels={
            **properties["Labels"],
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux",
            "kubernetes.io/hostname": name,
            "node.kubernetes.io/instance-type": instance_type,
            "topology.kubernetes.io/zone": "us-west-2a",
            "eks.amazonaws.com/capacityType": "ON_DEMAND",
        },
        taints=[Taint(t["Key"], t.get("Value", ""), effects[t["Effect"]]) for t in properties.get("Taints", ())],
    )


def nodes_in(template: Mapping[str, Any]) -> list[Node]:
    resources: dict[str, Any] = template["Resources"]
    nodes: list[Node] = []
    for name, resource in resources.items():
        if resource["Type"] == "AWS::EKS::Nodegroup":
            properties = resource["Properties"]
            launch = resources[properties["LaunchTemplate"]["Id"]["Ref"]]["Properties"]["LaunchTemplateData"]
            types = properties.get("InstanceTypes") or [launch["InstanceType"]]
            nodes += [node_of(properties, instance_type, name) for instance_type in types]
    return nodes


@cache
def gpu_nodes_of_all_types() -> dict[str, Node]:
    """A node of an EfaNodeGroup of every instance type that the settings accept."""
    cdk_stack = cdk.Stack(cdk.App(), "All")
    vpc = ec2.Vpc(cdk_stack, "Vpc", max_azs=1)
    group = ec2.SecurityGroup(cdk_stack, "ClusterGroup", vpc=vpc)
    cluster = eks.Cluster.from_cluster_attributes(
        cdk_stack,
        "Cluster",
        cluster_name="imported",
        cluster_security_group_id=group.security_group_id,
        vpc=vpc,
    )
    for name in efa_gpu_instance_names():
        EfaNodeGroup(
            cdk_stack,
            name.replace(".", "-"),
            cluster=cluster,
            vpc=vpc,
            subnets=vpc.private_subnets,
            instance_type=name,
            security_group=group,
        )
    nodes = nodes_in(Template.from_stack(cdk_stack).to_json())
    return {node.labels["node.kubernetes.io/instance-type"]: node for node in nodes}


# The charts and their values.


@pytest.mark.parametrize("chart", CHARTS.values(), ids=CHARTS)
def test_the_reference_is_the_pinned_version(chart: Chart) -> None:
    (metadata,) = load(folder(chart) / "Chart.yaml")
    assert (metadata["name"], metadata["version"]) == (chart.name, chart.version)
    (row,) = re.findall(rf"^\| {chart.name} .*\| {re.escape(chart.version)}\b.*$", readme(), re.MULTILINE)
    assert f"| {chart.repository} |" in row


@pytest.mark.parametrize("settings", ALL_SETTINGS)
def test_the_app_installs_pinned_charts_only(settings: str) -> None:
    found = installed(ALL_SETTINGS[settings])
    efa = charts.EFA_DRA_DRIVER if settings == "dra" else charts.EFA_DEVICE_PLUGIN
    assert set(found) == {charts.NVIDIA_DEVICE_PLUGIN.name, charts.KUBERAY_OPERATOR.name, efa.name}
    for name, properties in found.items():
        chart = CHARTS[name]
        assert (properties["Version"], properties["Repository"]) == (chart.version, chart.repository)
        # Names of objects come from the release's; the renderings were made with this one.
        assert properties["Release"] == chart.name


@pytest.mark.parametrize("settings", ALL_SETTINGS)
def test_every_value_that_is_set_exists_in_the_chart(settings: str) -> None:
    for name, properties in installed(ALL_SETTINGS[settings]).items():
        assert list(unknown_keys(properties["Values"], chart_values(CHARTS[name]))) == [], name


@pytest.mark.parametrize("settings", ALL_SETTINGS)
def test_no_entry_of_a_list_of_the_chart_is_lost(settings: str) -> None:
    for name, properties in installed(ALL_SETTINGS[settings]).items():
        assert list(lost_entries(properties["Values"], chart_values(CHARTS[name]))) == [], name


def test_wrong_values_would_be_found() -> None:
    theirs = chart_values(charts.NVIDIA_DEVICE_PLUGIN)
    assert list(
        unknown_keys({"toleration": [], "gfd": {"enable": True}, "nodeSelector": {"any": "label"}}, theirs)
    ) == [
        "toleration",
        "gfd.enable",
    ]
    assert list(unknown_keys({"priorityClassName": {"name": "x"}}, theirs)) == [
        "priorityClassName (no mapping in the chart)"
    ]
    only_ours = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert list(lost_entries({"tolerations": only_ours}, theirs)) == [
        "tolerations: {'key': 'CriticalAddonsOnly', 'operator': 'Exists'}"
    ]
    nested = {"nfd": {"worker": {"tolerations": only_ours}}}
    assert len(list(lost_entries(nested, theirs))) == 2


@pytest.mark.parametrize("chart", CHARTS.values(), ids=CHARTS)
def test_applying_values_here_gives_what_helm_gives(chart: Chart) -> None:
    name = "system-nodes" if chart is charts.KUBERAY_OPERATOR else "tainted"
    (values,) = load(folder(chart) / f"{name}.values.yaml")
    # It reaches one argument of the operator, no field that decides where it runs.
    ours = {key: value for key, value in values.items() if key != "watchNamespace"}
    made, by_helm = _pods(rendered_with(chart, ours)), _pods(rendered(chart, name))
    for pod in made + by_helm:
        if chart is charts.KUBERAY_OPERATOR:
            del pod["containers"][0]["args"]
    assert made == by_helm
    assert made != _pods(rendered(chart))


def test_a_value_without_a_rule_fails() -> None:
    with pytest.raises(AssertionError, match="write a rule for aws-dranet's value hostNetwork"):
        rendered_with(charts.EFA_DRA_DRIVER, {"hostNetwork": True})


def test_nvidias_chart_is_not_installed_where_its_rendering_fails() -> None:
    """Its templates refuse the namespace "default"; the privileged EFA plugin needs one without Pod Security."""
    for settings in ALL_SETTINGS.values():
        namespaces = {name: p["Namespace"] for name, p in installed(settings).items()}
        assert namespaces.pop(charts.KUBERAY_OPERATOR.name) == "kuberay-system"
        assert set(namespaces.values()) == {"kube-system"}


# Where the pods land: the reference's table.


def readme() -> str:
    return (REFERENCE / "README.md").read_text("utf-8")


TABLE_TITLE = "## Which DaemonSet lands on which node"
PRESENT = {"nvidia.com/gpu.present": "true"}
GPU, EFA = Taint("nvidia.com/gpu"), Taint("vpc.amazonaws.com/efa")


def table_node(instance_type: str, *taints: Taint, **labels: str) -> Node:
    return Node(labels={"node.kubernetes.io/instance-type": instance_type, **labels}, taints=taints)


TABLE_NODES = {
    "g6.8xlarge, no taint, no extra label": table_node("g6.8xlarge"),
    "g6.8xlarge, gpu, no extra label": table_node("g6.8xlarge", GPU),
    "g6.8xlarge, gpu, `nvidia.com/gpu.present=true`": table_node("g6.8xlarge", GPU, **PRESENT),
    "the same, gpu + efa": table_node("g6.8xlarge", GPU, EFA, **PRESENT),
    "g6.4xlarge (no EFA), gpu, label": table_node("g6.4xlarge", GPU, **PRESENT),
    "m7i.xlarge, no taint": table_node("m7i.xlarge"),
}
TABLE_COLUMNS: Mapping[str, tuple[str, tuple[Chart, ...]]] = {
    "NVIDIA default": ("default", (charts.NVIDIA_DEVICE_PLUGIN,)),
    "NVIDIA tainted": ("tainted", (charts.NVIDIA_DEVICE_PLUGIN,)),
    "EFA / dranet default": ("default", (charts.EFA_DEVICE_PLUGIN, charts.EFA_DRA_DRIVER)),
    "EFA / dranet tainted": ("tainted", (charts.EFA_DEVICE_PLUGIN, charts.EFA_DRA_DRIVER)),
}


def table() -> tuple[list[str], dict[str, list[str]]]:
    """The README's table: its columns, and its cells by row."""
    lines = readme().partition(TABLE_TITLE)[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return rows[0][1:], {row[0]: row[1:] for row in rows[2:]}


def cell_is_true(cell: str, found: list[str]) -> bool:
    """Whether a cell says what was found: yes; no; no: the first obstacle."""
    if cell == "yes":
        return not found
    if cell == "no":
        return bool(found)
    reason = {"affinity": "affinity", "taint": "taint nvidia.com/gpu", "efa taint": "taint vpc.amazonaws.com/efa"}
    return found[:1] == [reason[cell.removeprefix("no: ")]]


def test_the_references_table_of_which_daemon_set_lands_on_which_node() -> None:
    columns, rows = table()
    assert columns == list(TABLE_COLUMNS)
    assert list(rows) == list(TABLE_NODES)
    wrong = [
        f"{row} / {column} / {chart.name}: {cell!r}, found {found}"
        for row, cells in rows.items()
        for column, cell in zip(columns, cells, strict=True)
        for chart in TABLE_COLUMNS[column][1]
        if not cell_is_true(
            cell,
            found := obstacles(workload(rendered(chart, TABLE_COLUMNS[column][0]), chart.name), TABLE_NODES[row]),
        )
    ]
    assert wrong == []


def test_the_trap_of_gpu_feature_discovery() -> None:
    """Its node-feature-discovery worker tolerates another value of the taint than our nodes have: leave it off."""
    worker = workload(
        rendered(charts.NVIDIA_DEVICE_PLUGIN, "gfd"), "nvidia-device-plugin-node-feature-discovery-worker"
    )
    assert obstacles(worker, gpu_nodes_of_all_types()["g6.8xlarge"]) == ["taint nvidia.com/gpu"]
    assert "gfd" not in device_plugins.NVIDIA_VALUES


# Where the pods land: the app's nodes.


@pytest.mark.parametrize("instance_type", efa_gpu_instance_names())
def test_the_plugins_land_on_gpu_nodes_of_every_type(instance_type: str) -> None:
    node = gpu_nodes_of_all_types()[instance_type]
    assert obstacles(with_our_values(charts.NVIDIA_DEVICE_PLUGIN), node) == []
    for efa_devices, chart in EFA_CHARTS.items():
        plugin = with_our_values(chart, DRA if efa_devices == "dra" else "defaults")
        listed = not obstacles(plugin, node)
        try:
            check_efa_devices(instance_type, efa_devices)
            accepted = True
        except ConfigurationError:
            accepted = False
        assert accepted == listed, f"correct efa_device_plugin and efa_dra_driver of {instance_type} in the facts"


@pytest.mark.parametrize("settings", ALL_SETTINGS)
def test_the_plugins_land_on_the_apps_gpu_nodes_and_on_no_system_node(settings: str) -> None:
    value = ALL_SETTINGS[settings]
    gpu = nodes_in(stack("Accelerators", value).template)
    system = nodes_in(stack("Platform", value).template)
    assert gpu
    assert system
    efa = charts.EFA_DRA_DRIVER if settings == "dra" else charts.EFA_DEVICE_PLUGIN
    for chart in (charts.NVIDIA_DEVICE_PLUGIN, efa):
        plugin = with_our_values(chart, value)
        assert [obstacles(plugin, node) for node in gpu] == [[] for _ in gpu], chart.name
        assert [node.name for node in system if not obstacles(plugin, node)] == [], chart.name


def test_with_two_gpu_node_groups_the_plugins_land_on_both() -> None:
    value: Mapping[str, Any] = {"gpu": {"decode": {"instance_type": "g6e.8xlarge"}}}
    nodes = nodes_in(stack("Accelerators", value).template)
    assert [n.labels["node.kubernetes.io/instance-type"] for n in nodes] == ["g6.8xlarge", "g6e.8xlarge"]
    for chart in (charts.NVIDIA_DEVICE_PLUGIN, charts.EFA_DEVICE_PLUGIN):
        assert [obstacles(with_our_values(chart, value), node) for node in nodes] == [[], []]


def test_without_our_values_neither_plugin_would_run_on_our_nodes() -> None:
    node = gpu_nodes_of_all_types()["g6.8xlarge"]
    for chart in EFA_CHARTS.values():
        assert obstacles(workload(rendered(chart), chart.name), node) == ["taint nvidia.com/gpu"]
    bare = Node(labels={k: v for k, v in node.labels.items() if k not in PRESENT}, taints=node.taints)
    assert obstacles(with_our_values(charts.NVIDIA_DEVICE_PLUGIN), bare) == ["affinity"]


def test_the_privileged_daemon_set_for_sharing_gpus_runs_nowhere() -> None:
    documents = rendered_with(charts.NVIDIA_DEVICE_PLUGIN, device_plugins.NVIDIA_VALUES)
    mps = workload(documents, "nvidia-device-plugin-mps-control-daemon")
    assert all("selector" in obstacles(mps, node) for node in gpu_nodes_of_all_types().values())


@pytest.mark.parametrize("settings", ALL_SETTINGS)
def test_the_kuberay_operator_runs_on_system_nodes_only(settings: str) -> None:
    value = ALL_SETTINGS[settings]
    operator = with_our_values(charts.KUBERAY_OPERATOR, value)
    assert all(not obstacles(operator, node) for node in nodes_in(stack("Platform", value).template))
    assert all(obstacles(operator, node) for node in nodes_in(stack("Accelerators", value).template))
    untainted = Node(labels={"ray-llm-eks/node-role": "gpu"})
    assert obstacles(operator, untainted) == ["selector"]
    assert obstacles(workload(rendered(charts.KUBERAY_OPERATOR), "kuberay-operator"), untainted) == []


# Types that a chart does not list.


def test_a_type_that_the_dra_driver_does_not_list_is_refused() -> None:
    message = (
        r"gpu\.efa_devices: dra gives no EFA to g7\.8xlarge: chart aws-dranet 1\.0\.0 does not list this type, .* "
        r"Use gpu\.efa_devices: device-plugin, whose chart lists it"
    )
    with pytest.raises(ConfigurationError, match=message):
        assembly({"gpu": {"efa_devices": "dra", "instance_type": "g7.8xlarge"}})
    with pytest.raises(ConfigurationError, match=message):
        assembly({"gpu": {"efa_devices": "dra", "decode": {"instance_type": "g7.8xlarge"}}})
    check_efa_devices("g7.8xlarge", "device-plugin")


def test_the_construct_refuses_it_by_itself() -> None:
    cdk_stack = cdk.Stack(cdk.App(), "Own")
    cluster = eks.Cluster.from_cluster_attributes(cdk_stack, "Cluster", cluster_name="imported")
    with pytest.raises(ConfigurationError, match=r"g7\.48xlarge"):
        DevicePlugins(
            cdk_stack, "Plugins", cluster=cluster, efa_devices="dra", instance_types=["g6.8xlarge", "g7.48xlarge"]
        )


def test_the_settings_accept_every_type_tried_here_and_no_other() -> None:
    for name in efa_gpu_instance_names():
        load_settings({"gpu": {"instance_type": name}})
    assert not instance_facts("g6.4xlarge").efa_interfaces
    with pytest.raises(ConfigurationError, match="no EFA interface"):
        load_settings({"gpu": {"instance_type": "g6.4xlarge"}})


def test_a_type_that_only_the_device_plugin_would_miss_is_told_to_use_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = type("Facts", (), {"efa_device_plugin": False, "efa_dra_driver": True})

    def of(_: str) -> object:
        return facts

    monkeypatch.setattr(device_plugins, "instance_facts", of)
    with pytest.raises(ConfigurationError, match=re.escape("Use gpu.efa_devices: dra, whose chart lists it")):
        check_efa_devices("x1.large", "device-plugin")
