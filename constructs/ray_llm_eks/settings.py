"""The settings of the app: one typed, frozen object, read once from the CDK context key ``ray-llm``.

Constructs never read settings; ``stacks/`` turns them into props.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Network
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from . import forms
from .errors import ConfigurationError
from .instances import instance_facts
from .rules import unknown_rules
from .yaml_document import parse_document

CONTEXT_KEY = "ray-llm"
"""The CDK context key that holds the settings."""

DEFAULT_IMAGE = "public.ecr.aws/deep-learning-containers/ray:serve-llm-cuda-v1.0.0"
"""AWS Ray LLM Deep Learning Container: Ray 2.58.0, vLLM 0.26.0, CUDA 13, released 2026-08-31."""


def _checked(check: Callable[[str], object]) -> AfterValidator:
    """A check of the library's, which raises ``ConfigurationError``, as a validator."""

    def validate(value: str) -> str:
        with _as_value_error():
            check(value)
        return value

    return AfterValidator(validate)


@contextmanager
def _as_value_error() -> Generator[None, None, None]:
    """pydantic adds the setting's path to a ValueError."""
    try:
        yield
    except ConfigurationError as error:
        raise ValueError(str(error)) from None


def _matching(pattern: str, wanted: str) -> AfterValidator:
    return _checked(lambda text: forms.matching(text, pattern, wanted))


def _text(value: object) -> object:
    """A number would be read as an address too."""
    if not isinstance(value, str | IPv4Network):
        raise ValueError("write an address range as text, such as 203.0.113.7/32")
    return value


InstanceTypeName = Annotated[str, _checked(instance_facts)]
Zone = Annotated[str, _checked(forms.zone)]
PinnedImage = Annotated[str, _checked(forms.pinned_image)]
DnsLabel = Annotated[str, _checked(forms.dns_label)]
SubnetId = Annotated[str, _matching(r"subnet-[0-9a-f]{8,17}", "a subnet's id (subnet-0123456789abcdef0)")]
RoleOrUserArn = Annotated[
    str,
    _matching(
        r"arn:aws[\w-]*:iam::\d{12}:(role|user)/[\w+=,.@/-]+",
        "the ARN of an IAM role or user (arn:aws:iam::111122223333:role/PlatformTeam)",
    ),
]
IpRange = Annotated[IPv4Network, BeforeValidator(_text)]
Nodes = Annotated[int, Field(ge=0, le=1000, strict=True)]
SomeNodes = Annotated[int, Field(ge=1, le=1000, strict=True)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, use_attribute_docstrings=True)


class ImportedSubnet(_Model):
    """An existing subnet."""

    id: SubnetId
    zone: Zone


class ImportedVpc(_Model):
    """An existing VPC to use instead of making one. All subnets need a route to the internet or to endpoints."""

    vpc_id: Annotated[str, _matching(r"vpc-[0-9a-f]{8,17}", "a VPC's id (vpc-0123456789abcdef0)")]
    private_subnets: Annotated[tuple[ImportedSubnet, ...], Field(min_length=2)]
    """For the control plane's interfaces and the system nodes; at least two zones."""
    gpu_subnet: ImportedSubnet
    """For the GPU nodes and the model cache; its zone must offer the instance type."""

    @model_validator(mode="after")
    def _two_zones(self) -> Self:
        with _as_value_error():
            forms.vpc_zones([subnet.zone for subnet in self.private_subnets], self.gpu_subnet.zone)
        if len({subnet.id for subnet in self.private_subnets}) < len(self.private_subnets):
            raise ValueError("private_subnets names a subnet twice")
        return self


class NetworkSettings(_Model):
    """Where everything runs."""

    vpc: ImportedVpc | None = None
    """An existing VPC; default: a new one."""
    cidr: IpRange = IPv4Network("10.0.0.0/16")
    """Address range of the new VPC, /16 to /20."""
    nat_gateways: Annotated[int, Field(ge=1, le=2, strict=True)] = 1
    interface_endpoints: bool = False
    """ECR, STS, EC2, EKS, EKS-auth and CloudWatch Logs without the NAT gateway; on in production."""
    flow_logs: bool = False
    """VPC flow logs to CloudWatch; on in production."""

    @field_validator("cidr")
    @classmethod
    def _size(cls, cidr: IPv4Network) -> IPv4Network:
        with _as_value_error():
            return forms.vpc_range(cidr)

    @model_validator(mode="after")
    def _of_a_new_vpc(self) -> Self:
        if self.vpc and (others := self.model_fields_set - {"vpc"}):
            raise ValueError(
                f"vpc is an existing one, {', '.join(sorted(others))} would be of a new one: remove either"
            )
        return self


