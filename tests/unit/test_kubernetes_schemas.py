"""Every Kubernetes object in the templates, against the schemas of the cluster's Kubernetes and of KubeRay."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import kubernetes_validate  # pyright: ignore[reportMissingTypeStubs]
import pytest
import yaml
from jsonschema import Draft7Validator
from kubernetes_validate.utils import VersionNotSupportedError  # pyright: ignore[reportMissingTypeStubs]

from ray_llm_eks import charts
from ray_llm_eks.model_cache import MOUNT_PATH
from tests.synthesized import ROOT, SETTINGS, SHARED, assembly, stack

CRD = SHARED / "data" / f"kuberay-{charts.KUBERAY_OPERATOR.version}" / "ray.io_rayservices.yaml"
needs_crd = pytest.mark.skipif(not CRD.is_file(), reason=f"KubeRay's resource definitions are not in {CRD.parent}")

CORE_KINDS = {
    "ConfigMap",
    "Namespace",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "ResourceClaimTemplate",
    "ServiceAccount",
}
"""Kinds that the app applies, beside RayService."""

DEPRECATED = ("serviceUnhealthySecondThreshold", "deploymentUnhealthySecondThreshold")
"""Fields of a RayService's spec that KubeRay 1.7 documents as deprecated and unused. Its definitions come without
descriptions, so they are named here; descriptions are read as well, should there be some again."""

Object = dict[str, Any]


def aggregated() -> Object:
    """An application whose engines do prefill and decode both."""
    engine = {
        "model_loading_config": {"model_id": "m", "model_source": "acme/m"},
        "deployment_config": {"num_replicas": 2},
    }
    return {
        "applications": [
            {
                "name": "llm",
                "route_prefix": "/",
                "import_path": "ray.serve.llm:build_openai_app",
                "args": {"llm_configs": [engine]},
            }
        ]
    }


def from_s3() -> Object:
    """The default application, with its model from a path in the cache."""
    config = yaml.safe_load((ROOT / "serve_configs/qwen3.5-9b-pd.yaml").read_text("utf-8"))
    for role in ("prefill_config", "decode_config"):
        config["applications"][0]["args"][role]["model_loading_config"]["model_source"] = f"{MOUNT_PATH}/models/m"
    return config


@pytest.fixture(scope="session")
def variants(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Any]]:
    """The settings to check, by name."""
    folder = tmp_path_factory.mktemp("serve_configs")
    for name, config in {"aggregated": aggregated(), "s3": from_s3()}.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    return {
        **SETTINGS,
        "efs": {"cache": {"kind": "efs"}},
        "dra": {"gpu": {"efa_devices": "dra"}},
        "s3": {"serving": {"serve_config": str(folder / "s3.yaml"), "model_s3_uri": "s3://models/m"}},
        "aggregated": {"serving": {"serve_config": str(folder / "aggregated.yaml")}},
        "decode": {
            "gpu": {"decode": {"instance_type": "g6e.8xlarge"}, "max_nodes": 4},
            "serving": {"upgrade_strategy": "NewCluster"},
        },
    }


VARIANTS = (*SETTINGS, "efs", "dra", "s3", "aggregated", "decode")


def objects(settings: Mapping[str, Any]) -> list[Object]:
    return [manifest for each in assembly(settings).stacks for manifest in each.manifests()]


def kubernetes_version(settings: Mapping[str, Any]) -> str:
    (cluster,) = stack("Platform", settings).of_type("AWS::EKS::Cluster")
    return cluster["Version"]


def core_errors(manifest: Object, version: str) -> str | None:
    """What Kubernetes' own schema says against an object; unknown fields are errors."""
    try:
        used = kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{manifest['kind']}: {'.'.join(map(str, error.path))}: {error.message[:300]}"
    # It takes the newest older schema that it has, silently.
    assert used == version, f"kubernetes-validate has no schemas for {version}"
    return None


