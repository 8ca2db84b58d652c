"""A typed model of Ray Serve's config file and of the Ray LLM arguments in it, so that a synth needs no Ray.

It accepts what the classes of Ray 2.58 accept and refuses what they refuse (``ServeDeploySchema`` and, by builder,
``LLMServingArgs``, ``PDServingArgs``, ``DPOpenAiServingArgs`` with their ``LLMConfig``), including their policy for
unknown keys: Ray LLM refuses them, Ray Serve drops them without a word. ``tests/serve`` compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    StrictInt,
    field_validator,
    model_validator,
)

REMOTE_PREFIXES = ("s3://", "gs://", "abfss://", "azure://", "pyarrow-")
"""What Ray takes for cloud storage."""

ACCELERATORS = frozenset(
    [
        "V100",
        "P100",
        "T4",
        "P4",
        "K80",
        "A10G",
        "L4",
        "L40S",
        "A100",
        "H100",
        "H200",
        "H20",
        "B200",
        "B300",
        "GB200",
        "GB300",
        "RTX-PRO-6000",
        "A100-40G",
        "A100-80G",
        "Intel-GPU-Max-1550",
        "Intel-GPU-Max-1100",
        "Intel-GAUDI",
        "AMD-Instinct-MI100",
        "AMD-Instinct-MI250X-MI250",
        "AMD-Instinct-MI210",
        "AMD-Instinct-MI250X",
        "AMD-Instinct-MI300A",
        "AMD-Instinct-MI300X-OAM",
        "AMD-Instinct-MI308X",
        "AMD-Instinct-MI325X-OAM",
        "AMD-Instinct-MI350X-OAM",
        "AMD-Instinct-MI355X-OAM",
        "AMD-Radeon-R9-200-HD-7900",
        "AMD-Radeon-HD-7900",
        "aws-neuron-core",
        "TPU-V2",
        "TPU-V3",
        "TPU-V4",
        "TPU-V5P",
        "TPU-V5LITEPOD",
        "TPU-V6E",
        "TPU-V7X",
        "Ascend910B",
        "Ascend910B4",
        "MXC500",
        "MXC550",
        "FURIOSA_RNGD",
        "M1",
        "M1-Pro",
        "M1-Max",
        "M1-Ultra",
        "M2",
        "M2-Pro",
        "M2-Max",
        "M2-Ultra",
        "M3",
        "M3-Pro",
        "M3-Max",
        "M3-Ultra",
        "M4",
        "M4-Pro",
        "M4-Max",
        "Apple-Silicon",
    ]
)
"""Values of ray.util.accelerators in Ray 2.58."""


class RayModel(BaseModel):
    """Ray LLM's own models: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), use_attribute_docstrings=True)


class ServeModel(BaseModel):
    """Ray Serve's models: unknown keys are dropped silently (a rule reports them)."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)


class ExtraFiles(RayModel):
    """One more folder to download beside a model."""

    bucket_uri: str
    destination_path: str


class CloudMirrorConfig(RayModel):
    """Where Ray downloads a model from, other than the Hugging Face Hub."""

    bucket_uri: str | None = None
    extra_files: list[ExtraFiles] = []

    @field_validator("bucket_uri")
    @classmethod
    def _remote(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(REMOTE_PREFIXES):
            raise ValueError(f"must start with one of {', '.join(REMOTE_PREFIXES)}")
        return value


class ModelLoadingConfig(RayModel):
    """Which model, and under which id clients ask for it."""

    model_id: str
    """The id that clients use."""
    model_source: str | CloudMirrorConfig | None = None
    """Hugging Face Hub id, absolute path, s3:// address or mirror; default: model_id as a hub id."""
    tokenizer_source: str | None = None


