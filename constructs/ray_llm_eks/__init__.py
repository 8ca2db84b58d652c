"""AWS CDK constructs for large language models on Amazon EKS, prefill and decode on different GPU nodes.

The constructs are imported when they are first named, so that what needs no CDK starts at once.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cluster import Cluster
    from .device_plugins import DevicePlugins
    from .efa_node_group import EfaNodeGroup, EfaSecurityGroup
    from .efs_model_cache import EfsModelCache
    from .errors import ConfigurationError
    from .kuberay import KubeRayOperator
    from .lustre_model_cache import ExistingLustre, LustreModelCache
    from .model_cache import ModelCache, NodeLocalModelCache
    from .network import ExistingSubnet, ImportedNetwork, Network
    from .ray_llm_service import RayLlmService
    from .serve_config import ServeConfig
    from .settings import Settings, load_settings
    from .system_node_group import SystemNodeGroup
    from .worker_pods import WorkerNodes

__version__ = version("ray-llm-eks")

_HOMES = {
    "Cluster": "cluster",
    "ConfigurationError": "errors",
    "DevicePlugins": "device_plugins",
    "EfaNodeGroup": "efa_node_group",
    "EfaSecurityGroup": "efa_node_group",
    "EfsModelCache": "efs_model_cache",
    "ExistingLustre": "lustre_model_cache",
    "ExistingSubnet": "network",
    "ImportedNetwork": "network",
    "KubeRayOperator": "kuberay",
    "LustreModelCache": "lustre_model_cache",
    "ModelCache": "model_cache",
    "Network": "network",
    "NodeLocalModelCache": "model_cache",
    "RayLlmService": "ray_llm_service",
    "ServeConfig": "serve_config",
    "Settings": "settings",
    "SystemNodeGroup": "system_node_group",
    "WorkerNodes": "worker_pods",
    "load_settings": "settings",
}

__all__ = [
    "Cluster",
    "ConfigurationError",
    "DevicePlugins",
    "EfaNodeGroup",
    "EfaSecurityGroup",
    "EfsModelCache",
    "ExistingLustre",
    "ExistingSubnet",
    "ImportedNetwork",
    "KubeRayOperator",
    "LustreModelCache",
    "ModelCache",
    "Network",
    "NodeLocalModelCache",
    "RayLlmService",
    "ServeConfig",
    "Settings",
    "SystemNodeGroup",
    "WorkerNodes",
    "__version__",
    "load_settings",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
