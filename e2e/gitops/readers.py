"""How others read our status: each decides as its own code does."""

from typing import Any, Final

from e2e.gitops.argocd import health

Body = dict[str, Any]

FLUX: Final = {
    "new": "InProgress",
    "pending": "InProgress",
    "ready": "Current",
    "edited": "InProgress",
    "paused": "InProgress",
    "stalled": "Failed",
    "scaled-to-zero": "Current",
    "deleting": "Terminating",
}
"""What kstatus must say of each state that is recorded in manifests/argocd."""


def kstatus(body: Body) -> str:
    """Flux and kpt: pkg/kstatus/status/generic.go of cli-utils."""
    meta, found = body["metadata"], body.get("status", {})
    if "deletionTimestamp" in meta:
        return "Terminating"
    if "observedGeneration" in found and found["observedGeneration"] != meta["generation"]:
        return "InProgress"
    conditions = found.get("conditions", [])
    for condition in conditions:
        if condition["type"] == "Reconciling" and condition["status"] == "True":
            return "InProgress"
        if condition["type"] == "Stalled" and condition["status"] == "True":
            return "Failed"
    for condition in conditions:
        if condition["type"] == "Ready":
            return "Current" if condition["status"] == "True" else "InProgress"
    return "Current"


def kubectl_wait(body: Body, kind: str = "Ready", wanted: str = "True") -> bool:
    """`kubectl wait --for=condition=`: pkg/cmd/wait of kubectl."""
    found = body.get("status", {})
    for condition in found.get("conditions", []):
        if condition["type"] == kind:
            generation = condition.get("observedGeneration", found.get("observedGeneration"))
            if generation is not None and generation < body["metadata"]["generation"]:
                return False
            return bool(condition["status"] == wanted)
    return False


def argo(body: Body) -> str:
    """Argo CD, with the health check in manifests/argocd."""
    return health(body).status