class LoraConfig(RayModel):
    """LoRA adapters that are loaded when a request asks for them."""

    dynamic_lora_loading_path: str | None = None
    """Cloud storage prefix with one folder an adapter."""
    max_num_adapters_per_replica: PositiveInt = 16
    download_timeout_s: float | None = None
    max_download_tries: int = 3

    @field_validator("dynamic_lora_loading_path")
    @classmethod
    def _remote(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(REMOTE_PREFIXES):
            raise ValueError("must start with s3://, gs://, abfss:// or azure://")
        return value


class AutoscalingPolicy(ServeModel):
    """A custom autoscaling policy."""

    policy_function: Any = None


class AutoscalingConfig(ServeModel):
    """How many replicas, by load."""

    min_replicas: NonNegativeInt = 1
    initial_replicas: NonNegativeInt | None = None
    max_replicas: PositiveInt = 1
    target_ongoing_requests: PositiveFloat | None = None
    metrics_interval_s: PositiveFloat = 10
    look_back_period_s: PositiveFloat = 30
    smoothing_factor: PositiveFloat = 1
    upscale_smoothing_factor: PositiveFloat | None = None
    downscale_smoothing_factor: PositiveFloat | None = None
    upscaling_factor: PositiveFloat | None = None
    downscaling_factor: PositiveFloat | None = None
    downscale_delay_s: NonNegativeFloat = 600
    downscale_to_zero_delay_s: NonNegativeFloat | None = None
    upscale_delay_s: NonNegativeFloat = 30
    aggregation_function: str = "mean"
    policy: AutoscalingPolicy = AutoscalingPolicy()

    @field_validator("aggregation_function")
    @classmethod
    def _known_function(cls, value: str) -> str:
        if value.lower() not in ("mean", "max", "min"):
            raise ValueError("must be mean, max or min")
        return value

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.max_replicas < self.min_replicas:
            raise ValueError(f"max_replicas {self.max_replicas} is less than min_replicas {self.min_replicas}")
        first = self.initial_replicas
        if first is not None and not self.min_replicas <= first <= self.max_replicas:
            raise ValueError(f"initial_replicas {first} is not between min_replicas and max_replicas")
        return self


class RequestRouterConfig(ServeModel):
    """How requests are spread over replicas."""

    request_router_class: str = "ray.serve._private.request_router:PowerOfTwoChoicesRequestRouter"
    request_router_kwargs: dict[str, Any] = {}
    request_routing_stats_period_s: PositiveFloat = 10
    request_routing_stats_timeout_s: PositiveFloat = 30
    initial_backoff_s: PositiveFloat = 0.025
    backoff_multiplier: PositiveFloat = 2
    max_backoff_s: PositiveFloat = 0.5


class GangSchedulingConfig(ServeModel):
    """Replicas that start and fail together."""

    gang_size: PositiveInt
    gang_placement_strategy: str = "PACK"
    runtime_failure_policy: str = "RESTART_GANG"


class DeploymentOptions(ServeModel):
    """Options of a Ray Serve deployment, as Ray's DeploymentConfig checks them in an LLM config."""

    num_replicas: NonNegativeInt | None = 1
    max_ongoing_requests: PositiveInt = 5
    max_queued_requests: StrictInt = -1
    user_config: Any = None
    graceful_shutdown_timeout_s: NonNegativeFloat = 20
    graceful_shutdown_wait_loop_s: NonNegativeFloat = 2
    health_check_period_s: PositiveFloat = 10
    health_check_timeout_s: PositiveFloat = 30
    autoscaling_config: AutoscalingConfig | None = None
    request_router_config: RequestRouterConfig = RequestRouterConfig()
    is_cross_language: bool = False
    logging_config: dict[str, Any] | None = None
    max_constructor_retry_count: PositiveInt = 20
    gang_scheduling_config: GangSchedulingConfig | None = None
    rolling_update_percentage: Annotated[float, Field(gt=0, le=1)] = 0.2

    @field_validator("max_queued_requests")
    @classmethod
    def _unlimited_or_positive(cls, value: int) -> int:
        if value < 1 and value != -1:
            raise ValueError("must be -1 (no limit) or positive")
        return value


def _deployment_options(value: object) -> object:
    """Ray resolves num_replicas "auto" first: autoscaling between 1 and 100 replicas, or as given."""
    if isinstance(value, Mapping):
        given = cast(Mapping[str, object], value)
        if given.get("num_replicas") == "auto":
            scaling = given.get("autoscaling_config")
            merged = (
                {"max_replicas": 100, **cast(Mapping[str, object], scaling)} if isinstance(scaling, Mapping) else {}
            )
            given = {**given, "num_replicas": None, "autoscaling_config": merged or None}
        # Checked here and kept as it was, as Ray does.
        DeploymentOptions.model_validate(given)
    return cast(object, value)


class CpuAccelerator(BaseModel):
    """An engine without accelerator."""

    kind: Literal["cpu"] = "cpu"


class GpuAccelerator(BaseModel):
    """An engine on GPUs."""

    kind: Literal["gpu"] = "gpu"


class TpuAccelerator(BaseModel):
    """An engine on TPUs."""

    kind: Literal["tpu"] = "tpu"
    topology: str | None = None


class CallbackConfig(RayModel):
    """Code of one's own around the start of an engine."""

    callback_class: str = "ray.llm._internal.common.callbacks.base.CallbackBase"
    callback_kwargs: dict[str, Any] = {}
    raise_error_on_callback: bool = True


class LLMConfig(RayModel):
    """One kind of engine: model, engine arguments, placement, replicas."""

    runtime_env: dict[str, Any] | None = None
    model_loading_config: ModelLoadingConfig
    llm_engine: str = "vLLM"
    engine_kwargs: dict[str, Any] = {}
    """Engine arguments of vLLM."""
    accelerator_type: str | None = None
    accelerator_config: Annotated[
        CpuAccelerator | GpuAccelerator | TpuAccelerator | None, Field(discriminator="kind")
    ] = None
    placement_group_config: dict[str, Any] | None = None
    """bundles, or bundle_per_worker, and a strategy."""
    lora_config: LoraConfig | None = None
    deployment_config: Annotated[dict[str, Any], BeforeValidator(_deployment_options)] = {}
    server_cls: str | None = None
    experimental_configs: dict[str, Any] = {}
    log_engine_metrics: bool | None = True
    callback_config: CallbackConfig = CallbackConfig()

    @field_validator("accelerator_type")
    @classmethod
    def _known_accelerator(cls, value: str | None) -> str | None:
        if value is not None and value != "A10" and value not in ACCELERATORS:
            raise ValueError(
                f"Ray 2.58 knows no accelerator type {value!r}; GPUs on EC2 are L4, L40S, A10G, A100, H100 …"
            )
        return value

    @field_validator("llm_engine")
    @classmethod
    def _vllm(cls, value: str) -> str:
        if value != "vLLM":
            raise ValueError(f"{value!r} is no engine of Ray Serve LLM; there is vLLM")
        return value

    @field_validator("experimental_configs")
    @classmethod
    def _renamed(cls, value: dict[str, Any]) -> dict[str, Any]:
        if "num_router_replicas" in value:
            raise ValueError("num_router_replicas was renamed: write num_ingress_replicas")
        return value

    @model_validator(mode="after")
    def _metrics_need_statistics(self) -> Self:
        if self.log_engine_metrics and self.engine_kwargs.get("disable_log_stats"):
            raise ValueError("disable_log_stats cannot be true while log_engine_metrics is on (the default)")
        return self

    @model_validator(mode="after")
    def _accelerator_fits_bundles(self) -> Self:
        kind = self.accelerator_config.kind if self.accelerator_config else self._kind_of_bundles()
        if not self.accelerator_type:
            if isinstance(self.accelerator_config, TpuAccelerator) and self.accelerator_config.topology:
                raise ValueError("accelerator_type must be given with a TPU topology")
            return self
        expected = "tpu" if self.accelerator_type.startswith("TPU-") else "gpu"
        if kind is not None and kind != expected:
            raise ValueError(
                f"accelerator_type {self.accelerator_type} needs bundles with {expected.upper()}s, not {kind}"
            )
        return self

    def _kind_of_bundles(self) -> str | None:
        """What Ray infers from placement_group_config; a wrong shape of it is found elsewhere."""
        group = self.placement_group_config
        if not group:
            return None
        bundles: list[object] = [group.get("bundle_per_worker") or {}]
        if isinstance(listed := group.get("bundles"), list):
            bundles += cast(list[object], listed)
        for resource, kind in (("TPU", "tpu"), ("GPU", "gpu")):
            for bundle in bundles:
                amount = cast(Mapping[str, object], bundle).get(resource, 0) if isinstance(bundle, Mapping) else 0
                if not isinstance(amount, (int, float)):
                    raise ValueError(f"{resource} of a bundle must be a number, not {amount!r}")
                if amount > 0:
                    return kind
        return "cpu"


class Bundle(BaseModel):
    """Resources of one worker; keys other than CPU and GPU are Ray resources of one's own."""

    model_config = ConfigDict(extra="allow")

    CPU: NonNegativeFloat = 0
    GPU: NonNegativeFloat = 0

    @model_validator(mode="after")
    def _numbers(self) -> Self:
        for key, amount in (self.model_extra or {}).items():
            if not isinstance(amount, (int, float)):
                raise ValueError(f"resource {key} must be a number, not {type(amount).__name__}")
            if amount < 0:
                raise ValueError(f"resource {key} must not be negative")
        return self


class PlacementGroupConfig(RayModel):
    """Where the workers of one replica run."""

    bundle_per_worker: Bundle | None = None
    """Resources of each worker; repeated tensor x pipeline parallel size times."""
    bundles: list[Bundle] | None = None
    """All bundles, one a GPU. The replica itself runs in the first."""
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.bundle_per_worker is None) == (self.bundles is None):
            raise ValueError("give either bundles or bundle_per_worker")
        return self


