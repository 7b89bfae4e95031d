"""Simulated pods: how they are asked for, and what tests let them say in the kubelet's place."""

import json
from typing import Any

from e2e.site import Site

UNREADY = {"metadata": {"annotations": {"kvloop.io/fake-ready": "false"}}}
"""Pod template whose simulated pods run and do not become ready by themselves."""


def engine(pod_template: dict[str, Any] | None = None, replicas: int = 2) -> dict[str, Any]:
    return {"replicas": replicas, "gpus": 0, **({"podTemplate": pod_template} if pod_template else {})}


def pods(site: Site, component: str) -> list[dict[str, Any]]:
    return site.items("pods", f"--selector=app.kubernetes.io/component={component}")


def set_waiting(site: Site, pod: str, reason: str, message: str) -> None:
    """What the kubelet would say of a container that does not start."""
    status = {"containerStatuses": [
        {"name": "vllm", "image": "x", "imageID": "", "ready": False, "restartCount": 0,
         "state": {"waiting": {"reason": reason, "message": message}}}
    ]}  # fmt: skip
    site.edit("pod", pod, {"status": status}, "--subresource=status")


def set_ready(site: Site, pod: str) -> None:
    """What the kubelet would say of a pod whose container runs and answers."""
    started = "2030-01-01T00:00:00Z"
    status = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"}],
        "containerStatuses": [
            {"name": "vllm", "image": "x", "imageID": "", "ready": True, "started": True, "restartCount": 0,
             "state": {"running": {"startedAt": started}}}
        ],
    }  # fmt: skip
    site.kubectl(
        "patch", "pod", pod, "--subresource=status", "--type=strategic", f"--patch={json.dumps({'status': status})}"
    )