class ClusterSettings(_Model):
    """The EKS cluster."""

    name: DnsLabel = "ray-llm"
    """Cluster name; unique in an account and region."""
    kubernetes_version: Annotated[str, _matching(r"1\.\d\d", 'a Kubernetes version such as "1.36"')] = "1.36"
    kubectl_layer: Annotated[str, _matching(r"v\d\d", "a layer such as v36")] | None = None
    """Force a kubectl layer package (for example v29); default: the one for the Kubernetes version."""
    admin_arns: tuple[RoleOrUserArn, ...] = ()
    """IAM roles or users that get cluster admin; default: a new role that the account's administrators may assume."""
    public_access_cidrs: tuple[IpRange, ...] = ()
    """Addresses that may reach the public API endpoint; default: none, the endpoint is private."""
    allow_public_access_from_anywhere: bool = False
    """Must be true for 0.0.0.0/0 in public_access_cidrs."""
    addon_versions: dict[str, str] = Field(default_factory=dict)
    """Pinned EKS add-on versions by add-on name; default: EKS's default for the Kubernetes version."""

    @field_validator("admin_arns")
    @classmethod
    def _once(cls, arns: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(arns)) < len(arns):
            raise ValueError("names a role or user twice; EKS takes one access entry for each")
        return arns

    @model_validator(mode="after")
    def _not_the_whole_world_by_accident(self) -> Self:
        with _as_value_error():
            forms.public_access(self.public_access_cidrs, from_anywhere=self.allow_public_access_from_anywhere)
        return self


class _NodeCounts(_Model):
    min_nodes: Nodes
    desired_nodes: SomeNodes
    max_nodes: SomeNodes

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.min_nodes <= self.desired_nodes <= self.max_nodes:
            raise ValueError(
                f"min_nodes <= desired_nodes <= max_nodes does not hold: "
                f"{self.min_nodes}, {self.desired_nodes}, {self.max_nodes}"
            )
        return self


class SystemNodeSettings(_NodeCounts):
    """CPU nodes for the Ray head, the operator and the add-ons."""

    instance_type: InstanceTypeName = "m7i.xlarge"
    min_nodes: Nodes = 1
    desired_nodes: SomeNodes = 1
    max_nodes: SomeNodes = 2

    @field_validator("instance_type")
    @classmethod
    def _no_gpu(cls, name: str) -> str:
        facts = instance_facts(name)
        if facts.gpus:
            raise ValueError(f"{name} has GPUs; the system nodes are CPU nodes (default m7i.xlarge)")
        if facts.vcpus < 4:
            raise ValueError(
                f"{name} is too small: beside the Ray head (2 CPU, 8 GiB) nothing fits; take m7i.xlarge or larger"
            )
        return name


class GpuNodeSettings(_NodeCounts):
    """One group of GPU nodes."""

    instance_type: InstanceTypeName = "g6.8xlarge"
    min_nodes: Nodes = 2
    desired_nodes: SomeNodes = 2
    max_nodes: SomeNodes = 2
    capacity: Literal["on-demand", "spot", "capacity-block"] = "on-demand"
    capacity_reservation_id: (
        Annotated[str, _matching(r"cr-[0-9a-f]{8,17}", "a reservation's id (cr-0123456789abcdef0)")] | None
    ) = None
    """On-Demand Capacity Reservation or Capacity Block to run in."""
    placement_group_name: Annotated[str, _matching(r"[!-~]([ -~]{0,253}[!-~])?", "a placement group's name")] | None = (
        None
    )
    """An existing cluster placement group, such as the one a reservation was made in; default: a new one,
    or none with a reservation (EC2 allows only the reservation's own)."""
    root_volume_gib: Annotated[int, Field(ge=100, le=16384, strict=True)] = 200

    @field_validator("instance_type")
    @classmethod
    def _gpu_and_efa(cls, name: str) -> str:
        facts = instance_facts(name)
        if not facts.gpus or not facts.efa_interfaces:
            lacks = "GPU" if not facts.gpus else "EFA interface"
            raise ValueError(
                f"{name} has no {lacks}; the KV cache moves over EFA between GPU nodes. "
                "Smallest that do: g6.8xlarge (L4), g5.8xlarge (A10G), g6e.8xlarge (L40S)"
            )
        return name

    @model_validator(mode="after")
    def _capacity(self) -> Self:
        if self.capacity == "spot" and self.capacity_reservation_id:
            raise ValueError("capacity: spot cannot run in a capacity reservation; remove one of the two")
        if self.capacity == "capacity-block":
            if not self.capacity_reservation_id:
                raise ValueError("capacity: capacity-block needs capacity_reservation_id (cr-…) of the block")
            if not instance_facts(self.instance_type).capacity_block:
                raise ValueError(f"{self.instance_type} is not sold in Capacity Blocks; use capacity: on-demand")
        return self


