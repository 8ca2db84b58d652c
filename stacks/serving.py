"""What changes with every model: the Ray Serve application."""

from __future__ import annotations

from aws_cdk import CfnOutput, Stack
from constructs import Construct

from ray_llm_eks.model_facts import ModelFacts
from ray_llm_eks.ray_llm_service import RayLlmService
from ray_llm_eks.serve_config import ServeConfig
from ray_llm_eks.settings import Settings

from .accelerators import AcceleratorsStack
from .platform import PlatformStack


class ServingStack(Stack):
    """Namespace, service account, model download, RayService."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        settings: Settings,
        serve_config: ServeConfig,
        model: ModelFacts | None,
        platform: PlatformStack,
        accelerators: AcceleratorsStack,
    ) -> None:
        super().__init__(
            scope,
            id,
            description="ray-llm-eks: the Ray Serve application",
            termination_protection=settings.termination_protection,
        )
        # Pods need the nodes, device plugins and cache; and all of this must be gone before they go.
        self.add_stack_dependency(accelerators)
        serving = settings.serving
        self.service = RayLlmService(
            self,
            "Service",
            cluster=platform.cluster.cluster,
            serve_config=serve_config,
            nodes=accelerators.worker_nodes,
            cache=accelerators.cache,
            image=serving.image,
            ray_version=serving.ray_version,
            namespace=serving.namespace,
            service_name=serving.service_name,
            efa_devices=settings.gpu.efa_devices,
            upgrade_strategy=serving.upgrade_strategy,
            hugging_face_token_secret=serving.hugging_face_token_secret,
            model_s3_uri=serving.model_s3_uri,
            silenced_rules=settings.rules.silence,
            model=model,
        )
        CfnOutput(
            self,
            "PortForward",
            value=f"kubectl -n {serving.namespace} port-forward service/{serving.service_name}-serve-svc 8000:8000",
            description="Brings the OpenAI-compatible endpoint to http://localhost:8000/v1",
        )
