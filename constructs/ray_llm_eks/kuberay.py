"""The KubeRay operator."""

from __future__ import annotations

from typing import Any

from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from .charts import KUBERAY_OPERATOR, install
from .labels import NODE_ROLE

KUBERAY_VALUES: dict[str, Any] = {
    # The chart's placement is empty: without this the operator may land on any untainted node.
    "nodeSelector": {NODE_ROLE: "system"},
}


class KubeRayOperator(Construct):
    """The KubeRay operator and its custom resource definitions, from the pinned Helm chart, on the system nodes.

    Attributes:
        release: the Helm release; whatever makes Ray resources must depend on it, so that the operator outlives them.
    """

    def __init__(self, scope: Construct, id: str, *, cluster: eks.ICluster) -> None:
        """Installs the operator in the namespace kuberay-system.

        Args:
            scope: the construct that owns it.
            id: its id within the scope.
            cluster: where it is installed; it needs nodes labelled ``ray-llm-eks/node-role: system``.
        """
        super().__init__(scope, id)
        self.release = install(
            self,
            "Release",
            KUBERAY_OPERATOR,
            cluster=cluster,
            namespace="kuberay-system",
            create_namespace=True,
            values=KUBERAY_VALUES,
            wait=True,
        )