@cache
def ray_service_schema() -> Object:
    """The definition's schema as JSON Schema, in which unknown fields are errors, as kubectl's strict validation."""
    definition = yaml.load(CRD.read_text("utf-8"), yaml.CSafeLoader)
    (version,) = [v for v in definition["spec"]["versions"] if v["name"] == "v1"]
    assert version["served"]
    return closed(version["schema"]["openAPIV3Schema"], root=True)


def closed(schema: Object, *, root: bool = False) -> Object:
    """A structural schema without room for fields that it does not name."""
    made: Object = {}
    for key, value in schema.items():
        match key:
            case "properties":
                made[key] = {name: closed(below) for name, below in value.items()}
            case "items" | "additionalProperties" if isinstance(value, dict):
                made[key] = closed(cast(Object, value))
            case "description" | "default" | "format" | "nullable":
                pass
            case _:
                made[key] = value
    if root:
        # metadata is the API server's own business, as apiVersion and kind are.
        made["properties"]["metadata"] = {"type": "object", "required": ["name", "namespace"]}
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    keeps_unknown = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-embedded-resource")
    if schema.get("type") == "object" and not keeps_unknown and "additionalProperties" not in schema:
        made["additionalProperties"] = False
    if schema.get("nullable") and "type" in made:
        made["type"] = [made["type"], "null"]
    return made


@cache
def ray_service_validator() -> Draft7Validator:
    return Draft7Validator(ray_service_schema())


def ray_service_errors(manifest: Object) -> list[str]:
    """What KubeRay's schema says against a RayService, each with the field's path."""
    found: Iterator[Any] = ray_service_validator().iter_errors(manifest)  # pyright: ignore[reportUnknownMemberType]
    return sorted(f"{'.'.join(map(str, error.absolute_path))}: {error.message[:200]}" for error in found)


def pod_templates(ray_service: Object) -> dict[str, Object]:
    """The pod templates of a RayService, by group."""
    cluster = ray_service["spec"]["rayClusterConfig"]
    workers = {group["groupName"]: group["template"] for group in cluster["workerGroupSpecs"]}
    return {"head": cluster["headGroupSpec"]["template"], **workers}


def as_pod(template: Object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod", **template["metadata"]},
        "spec": template["spec"],
    }


def ray_services(settings: Mapping[str, Any]) -> Object:
    (found,) = [m for m in objects(settings) if m["kind"] == "RayService"]
    return found


@pytest.mark.parametrize("name", VARIANTS)
def test_core_objects(variants: Mapping[str, Mapping[str, Any]], name: str) -> None:
    version = kubernetes_version(variants[name])
    core = [m for m in objects(variants[name]) if m["kind"] != "RayService"]
    assert {m["kind"] for m in core} <= CORE_KINDS
    assert [error for m in core if (error := core_errors(m, version))] == []


def test_every_kind_is_among_the_objects_checked(variants: Mapping[str, Mapping[str, Any]]) -> None:
    assert {m["kind"] for value in variants.values() for m in objects(value)} == {*CORE_KINDS, "RayService"}


@needs_crd
@pytest.mark.parametrize("name", VARIANTS)
def test_ray_services(variants: Mapping[str, Mapping[str, Any]], name: str) -> None:
    assert ray_service_errors(ray_services(variants[name])) == []


@pytest.mark.parametrize("name", VARIANTS)
def test_the_pods_of_ray_services(variants: Mapping[str, Mapping[str, Any]], name: str) -> None:
    """KubeRay's schema has the pods of the Kubernetes that it was built with; the cluster's own may differ."""
    version = kubernetes_version(variants[name])
    templates = pod_templates(ray_services(variants[name]))
    assert len(templates) == (2 if name == "aggregated" else 3)
    assert [error for t in templates.values() if (error := core_errors(as_pod(t), version))] == []