class IngressClsConfig(RayModel):
    """A class of one's own in place of the OpenAI-compatible ingress."""

    ingress_cls: str = "ray.llm._internal.serve.core.ingress.ingress:OpenAiIngress"
    ingress_extra_kwargs: dict[str, Any] | None = {}


class ProxyClsConfig(RayModel):
    """Deprecated and ignored since Ray 2.57."""

    proxy_cls: str = ""
    proxy_extra_kwargs: dict[str, Any] | None = {}


class LLMServingArgs(RayModel):
    """Arguments of build_openai_app: engines that do prefill and decode."""

    llm_configs: list[str | LLMConfig]
    ingress_cls_config: IngressClsConfig = IngressClsConfig()
    ingress_deployment_config: dict[str, Any] = {}

    @model_validator(mode="after")
    def _different_ids(self) -> Self:
        ids = [config.model_loading_config.model_id for config in self.llm_configs if isinstance(config, LLMConfig)]
        if len(set(ids)) != len(ids):
            raise ValueError("two llm_configs have one model_id; ids must differ")
        if not self.llm_configs:
            raise ValueError("llm_configs is empty")
        return self


class PDServingArgs(RayModel):
    """Arguments of build_pd_openai_app: prefill and decode as engines of their own."""

    prefill_config: str | LLMConfig
    decode_config: str | LLMConfig
    proxy_cls_config: ProxyClsConfig | None = None
    proxy_deployment_config: dict[str, Any] | None = None
    ingress_cls_config: IngressClsConfig = IngressClsConfig()
    ingress_deployment_config: dict[str, Any] | None = {}


