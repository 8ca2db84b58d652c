"""Rules about the file itself: does Ray accept it, and does it read every key of it?"""

from __future__ import annotations

import difflib
import typing
from collections import Counter
from collections.abc import Iterator

from pydantic import BaseModel, ValidationError

from ray_llm_eks.ray_schema import (
    BUILDER_ARGUMENTS,
    AutoscalingConfig,
    PlacementGroupConfig,
    RequestRouterConfig,
    ServeFile,
    ServeModel,
)
from ray_llm_eks.yaml_document import Value, YamlPath

from .findings import Severity
from .rule import Problem, Rule, rule
from .subject import Subject

DEPLOYMENT_OPTIONS = frozenset(
    [
        "name",
        "num_replicas",
        "ray_actor_options",
        "max_replicas_per_node",
        "user_config",
        "max_ongoing_requests",
        "max_queued_requests",
        "backpressure_config",
        "autoscaling_config",
        "graceful_shutdown_wait_loop_s",
        "graceful_shutdown_timeout_s",
        "health_check_period_s",
        "health_check_timeout_s",
        "logging_config",
        "request_router_config",
        "max_constructor_retry_count",
        "gang_scheduling_config",
        "deployment_actors",
        "rolling_update_percentage",
        "placement_group_bundle_label_selector",
    ]
)
"""Keyword arguments of ray.serve.deployment in Ray 2.58 that an LLM config may set."""


@rule(
    "ray-schema",
    Severity.ERROR,
    title="Ray's own classes accept the file",
    consequence="Ray refuses the application: its status becomes DEPLOY_FAILED, and the operator shows no more than "
    "that.",
    fix="Write the value as the message says.",
    source="Ray 2.58: ray.serve.schema, ray.serve.llm (LLMServingArgs, PDServingArgs, LLMConfig); compared in "
    "tests/serve.",
)
def ray_schema(subject: Subject) -> Iterator[Problem]:
    """Validates the file, the builders' arguments, and placement groups (which Ray checks when it builds)."""
    yield from _problems(ServeFile, subject.document.root, ())
    for application in subject.applications:
        builder = subject.document.get((*application, "import_path"))
        model = BUILDER_ARGUMENTS.get(builder) if isinstance(builder, str) else None
        if model is not None:
            arguments = subject.document.get((*application, "args"))
            yield from _problems(model, {} if arguments is None else arguments, (*application, "args"))
    for engine in subject.engines:
        if (group := engine.get("placement_group_config")) is not None:
            yield from _problems(PlacementGroupConfig, group, engine.at("placement_group_config"))


def _problems(model: type[BaseModel], value: Value, path: YamlPath) -> Iterator[Problem]:
    try:
        model.model_validate(value)
    except ValidationError as error:
        for item in error.errors(include_url=False, include_context=False):
            location = [part for part in item["loc"] if not _is_branch(part)]
            # A config may also be the name of a file; that branch of the choice says nothing of use.
            if item["loc"] and item["loc"][-1] == "str" and item["type"] == "string_type":
                continue
            where = (*path, *location)
            message = _message(item["type"], item["msg"], item.get("input"), location, model)
            yield Problem(path=where, message=message)


def _is_branch(part: int | str) -> bool:
    """Whether pydantic names the branch of a choice here, and no key: a kind, a model, or a validator around one."""
    if isinstance(part, int):
        return False
    return part in ("str", "cpu", "gpu", "tpu") or "(" in part or (part[:1].isupper() and part not in ("CPU", "GPU"))


def _message(kind: str, text: str, given: object, location: list[int | str], model: type[BaseModel]) -> str:
    name = str(location[-1]) if location else "it"
    if kind == "extra_forbidden":
        names = _fields_at(model, location[:-1])
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        return f"Ray knows no key {name} here; {hint}"
    if kind == "missing":
        return f"{name} is missing"
    text = text.removeprefix("Value error, ")
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        text = "must be a mapping"
    if isinstance(given, (str, int, float)) and repr(given)[:40] not in text:
        text += f", not {repr(given)[:40]}"
    return f"{name}: {text[:1].lower()}{text[1:]}"


def _fields_at(model: type[BaseModel], location: list[int | str]) -> list[str]:
    current = model
    for part in location:
        field = current.model_fields.get(str(part))
        current = _inner_model(field.annotation) if field else (current if isinstance(part, int) else None)
        if current is None:
            return []
    return list(current.model_fields)


