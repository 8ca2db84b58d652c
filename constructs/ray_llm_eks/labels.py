"""Names that node groups, charts and pods must agree on."""

from __future__ import annotations

NODE_ROLE = "ray-llm-eks/node-role"
"""Node label: ``system``, ``gpu`` (any role), ``prefill`` or ``decode``."""

INSTANCE_TYPE = "ray-llm-eks/instance-type"
"""Node label with the instance type (the well-known label cannot be set through a managed node group)."""

GPU_PRESENT = "nvidia.com/gpu.present"
"""Node label without which the NVIDIA device plugin's DaemonSet has no node to run on."""

GPU_TAINT = "nvidia.com/gpu"
"""Taint on GPU nodes, value "true", effect NoSchedule."""

GPU_RESOURCE = "nvidia.com/gpu"
EFA_RESOURCE = "vpc.amazonaws.com/efa"

POD_ROLE = "ray-llm-eks/role"
"""Pod label: the Serve role (prefill, decode, llm) or ``head``."""