class DPOpenAiServingArgs(RayModel):
    """Arguments of build_dp_openai_app: attention data parallelism."""

    llm_config: str | LLMConfig
    ingress_cls_config: IngressClsConfig = IngressClsConfig()
    ingress_deployment_config: dict[str, Any] | None = {}


PD_BUILDER = "ray.serve.llm:build_pd_openai_app"
OPENAI_BUILDER = "ray.serve.llm:build_openai_app"
DP_BUILDER = "ray.serve.llm:build_dp_openai_app"

BUILDER_ARGUMENTS: Mapping[str, type[RayModel]] = {
    PD_BUILDER: PDServingArgs,
    OPENAI_BUILDER: LLMServingArgs,
    DP_BUILDER: DPOpenAiServingArgs,
}
"""The builders whose arguments are checked."""


class HttpOptions(ServeModel):
    """The HTTP proxies."""

    host: str = "0.0.0.0"
    port: int = 8000
    root_path: str = ""
    request_timeout_s: float | None = None
    keep_alive_timeout_s: int = 90
    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile_password: str | None = None
    ssl_ca_certs: str | None = None

    @model_validator(mode="after")
    def _certificate_with_key(self) -> Self:
        # Ray looks at the certificate only: a key alone passes.
        if self.ssl_certfile is not None and self.ssl_keyfile is None:
            raise ValueError("ssl_certfile needs ssl_keyfile")
        return self


class GrpcOptions(ServeModel):
    """The gRPC proxy."""

    port: int = 9000
    grpc_servicer_functions: list[str] = []
    request_timeout_s: float | None = None


