"""The model cache volume: weights and compile caches that outlive a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from .addons import eks_addon
from .principals import pod_identity_principal

MOUNT_PATH = "/mnt/model-cache"
VOLUME = "model-cache"

NODE_LOCAL_PATH = "/mnt/k8s-disks/0/model-cache"
"""Under the mount point of nodeadm's RAID 0 of the instance store."""


class ModelCache(Construct):
    """A volume for model weights and compile caches, the same to pods whatever it is made of.

    Use one of its kinds: :class:`LustreModelCache`, :class:`EfsModelCache`, :class:`NodeLocalModelCache`.

    Attributes:
        pod_volume: the entry for a pod's ``volumes``.
        claim_spec: the spec of the PersistentVolumeClaim that pods need in their namespace, or None.
        needs_lustre_client: whether nodes must have the Lustre client.
    """

    mount_path = MOUNT_PATH
    """Where pods see it."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        pod_volume: dict[str, Any],
        claim_spec: dict[str, Any] | None = None,
        needs_lustre_client: bool = False,
    ) -> None:
        super().__init__(scope, id)
        self.pod_volume = {"name": VOLUME, **pod_volume}
        self.claim_spec = claim_spec
        self.needs_lustre_client = needs_lustre_client

    @property
    def volume_mount(self) -> dict[str, Any]:
        """The entry for a container's ``volumeMounts``."""
        return {"name": VOLUME, "mountPath": self.mount_path}

    def environment(self, role: str) -> dict[str, str]:
        """Environment variables that make Hugging Face, vLLM and its compilers keep their files here.

        Compile caches are apart by role, so that two roles starting together do not write the same files.
        """
        compiled = f"{self.mount_path}/compile/{role}"
        return {
            "HF_HOME": f"{self.mount_path}/huggingface",
            "VLLM_CACHE_ROOT": f"{compiled}/vllm",
            "TORCHINDUCTOR_CACHE_DIR": f"{compiled}/inductor",
            "TRITON_CACHE_DIR": f"{compiled}/triton",
            "FLASHINFER_WORKSPACE_BASE": f"{compiled}/flashinfer",
            "CUDA_CACHE_PATH": f"{compiled}/cuda",
        }

    def claim(self, namespace: str) -> dict[str, Any] | None:
        """The PersistentVolumeClaim for the pods of a namespace, or None where they need none."""
        if self.claim_spec is None:
            return None
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": VOLUME, "namespace": namespace},
            "spec": self.claim_spec,
        }


class NodeLocalModelCache(ModelCache):
    """The node's own instance store: nothing to pay for, filled once on every node and gone with it.

    The nodes' type must have instance store, which :class:`EfaNodeGroup` joins in RAID 0.
    """

    def __init__(self, scope: Construct, id: str) -> None:
        """Makes nothing in AWS or Kubernetes: pods mount a directory of their node."""
        super().__init__(scope, id, pod_volume={"hostPath": {"path": NODE_LOCAL_PATH, "type": "DirectoryOrCreate"}})


def static_volume_claim(volume_name: str, capacity_gib: int) -> dict[str, Any]:
    """The spec of a claim that binds to one PersistentVolume by name."""
    return {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": volume_name,
        "resources": {"requests": {"storage": f"{capacity_gib}Gi"}},
    }


def static_volume(
    scope: Construct,
    *,
    cluster: eks.ICluster,
    volume_name: str,
    capacity_gib: int,
    mount_options: Sequence[str],
    csi: dict[str, Any],
) -> None:
    """Gives a file system of CloudFormation's to Kubernetes as a PersistentVolume that no provisioner made."""
    eks.KubernetesManifest(
        scope,
        "PersistentVolume",
        cluster=cluster,
        manifest=[
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume_name},
                "spec": {
                    "capacity": {"storage": f"{capacity_gib}Gi"},
                    "accessModes": ["ReadWriteMany"],
                    "storageClassName": "",
                    # CloudFormation owns the file system; Kubernetes must never delete what is on it.
                    "persistentVolumeReclaimPolicy": "Retain",
                    "mountOptions": list(mount_options),
                    "csi": csi,
                },
            }
        ],
    )


def csi_driver(
    scope: Construct,
    *,
    cluster: eks.ICluster,
    addon_name: str,
    version: str | None,
    service_account: str,
    permissions: iam.PolicyStatement,
) -> None:
    """Installs a storage driver whose controller may do no more than look up its file system."""
    role = iam.Role(
        scope,
        "CsiDriverRole",
        assumed_by=pod_identity_principal(),
        description=f"Controller of {addon_name}; volumes are static, so it only looks them up",
    )
    role.add_to_policy(permissions)
    eks_addon(
        scope,
        "CsiDriver",
        cluster=cluster,
        addon_name=addon_name,
        version=version,
        roles={service_account: role},
    ).node.add_dependency(role)
