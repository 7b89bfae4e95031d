"""Requests and limits of an engine's container."""

from typing import Any

from kvloop.api.labels import Role
from kvloop.api.v1alpha1.pod import EFA_RESOURCE, HUGEPAGES_RESOURCE
from kvloop.plan import claims
from kvloop.plan.merge import merge
from kvloop.plan.scope import Scope


def of(scope: Scope, role: Role) -> dict[str, Any]:
    """The user's requests and limits, the devices, and requests for CPU and memory where the user says nothing.

    Devices and huge pages are in limits too, since Kubernetes wants both to be equal.
    """
    user = scope.role(role).resources
    devices = _devices(scope, role)
    generated: dict[str, Any] = {"requests": {**_default_requests(scope, role, user), **devices}, "limits": devices}
    if claims.uses_claim(scope):
        generated["claims"] = [{"name": claims.CLAIM}]
    return merge(user, {key: value for key, value in generated.items() if value})


def shared_memory(scope: Scope, role: Role) -> str:
    """Size limit of /dev/shm, which counts as the pod's memory as far as it is used.

    Published manifests use 20Gi up to four GPUs and 64Gi or more for eight.
    """
    gpus = scope.resolved.gpus[role]
    if not gpus:
        return "2Gi"
    return "20Gi" if gpus < 8 else "64Gi"


def _devices(scope: Scope, role: Role) -> dict[str, Any]:
    devices: dict[str, Any] = {}
    if scope.resolved.gpus[role] and not claims.claims_gpus(scope, role):
        devices[scope.role(role).gpu_resource] = scope.resolved.gpus[role]
    if scope.resolved.efa[role] and not claims.uses_claim(scope):
        devices[EFA_RESOURCE] = scope.resolved.efa[role]
    if scope.resolved.efa[role] and scope.spec.transfer.efa.hugepages2_mi:
        devices[HUGEPAGES_RESOURCE] = scope.spec.transfer.efa.hugepages2_mi
    return devices


def _default_requests(scope: Scope, role: Role, user: dict[str, Any]) -> dict[str, Any]:
    """Half of what falls to the pod's GPUs of its node's CPUs and memory: a start, which leaves room for daemons.

    Nothing where the instance type is unknown: a wrong guess would keep the pod from every node. Only huge pages need
    some request beside them.
    """
    node, gpus = scope.resolved.instance_type, scope.resolved.gpus[role]
    if node and gpus:
        defaults = {
            "cpu": max(1, node.vcpus * gpus // node.gpus // 2),
            "memory": f"{node.memory_mi * gpus // node.gpus // 2}Mi",
        }
    elif scope.resolved.efa[role] and scope.spec.transfer.efa.hugepages2_mi:
        defaults = {"cpu": 1}
    else:
        return {}
    stated = {name for part in ("requests", "limits") if isinstance(user.get(part), dict) for name in user[part]}
    return {name: value for name, value in defaults.items() if name not in stated}
