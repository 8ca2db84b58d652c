"""User data of an AL2023 GPU node: a nodeadm NodeConfig and, for Lustre, one package."""

from __future__ import annotations

import json
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

BOUNDARY = "ray-llm-eks"


def node_user_data(*, local_disks: bool, lustre_client: bool) -> str:
    """MIME multi-part user data that EKS merges with its own for a managed node group.

    Args:
        local_disks: the type has instance store: join it in RAID 0 and put containerd, kubelet and pod logs on it,
            and pull images in parallel (nodeadm's FastImagePull, which is slower than the ordinary pull on a root
            volume under 600 MiB/s, hence only here).
        lustre_client: install lustre-client, which the AL2023 AMI leaves out by its maintainers' decision.
    """
    spec: dict[str, object] = {
        "kubelet": {"config": {"serializeImagePulls": False, "maxParallelImagePulls": 8}},
    }
    if local_disks:
        spec["instance"] = {"localStorage": {"strategy": "RAID0"}}
        spec["featureGates"] = {"FastImagePull": True}
    config = {"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": spec}

    message = MIMEMultipart(boundary=BOUNDARY)
    message.attach(_part(json.dumps(config, indent=1), "application", "node.eks.aws"))
    if lustre_client:
        message.attach(_part("#!/bin/sh\nset -e\ndnf install -y lustre-client\n", "text", "x-shellscript"))
    return message.as_string()


def _part(text: str, main: str, sub: str) -> MIMEText:
    part = MIMEText(text, _charset="us-ascii")
    part.replace_header("Content-Type", f'{main}/{sub}; charset="us-ascii"')
    return part