def _inner_model(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in typing.get_args(annotation):
        if (found := _inner_model(argument)) is not None:
            return found
    return None


@rule(
    "ignored-key",
    Severity.WARNING,
    title="every key is one that Ray Serve reads",
    consequence="Ray Serve drops a key that it does not know without a word; the default is used instead.",
    fix="Correct the name, or remove the key.",
    source="Ray 2.58: ray.serve.schema and ray.serve.config leave pydantic's extra='ignore'.",
)
def ignored_key(subject: Subject) -> Iterator[Problem]:
    """Looks where Ray is lenient: the top level, applications, autoscaling and request routing."""
    root = subject.document.root
    yield from _unknown_keys(ServeFile, root, ())
    for engine in subject.engines:
        deployment = engine.at("deployment_config")
        for key, model in (("autoscaling_config", AutoscalingConfig), ("request_router_config", RequestRouterConfig)):
            yield from _unknown_keys(model, subject.document.get((*deployment, key)), (*deployment, key))


def _unknown_keys(model: type[BaseModel], value: Value, path: YamlPath) -> Iterator[Problem]:
    if not isinstance(value, dict) or not issubclass(model, ServeModel):
        return
    names = list(model.model_fields)
    for key, inner in value.items():
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield Problem(path=(*path, key), message=f"Ray Serve does not know the key {key} and drops it{hint}")
            continue
        below = _inner_model(model.model_fields[key].annotation)
        if below is None:
            continue
        if isinstance(inner, list):
            for number, item in enumerate(inner):
                yield from _unknown_keys(below, item, (*path, key, number))
        else:
            yield from _unknown_keys(below, inner, (*path, key))


@rule(
    "deployment-option",
    Severity.ERROR,
    title="deployment_config holds options of a Serve deployment",
    consequence="Ray fails to build the application and its status becomes DEPLOY_FAILED.",
    fix="Use the options of ray.serve.deployment; bundles and strategy go into placement_group_config.",
    source="Ray 2.58: ray.serve.deployment (unknown keyword), LLMServer.get_deployment_options; ran with Ray's "
    "builder.",
)
def deployment_option(subject: Subject) -> Iterator[Problem]:
    """Finds what the builder refuses: unknown options, no replica, a number beside autoscaling."""
    places = [engine.at("deployment_config") for engine in subject.engines]
    places += [(*application, "args", "ingress_deployment_config") for application in subject.applications]
    for path in places:
        options = subject.document.get(path)
        if not isinstance(options, dict):
            continue
        ingress = path[-1] == "ingress_deployment_config"
        for key in options:
            if not ingress and key in ("placement_group_bundles", "placement_group_strategy"):
                yield Problem(
                    path=(*path, key),
                    message=f"{key} cannot be given in deployment_config",
                    fix="Move it to placement_group_config: {bundles: …, strategy: …}.",
                )
            elif not ingress and key == "max_replicas_per_node" and options[key] is not None:
                yield Problem(
                    path=(*path, key),
                    message="max_replicas_per_node cannot be given: an engine always has a placement group",
                    fix="Bind the bundles to the role's nodes instead: bundles: [{CPU: 4, GPU: 1, prefill: 1}].",
                )
            elif key not in DEPLOYMENT_OPTIONS and not (ingress and key.startswith("placement_group_")):
                near = difflib.get_close_matches(key, sorted(DEPLOYMENT_OPTIONS), n=1, cutoff=0.5)
                hint = f"; did you mean {near[0]}?" if near else ""
                yield Problem(path=(*path, key), message=f"a Serve deployment has no option {key}{hint}")
        selectors = options.get("placement_group_bundle_label_selector")
        bundles = subject.document.get((*path[:-1], "placement_group_config", "bundles"))
        if isinstance(selectors, list) and isinstance(bundles, list) and len(selectors) not in (1, len(bundles)):
            yield Problem(
                path=(*path, "placement_group_bundle_label_selector"),
                message=f"{len(selectors)} label selectors for {len(bundles)} bundles: write one, or one for each",
            )
        number = options.get("num_replicas")
        if number == 0 and not isinstance(number, bool):
            yield Problem(
                path=(*path, "num_replicas"), message="num_replicas is 0; a deployment has at least one replica"
            )
        if isinstance(number, int) and not isinstance(number, bool) and options.get("autoscaling_config") is not None:
            yield Problem(
                path=(*path, "num_replicas"),
                message="num_replicas and autoscaling_config exclude each other",
                fix="Keep one of the two (or num_replicas: auto with autoscaling_config).",
            )


@rule(
    "application-clash",
    Severity.ERROR,
    title="applications have different names and route prefixes",
    consequence="Ray Serve refuses the whole file.",
    fix="Give each application its own name and route_prefix.",
    source="Ray 2.58: ray.serve.schema.ServeDeploySchema (application_names_unique, application_routes_unique).",
)
def application_clash(subject: Subject) -> Iterator[Problem]:
    """Compares names and routes, with their defaults, of all applications."""
    for key, default in (("route_prefix", "/"), ("name", "default")):
        values = [
            _with_default(subject.document.get(application), key, default) for application in subject.applications
        ]
        counts = Counter(value for value in values if isinstance(value, str))
        seen: set[str] = set()
        for application, value in zip(subject.applications, values, strict=True):
            if isinstance(value, str) and counts[value] > 1:
                if value in seen:
                    yield Problem(
                        path=(*application, key), message=f"another application has the {key} {value!r} already"
                    )
                seen.add(value)


def _with_default(application: Value, key: str, default: str) -> Value:
    return application.get(key, default) if isinstance(application, dict) else None


@rule(
    "environment-text",
    Severity.ERROR,
    title="environment variables are text",
    consequence="Ray refuses the runtime_env when the replica starts, and tries again without end.",
    fix="Write the value in quotes.",
    source="Ray 2.58: runtime_env env_vars must be Dict[str, str]; YAML 1.1 reads 1, true, on, 0x10 as other kinds.",
)
def environment_text(subject: Subject) -> Iterator[Problem]:
    """Finds values that YAML reads as numbers, booleans or dates."""
    for name, value, path in _all_environment(subject):
        if value is not None and not isinstance(value, str):
            yield Problem(path=path, message=f"{name} is read as {value!r} ({type(value).__name__}), not as text")


def _all_environment(subject: Subject) -> Iterator[tuple[str, Value, YamlPath]]:
    for path in dict.fromkeys(place for engine in subject.engines for place in engine.environment_places):
        values = subject.document.get(path)
        for name, value in values.items() if isinstance(values, dict) else ():
            yield name, value, (*path, name)


@rule(
    "environment-replaced",
    Severity.WARNING,
    title="no env_vars are lost to others",
    consequence="Ray takes the env_vars of the LLM config and drops those of the application: they are not merged.",
    fix="Repeat the variables in the LLM config's env_vars.",
    source="Ray 2.58: LLMServer.get_deployment_options lays runtime_env over runtime_env key by key.",
)
def environment_replaced(subject: Subject) -> Iterator[Problem]:
    """Finds variables in a weaker place that a stronger place does not repeat."""
    for engine in subject.engines:
        for path in engine.environment_places:
            values = subject.document.get(path)
            if not isinstance(values, dict):
                continue
            for name in values:
                if name not in engine.environment:
                    yield Problem(
                        path=(*path, name),
                        message=f"{name} does not reach {engine.name}, which has env_vars of its own",
                    )


@rule(
    "not-checked",
    Severity.INFO,
    title="parts that these rules do not look into are named",
    consequence="Mistakes in them show only when the application starts.",
    fix="Nothing, if it is meant so.",
    source="This library: only Ray's three LLM builders are known.",
)
def not_checked(subject: Subject) -> Iterator[Problem]:
    """Names foreign import paths, LLM configs kept in other files, deployment overrides and unknown connectors."""
    for application in subject.applications:
        builder = subject.document.get((*application, "import_path"))
        if isinstance(builder, str) and builder not in BUILDER_ARGUMENTS:
            near = difflib.get_close_matches(builder, BUILDER_ARGUMENTS, n=1, cutoff=0.85)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield Problem(
                path=(*application, "import_path"), message=f"the arguments of {builder} are not checked{hint}"
            )
        if isinstance(builder, str) and builder in BUILDER_ARGUMENTS:
            for path in _named_files(subject, application):
                yield Problem(path=path, message="an LLM config in a file of the image is not checked")
        if subject.document.get((*application, "deployments")):
            yield Problem(
                path=(*application, "deployments"), message="options that override deployments are not checked"
            )


def _named_files(subject: Subject, application: YamlPath) -> Iterator[YamlPath]:
    arguments = subject.document.get((*application, "args"))
    if not isinstance(arguments, dict):
        return
    for key in ("prefill_config", "decode_config", "llm_config"):
        if isinstance(arguments.get(key), str):
            yield (*application, "args", key)
    configs = arguments.get("llm_configs")
    for number, config in enumerate(configs if isinstance(configs, list) else []):
        if isinstance(config, str):
            yield (*application, "args", "llm_configs", number)


RULES: tuple[Rule, ...] = (
    ray_schema,
    ignored_key,
    deployment_option,
    application_clash,
    environment_text,
    environment_replaced,
    not_checked,
)