@pytest.mark.parametrize("name", VARIANTS)
def test_objects_refer_to_what_there_is(variants: Mapping[str, Mapping[str, Any]], name: str) -> None:
    """Names that schemas do not compare: volumes, claims, config maps, service accounts, namespaces."""
    applied = objects(variants[name])
    names = {(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in applied}
    service = ray_services(variants[name])
    namespace = service["metadata"]["namespace"]
    assert ("Namespace", None, namespace) in names
    assert {m["metadata"]["namespace"] for m in applied if m["kind"] not in ("Namespace", "PersistentVolume")} == {
        namespace
    }
    for group, template in pod_templates(service).items():
        pod = template["spec"]
        assert ("ServiceAccount", namespace, pod["serviceAccountName"]) in names
        volumes: dict[str, Object] = {v["name"]: v for v in pod.get("volumes", ())}
        claims = {c["name"]: c for c in pod.get("resourceClaims", ())}
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            assert {m["name"] for m in container.get("volumeMounts", ())} <= set(volumes), group
            assert {c["name"] for c in container["resources"].get("claims", ())} <= set(claims), group
        for volume in volumes.values():
            if "configMap" in volume:
                assert ("ConfigMap", namespace, volume["configMap"]["name"]) in names
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", namespace, volume["persistentVolumeClaim"]["claimName"]) in names
        for claim in claims.values():
            assert ("ResourceClaimTemplate", namespace, claim["resourceClaimTemplateName"]) in names


@pytest.mark.parametrize("name", VARIANTS)
def test_no_deprecated_field(variants: Mapping[str, Mapping[str, Any]], name: str) -> None:
    service = ray_services(variants[name])
    assert service["apiVersion"] == "ray.io/v1"
    assert not set(DEPRECATED) & set(service["spec"])
    for template in pod_templates(service).values():
        # Fault tolerance by annotation gave way to gcsFaultToleranceOptions.
        assert not [a for a in template["metadata"].get("annotations", {}) if a.startswith("ray.io/")]
        assert "serviceAccount" not in template["spec"]


@needs_crd
@pytest.mark.parametrize("name", VARIANTS)
def test_no_field_that_its_description_calls_deprecated(variants: Mapping[str, Mapping[str, Any]], name: str) -> None:
    definition = yaml_schema()
    assert list(described_as_deprecated(ray_services(variants[name]), definition)) == []
    marked = copy.deepcopy(definition)
    marked["properties"]["spec"]["properties"]["serveConfigV2"]["description"] = "Deprecated: use another."
    assert list(described_as_deprecated(ray_services(variants[name]), marked)) == [".spec.serveConfigV2"]


@cache
def yaml_schema() -> Object:
    definition = yaml.load(CRD.read_text("utf-8"), yaml.CSafeLoader)
    return next(v for v in definition["spec"]["versions"] if v["name"] == "v1")["schema"]["openAPIV3Schema"]


def described_as_deprecated(value: object, schema: Object, path: str = "") -> Iterator[str]:
    """Paths of the fields of a value whose description in the schema says so."""
    if "deprecated" in schema.get("description", "").lower():
        yield path
    if isinstance(value, dict):
        for key, below in cast(Object, value).items():
            yield from described_as_deprecated(below, schema.get("properties", {}).get(key, {}), f"{path}.{key}")
    elif isinstance(value, list):
        for number, below in enumerate(cast(list[object], value)):
            yield from described_as_deprecated(below, schema.get("items", {}), f"{path}[{number}]")


@needs_crd
@pytest.mark.parametrize("field", DEPRECATED)
def test_the_deprecated_fields_are_kuberays_own_names(field: str) -> None:
    assert field in ray_service_schema()["properties"]["spec"]["properties"]


# The validators can fail.


def changed(manifest: Object, path: str, value: object) -> Object:
    """A copy with one field set."""
    made = copy.deepcopy(manifest)
    *parents, last = path.split(".")
    below: Any = made
    for part in parents:
        below = below[int(part)] if part.isdigit() else below[part]
    below[last] = value
    return made


WORKER = "spec.rayClusterConfig.workerGroupSpecs.0"


@needs_crd
@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("spec.serveConfig", "", "spec: Additional properties are not allowed ('serveConfig' was unexpected)"),
        ("spec.rayClusterConfig.rayversion", "2.58.0", "Additional properties are not allowed"),
        (f"{WORKER}.replica", 1, "Additional properties are not allowed"),
        (f"{WORKER}.replicas", "1", "'1' is not of type 'integer'"),
        (f"{WORKER}.rayStartParams.num-gpus", 1, "1 is not of type 'string'"),
        (f"{WORKER}.template.spec.tolerations.0.operators", "Exists", "Additional properties are not allowed"),
        (f"{WORKER}.template.spec.containers.0.securityContext.priviledged", True, "Additional properties"),
        (f"{WORKER}.template.spec.containers.0.livenessProbe.httpGet.port", 1.5, "is not valid under any"),
        (f"{WORKER}.template.spec.containers", "none", "'none' is not of type 'array'"),
        ("spec.rayClusterConfig.authOptions.mode", "tokens", "'tokens' is not one of ['disabled', 'token']"),
        ("metadata", {}, "'name' is a required property"),
    ],
)
def test_a_wrong_ray_service_is_found(path: str, value: object, message: str) -> None:
    good = ray_services(SETTINGS["defaults"])
    assert ray_service_errors(good) == []
    assert any(message in error for error in ray_service_errors(changed(good, path, value)))


