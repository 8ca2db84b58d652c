"""Ray for one rehearsal: how it is started, and the two HTTP doors of it that are used, dashboard API and metrics."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from .environment import ServePython
from .errors import RehearsalFailed
from .libfabric import Libfabric
from .swaps import RehearsalPlan

SERVE_SIDE = Path(__file__).with_name("serve_side")
OBJECT_STORE_BYTES = 200_000_000
REQUEST_LIMIT_S = 20.0

# What the user's shell may hold that would change what is rehearsed.
FOREIGN_PREFIXES = ("RAY_", "VLLM_", "UCX_", "NIXL_", "FI_", "HF_", "TRANSFORMERS_", "CUDA_", "PYTHON", "OMP_", "LD_")


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Ports inside the rehearsal's network."""

    gcs: int = 6379
    dashboard: int = 8265
    metrics: int = 8080

    @classmethod
    def free(cls) -> Ports:
        """Free ports of this machine, for a rehearsal that has to share its network."""
        sockets = [socket.socket() for _ in range(3)]
        try:
            for handle in sockets:
                handle.bind(("127.0.0.1", 0))
            gcs, dashboard, metrics = (int(handle.getsockname()[1]) for handle in sockets)
        finally:
            for handle in sockets:
                handle.close()
        return cls(gcs=gcs, dashboard=dashboard, metrics=metrics)


def environment(
    *,
    serve: ServePython,
    folder: Path,
    token: str,
    libfabric: Libfabric | None,
    inherited: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Environment of Ray and the engines.

    Args:
        serve: the Python environment.
        folder: the rehearsal's own folder, also for temporary files.
        token: what Ray asks of everybody who talks to it.
        libfabric: how to load libfabric, where it can be.
        inherited: the caller's environment; this process's if not given.
    """
    inherited = os.environ if inherited is None else inherited
    return {
        **{name: value for name, value in inherited.items() if not name.startswith(FOREIGN_PREFIXES)},
        "PATH": f"{serve.bin}{os.pathsep}{inherited.get('PATH', os.defpath)}",
        "PYTHONPATH": str(SERVE_SIDE),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(folder),
        "HOME": str(folder),
        # Whoever reaches Ray's job API runs code as this user: without the token nobody does.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_metrics_report_interval_ms": "1000",
        # One worker a logical CPU would be started in advance, and there are more of those than cores.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        # As in the deployment: the state of hybrid models can be transferred in this layout only.
        "VLLM_SSM_CONV_STATE_LAYOUT": "DS",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # Engines share the cores: bound to them, two engines would fight for the same ones.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": "lo",
        "NIXL_LOG_LEVEL": "INFO",
        **(libfabric.environment() if libfabric else {}),
    }


def start_command(serve: ServePython, *, ports: Ports, plan: RehearsalPlan, temp_dir: Path) -> list[str]:
    """The command that starts Ray's head; it returns when Ray is up and leaves its processes behind."""
    return [
        str(serve.executable),
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--node-ip-address=127.0.0.1",
        f"--port={ports.gcs}",
        f"--num-cpus={plan.cpus}",
        "--num-gpus=0",
        f"--resources={json.dumps(dict(plan.resources))}",
        "--include-dashboard=true",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={ports.dashboard}",
        f"--metrics-export-port={ports.metrics}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--temp-dir={temp_dir}",
        "--disable-usage-stats",
    ]


@dataclass(frozen=True, kw_only=True)
class Replica:
    """A running or starting copy of a deployment."""

    deployment: str
    replica_id: str
    state: str
    pid: int | None


@dataclass(frozen=True, kw_only=True)
class AppStatus:
    """What Serve says about the application."""

    status: str
    message: str
    deployments: Mapping[str, str]
    """Name (without the model) to status."""
    deployment_messages: Mapping[str, str]
    replicas: tuple[Replica, ...]


@dataclass(frozen=True, kw_only=True)
class RayApi:
    """Ray's HTTP doors, as they are reached from this process."""

    dashboard_port: int
    metrics_port: int
    token: str

    def deploy(self, config: Mapping[str, object]) -> None:
        """Hands over a Serve config, as ``serve deploy`` does.

        Raises:
            RehearsalFailed: Serve refuses it; with its reason.
        """
        status, body = self._request("PUT", "/api/serve/applications/", json.dumps(config), limit_s=120)
        if status != http.client.OK:
            raise RehearsalFailed(f"Serve refuses the config: {body.strip()[-500:]}")

    def status(self, app: str) -> AppStatus | None:
        """Status of an application; None while there is none or nobody answers."""
        try:
            code, body = self._request("GET", "/api/serve/applications/")
            if code != http.client.OK:
                return None
            found = cast(dict[str, Any], json.loads(body)["applications"].get(app))
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return None
        return _app_status(found) if found else None

    def is_up(self) -> bool:
        """Whether the dashboard answers."""
        try:
            return self._request("GET", "/api/version", limit_s=5)[0] == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    def metrics(self) -> str:
        """The metrics of all processes, as Prometheus text; empty if nobody answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=REQUEST_LIMIT_S)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            return ""
        finally:
            connection.close()

    def _request(
        self, method: str, path: str, body: str | None = None, limit_s: float = REQUEST_LIMIT_S
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.dashboard_port, timeout=limit_s)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace")
        finally:
            connection.close()


def _app_status(app: Mapping[str, Any]) -> AppStatus:
    deployments: Mapping[str, Mapping[str, Any]] = app.get("deployments") or {}
    names = {name: name.partition(":")[0] for name in deployments}
    return AppStatus(
        status=app["status"],
        message=app.get("message") or "",
        deployments={names[name]: d["status"] for name, d in deployments.items()},
        deployment_messages={names[name]: d["message"] for name, d in deployments.items() if d.get("message")},
        replicas=tuple(
            Replica(deployment=names[name], replica_id=r["replica_id"], state=r["state"], pid=r.get("pid"))
            for name, d in deployments.items()
            for r in d.get("replicas") or ()
        ),
    )