class GpuSettings(GpuNodeSettings):
    """The GPU nodes: by default one group for prefill and decode alike."""

    zone: Zone | None = None
    """Zone name or zone id of the GPU nodes and the model cache; default: the region's first zone."""
    efa_devices: Literal["device-plugin", "dra"] = "device-plugin"
    """How pods get EFA: the AWS device plugin, or the EFA DRA driver (Kubernetes 1.34 or later)."""
    decode: GpuNodeSettings | None = None
    """A second group, for decode alone, with its own instance type and size; default: shared with prefill."""


class CacheSettings(_Model):
    """The model cache volume."""

    kind: Literal["fsx-lustre", "efs", "node-local"] = "fsx-lustre"
    capacity_gib: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] = 1200
    """FSx for Lustre only: 1200, 2400 or a multiple of 2400 GiB."""
    throughput_per_tib: Literal[125, 250, 500, 1000] = 250
    """FSx for Lustre only: MB/s per TiB."""
    retain: bool = False
    """Keep the file system when the stack is deleted, and so its subnet and VPC; on in production."""

    @model_validator(mode="after")
    def _lustre_size(self) -> Self:
        if self.kind == "fsx-lustre" and self.capacity_gib != 1200 and self.capacity_gib % 2400:
            raise ValueError(f"capacity_gib {self.capacity_gib}: FSx for Lustre takes 1200, 2400 or a multiple of 2400")
        return self


class ServingSettings(_Model):
    """What is served."""

    serve_config: str = "serve_configs/qwen3.5-9b-pd.yaml"
    """Path of a Ray Serve config file, from the folder of app.py."""
    image: PinnedImage = DEFAULT_IMAGE
    ray_version: Annotated[str, _matching(r"\d+\.\d+\.\d+", "a version such as 2.58.0")] = "2.58.0"
    """Ray's version in the image."""
    namespace: Annotated[str, _checked(forms.namespace)] = "inference"
    service_name: Annotated[str, _checked(forms.service_name)] = "ray-llm"
    hugging_face_token_secret: Annotated[str, _checked(forms.secret)] | None = None
    """Name or full ARN of a Secrets Manager secret that holds a Hugging Face token (plain text)."""
    model_s3_uri: Annotated[str, _checked(forms.s3_prefix)] | None = None
    """S3 prefix to stage the model from, into the path that the Serve config names as model_source."""
    upgrade_strategy: Literal["None", "NewCluster"] = "None"
    """KubeRay's answer to a changed pod template. NewCluster needs every GPU twice; with None the Serve config is
    changed in place; for new pods, delete the RayCluster, and KubeRay makes it anew, with a gap in the service."""

    @field_validator("serve_config")
    @classmethod
    def _relative(cls, path: str) -> str:
        if not path or PurePosixPath(path).suffix not in (".yaml", ".yml"):
            raise ValueError(f"{path!r} is not the path of a .yaml file")
        return path


class RuleSettings(_Model):
    """The rules that a Serve config is checked by."""

    silence: dict[str, Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]] = Field(
        default_factory=dict
    )
    """Reasons by rule id; what a silenced rule finds is shown and does not count. `ray-llm rules` lists the ids."""
    model_config_file: Annotated[str, StringConstraints(min_length=1)] | None = None
    """Path of the model's config.json, from the folder of app.py, for a model that no profile knows."""

    @field_validator("silence")
    @classmethod
    def _known(cls, silence: dict[str, str]) -> dict[str, str]:
        if unknown := unknown_rules(silence):
            raise ValueError(f"there is no rule {', '.join(unknown)[:200]}; `ray-llm rules` lists them")
        return silence