class LoggingConfig(RayModel):
    """Logging of Ray Serve."""

    encoding: str = "TEXT"
    log_level: int | str = "INFO"
    logs_dir: str | None = None
    enable_access_log: bool = True
    additional_log_standard_attrs: list[str] = []


_URI = re.compile(r"(gcs|conda|pip|uv|https|s3|gs|azure|abfss|file|hdfs)://.+")


def _remote_code(value: object) -> object:
    """Ray Serve takes only URIs in working_dir and py_modules of an application."""
    if isinstance(value, Mapping):
        environment = cast(Mapping[str, object], value)
        modules = environment.get("py_modules", [])
        uris = [*cast(list[object], modules)] if isinstance(modules, list) else [modules]
        for uri in [*uris, environment.get("working_dir")]:
            if uri is not None and not (isinstance(uri, str) and _URI.fullmatch(uri)):
                raise ValueError(f"working_dir and py_modules must be URIs (s3://…), not {uri!r}")
    return cast(object, value)


class DeploymentOverride(ServeModel):
    """Options for one deployment by name; they win over those in code."""

    name: str
    num_replicas: PositiveInt | str | None = None
    max_ongoing_requests: PositiveInt = 5
    max_queued_requests: StrictInt = -1
    user_config: dict[str, Any] | None = None
    autoscaling_config: dict[str, Any] | None = None
    graceful_shutdown_wait_loop_s: NonNegativeFloat = 2
    graceful_shutdown_timeout_s: NonNegativeFloat = 20
    health_check_period_s: PositiveFloat = 10
    health_check_timeout_s: PositiveFloat = 30
    ray_actor_options: dict[str, Any] = {}
    placement_group_bundles: list[dict[str, float]] = []
    placement_group_strategy: str = "PACK"
    placement_group_bundle_label_selector: list[dict[str, str]] = []
    max_replicas_per_node: int = 100
    logging_config: dict[str, Any] = {}
    request_router_config: dict[str, Any] = {}
    gang_scheduling_config: dict[str, Any] | None = None
    deployment_actors: list[dict[str, Any]] | None = None
    backpressure_config: dict[str, Any] = {}
    rolling_update_percentage: Annotated[float, Field(gt=0, le=1)] = 0.2

    @model_validator(mode="after")
    def _number_or_scaling(self) -> Self:
        if isinstance(self.num_replicas, str) and self.num_replicas != "auto":
            raise ValueError("num_replicas must be a whole number or auto")
        if isinstance(self.num_replicas, int) and self.autoscaling_config is not None:
            raise ValueError("num_replicas and autoscaling_config exclude each other")
        return self


class Application(ServeModel):
    """One application of a Serve config."""

    name: str = "default"
    route_prefix: str | None = "/"
    import_path: str
    """module:function of the application builder."""
    runtime_env: Annotated[dict[str, Any], BeforeValidator(_remote_code)] = {}
    host: str = "0.0.0.0"
    port: int = 8000
    deployments: list[DeploymentOverride] = []
    autoscaling_policy: dict[str, Any] | None = None
    args: dict[str, Any] = {}
    """Arguments of the builder."""
    logging_config: LoggingConfig | None = None
    external_scaler_enabled: bool = False

    @field_validator("import_path")
    @classmethod
    def _module_and_name(cls, value: str) -> str:
        separator = ":" if ":" in value else "."
        if value.count(":") > 1 or separator not in value or value.startswith(separator) or value.endswith(separator):
            raise ValueError("must be of the form package.module:function")
        return value

    @model_validator(mode="after")
    def _no_address(self) -> Self:
        for key in ("host", "port"):
            if key in self.model_fields_set:
                raise ValueError(f"{key} cannot be set for one application: move it to http_options")
        return self

    @field_validator("name")
    @classmethod
    def _some_name(cls, value: str) -> str:
        if not value:
            raise ValueError("must not be empty")
        return value


class ServeFile(ServeModel):
    """A Ray Serve config file."""

    proxy_location: Literal["Disabled", "HeadOnly", "EveryNode"] = "EveryNode"
    http_options: HttpOptions = HttpOptions()
    grpc_options: GrpcOptions = GrpcOptions()
    controller_options: dict[str, Any] | None = None
    logging_config: LoggingConfig | None = None
    applications: list[Application]
    target_capacity: Annotated[float, Field(ge=0, le=100)] | None = None
