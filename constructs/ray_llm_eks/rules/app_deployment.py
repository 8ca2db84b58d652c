"""The deployment that the app's settings describe."""

from __future__ import annotations

from ray_llm_eks.instances import instance_facts
from ray_llm_eks.settings import GpuNodeSettings, Settings

from .deployment import Deployment, NodePool


def deployment_of(settings: Settings) -> Deployment:
    """What the rules need to know of the settings: prefill and others on ``gpu``, decode on ``gpu.decode`` if set."""
    pools = {"*": _pool("gpu", settings.gpu)}
    if settings.gpu.decode is not None:
        pools["decode"] = _pool("decode", settings.gpu.decode)
    return Deployment(
        pools=pools,
        image=settings.serving.image,
        ray_version=settings.serving.ray_version,
        upgrade_strategy=settings.serving.upgrade_strategy,
        has_hub_token=settings.serving.hugging_face_token_secret is not None,
        stages_from_s3=settings.serving.model_s3_uri is not None,
    )


def _pool(name: str, nodes: GpuNodeSettings) -> NodePool:
    return NodePool(
        name=name, facts=instance_facts(nodes.instance_type), min_nodes=nodes.min_nodes, max_nodes=nodes.max_nodes
    )