class Settings(_Model):
    """All settings of the app; every one has a default."""

    profile: Literal["evaluation", "production"] = "evaluation"
    """production: interface endpoints, flow logs, two NAT gateways, two system nodes, retained file system,
    stacks that refuse deletion. Whatever is set beside it wins."""
    prefix: Annotated[
        str, _matching(r"[A-Z][A-Za-z0-9]{0,30}", "1 to 31 letters and digits that begin with a capital letter")
    ] = "RayLlm"
    """Prefix of the stack names; change it (and cluster.name) for a second deployment in one account and region."""
    termination_protection: bool = False
    network: NetworkSettings = NetworkSettings()
    cluster: ClusterSettings = ClusterSettings()
    system_nodes: SystemNodeSettings = SystemNodeSettings()
    gpu: GpuSettings = GpuSettings()
    cache: CacheSettings = CacheSettings()
    serving: ServingSettings = ServingSettings()
    rules: RuleSettings = RuleSettings()

    @model_validator(mode="before")
    @classmethod
    def _profile_defaults(cls, value: object) -> object:
        if isinstance(value, Mapping):
            given = cast(Mapping[str, object], value)
            if given.get("profile") == "production":
                network = given.get("network")
                existing = isinstance(network, Mapping) and cast(Mapping[str, object], network).get("vpc")
                defaults = {key: value for key, value in _PRODUCTION.items() if key != "network" or not existing}
                return merge(defaults, given)
        return cast(object, value)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.network.vpc and self.gpu.zone and self.gpu.zone != self.network.vpc.gpu_subnet.zone:
            raise ValueError(
                f"gpu.zone {self.gpu.zone} differs from network.vpc.gpu_subnet.zone "
                f"{self.network.vpc.gpu_subnet.zone}: GPU nodes run in one zone; remove gpu.zone"
            )
        if self.gpu.efa_devices == "dra" and int(self.cluster.kubernetes_version.partition(".")[2]) < 34:
            raise ValueError(
                f"gpu.efa_devices: dra needs Kubernetes 1.34 or later, "
                f"cluster.kubernetes_version is {self.cluster.kubernetes_version}"
            )
        if self.serving.upgrade_strategy == "NewCluster" and self.gpu.max_nodes < 2 * self.gpu.desired_nodes:
            raise ValueError(
                "serving.upgrade_strategy: NewCluster starts a second set of GPU pods beside the first; "
                f"gpu.max_nodes must be at least {2 * self.gpu.desired_nodes}, or use None"
            )
        return self


_PRODUCTION: Mapping[str, object] = {
    "termination_protection": True,
    "network": {"interface_endpoints": True, "flow_logs": True, "nat_gateways": 2},
    "system_nodes": {"min_nodes": 2, "desired_nodes": 2, "max_nodes": 3},
    "cache": {"retain": True},
}


def merge(base: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    """``over`` laid upon ``base``, mapping by mapping; lists and scalars are replaced."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(cast(Mapping[str, object], below), cast(Mapping[str, object], value))
        else:
            merged[key] = value
    return merged


def load_settings(context: object, defaults: object = None) -> Settings:
    """Settings from the context value of ``ray-llm``.

    Args:
        context: the value; a mapping (from cdk.json), or text in YAML or JSON (from ``-c ray-llm='{…}'``).
        defaults: what text is laid upon: the mapping in cdk.json, so that ``-c`` overrides single settings.

    Raises:
        ConfigurationError: with every wrong setting, its path and what to write.
    """
    value = context
    if isinstance(context, str):
        over = _mapping_from_text(context)
        value = merge(cast(Mapping[str, object], defaults), over) if isinstance(defaults, Mapping) else over
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        raise ConfigurationError(f'the context key "{CONTEXT_KEY}" must be a mapping, not {type(value).__name__}')
    try:
        return Settings.model_validate(value)
    except ValidationError as error:
        raise ConfigurationError(_describe(error, cast(Mapping[str, object], value))) from None


def _mapping_from_text(text: str) -> Mapping[str, object]:
    # JSON may be indented with tabs, YAML may not.
    text = text.replace("\t", " ") if text.lstrip().startswith("{") else text
    value = parse_document(text, path=f"-c {CONTEXT_KEY}=…").root
    if not isinstance(value, dict):
        raise ConfigurationError(
            f'-c {CONTEXT_KEY}=… must be a mapping, such as -c {CONTEXT_KEY}=\'{{"gpu": {{"zone": "us-west-2b"}}}}\''
        )
    return cast(Mapping[str, object], value)


def _describe(error: ValidationError, value: Mapping[str, object]) -> str:
    lines = [f'The settings (context key "{CONTEXT_KEY}") have {_count(error.error_count(), "problem")}:']
    for item in error.errors(include_url=False):
        path = ".".join(str(part) for part in item["loc"])
        given = item.get("input")
        message = re.sub(" or instance of \\w+", "", item["msg"]).replace("valid tuple", "valid list")
        if item["type"] == "extra_forbidden":
            message = _unknown_key(item["loc"])
        elif item["type"] == "value_error":
            message = message.removeprefix("Value error, ")
        elif given is None or isinstance(given, str | int | float):
            message += f", got {'null' if given is None else repr(given)[:60]}"
            if item["type"] == "string_type" and given is not None:
                message += "; write it in quotes"
        lines.append(f"  {path + ': ' if path else ''}{message}")
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _unknown_key(loc: Sequence[int | str]) -> str:
    import difflib

    model: Any = Settings
    for part in loc[:-1]:
        field = model.model_fields.get(part) if isinstance(part, str) and hasattr(model, "model_fields") else None
        if field is None:
            break
        model = _model_of(field.annotation) or model
    names = list(getattr(model, "model_fields", {}))
    near = difflib.get_close_matches(str(loc[-1]), names, n=1, cutoff=0.5)
    return "no such setting" + (f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}")


def _model_of(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None