@needs_crd
def test_what_kuberays_schema_leaves_open_stays_open() -> None:
    """Free-form maps take any key; a number or a string will do for a quantity or a port."""
    good = ray_services(SETTINGS["defaults"])
    for path, value in {
        f"{WORKER}.template.metadata.labels.any": "label",
        f"{WORKER}.template.spec.containers.0.resources.limits.memory": 1 << 30,
        f"{WORKER}.template.spec.containers.0.livenessProbe.httpGet.port": "serve",
        f"{WORKER}.rayStartParams.any": "flag",
    }.items():
        assert ray_service_errors(changed(good, path, value)) == []


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("PersistentVolume", "spec.csi.volumeHandles", "x"),
        ("PersistentVolume", "spec.accessModes", "ReadWriteMany"),
        ("PersistentVolumeClaim", "spec.storageclassName", ""),
        ("ConfigMap", "data", ["text"]),
        ("ServiceAccount", "automountServiceAccountToken", "no"),
        ("Namespace", "metadata.label", {}),
    ],
)
def test_a_wrong_core_object_is_found(kind: str, path: str, value: object) -> None:
    settings = SETTINGS["defaults"]
    (good,) = [m for m in objects(settings) if m["kind"] == kind]
    version = kubernetes_version(settings)
    assert core_errors(good, version) is None
    assert core_errors(changed(good, path, value), version)


def test_a_wrong_claim_template_is_found(variants: Mapping[str, Mapping[str, Any]]) -> None:
    claims = [m for m in objects(variants["dra"]) if m["kind"] == "ResourceClaimTemplate"]
    version = kubernetes_version(variants["dra"])
    assert len(claims) == 2
    wrong = changed(claims[0], "spec.spec.devices.requests.0.deviceClassName", "efa.networking.k8s.aws")
    assert core_errors(claims[0], version) is None
    assert core_errors(wrong, version)


def test_a_kubernetes_version_without_schemas_is_not_passed_over() -> None:
    with pytest.raises(VersionNotSupportedError):
        core_errors({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}, "1.99")


def test_the_serve_config_is_the_files_own_text() -> None:
    text = Path(ROOT / "serve_configs/qwen3.5-9b-pd.yaml").read_text("utf-8")
    assert ray_services(SETTINGS["defaults"])["spec"]["serveConfigV2"] == text
