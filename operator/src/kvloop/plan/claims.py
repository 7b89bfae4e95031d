"""GPUs and EFA devices by dynamic resource allocation: one ResourceClaimTemplate a role.

A claim replaces vpc.amazonaws.com/efa and nvidia.com/gpu in the container: with both mechanisms on one node the same
device is given out twice (https://docs.aws.amazon.com/eks/latest/userguide/device-management-efa.html).
"""

from math import gcd
from typing import Any

from kvloop.api.labels import Role
from kvloop.api.v1alpha1.transfer import EFAMechanism, Fabric
from kvloop.plan import names
from kvloop.plan.hashing import digest
from kvloop.plan.observed import Child, ChildRef, Observed
from kvloop.plan.scope import Scope

KIND = "ResourceClaimTemplate"
CLAIM = "devices"
EFA_CLASS = "efa.networking.k8s.aws"
GPU_CLASSES = {"nvidia.com/gpu": "gpu.nvidia.com"}
"""DeviceClass of GPUs by their resource name; others stay with their device plugin."""
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"


def uses_claim(scope: Scope) -> bool:
    """Whether devices are claimed."""
    transfer = scope.spec.transfer
    return transfer.fabric is Fabric.EFA and transfer.efa.mechanism is EFAMechanism.DRA


def claims_gpus(scope: Scope, role: Role) -> bool:
    """Whether the claim has the GPUs too."""
    return uses_claim(scope) and scope.role(role).gpu_resource in GPU_CLASSES


def template_name(scope: Scope, role: Role) -> str:
    """Name of the role's ResourceClaimTemplate."""
    return names.claim_template(scope.name, role, digest(devices(scope, role)))


def build(scope: Scope, role: Role) -> dict[str, Any]:
    """The role's ResourceClaimTemplate."""
    return scope.child(
        "resource_claim_template",
        name=template_name(scope, role),
        component=role,
        devices=devices(scope, role),
    )


def in_use(scope: Scope, observed: Observed | None) -> frozenset[ChildRef]:
    """ResourceClaimTemplates that are there and that pods have, or may be made with.

    Below its partition, a StatefulSet makes pods of its last template anew for as long as its rollout lasts.
    """
    if observed is None:
        return frozenset()
    there = {ref for ref in observed.children if ref.kind == KIND}
    if any(_rolling_out(observed.children.get(ChildRef("StatefulSet", names.role(scope.name, role)))) for role in Role):
        return frozenset(there)
    used = {name for pod in observed.pods for name in pod.claim_templates}
    return frozenset(ref for ref in there if ref.name in used)


def _rolling_out(child: Child | None) -> bool:
    """Whether a StatefulSet may still make pods of an older template."""
    if child is None or child.workload is None:
        return False
    unseen = child.observed_generation < child.generation
    return unseen or child.workload.current_revision != child.workload.update_revision


def devices(scope: Scope, role: Role) -> dict[str, Any]:
    """Requests, and constraints that keep each GPU and its EFA devices under one PCIe root."""
    gpus = scope.resolved.gpus[role] if claims_gpus(scope, role) else 0
    efa = scope.resolved.efa[role]
    gpu_class = GPU_CLASSES.get(scope.role(role).gpu_resource, "")
    groups = _groups(scope, gpus, efa)
    if not groups:
        requests = [_request("gpu", gpu_class, gpus)] if gpus else []
        return {"requests": [*requests, _request("efa", EFA_CLASS, efa)]}
    requests, constraints = [], []
    for group in range(groups):
        gpu, nic = f"gpu-{group}", f"efa-{group}"
        requests += [_request(gpu, gpu_class, gpus // groups), _request(nic, EFA_CLASS, efa // groups)]
        constraints.append({"requests": [gpu, nic], "matchAttribute": PCIE_ROOT})
    return {"requests": requests, "constraints": constraints}


def _groups(scope: Scope, gpus: int, efa: int) -> int:
    """Groups of GPUs that share a PCIe root with their EFA devices; 0 for no alignment.

    A pod that has the whole node has all its devices anyway, and with an unknown type nothing is known of its roots.
    """
    node = scope.resolved.instance_type
    if not gpus or not node or not node.efa or gpus == node.gpus:
        return 0
    groups = gcd(gpus, efa)
    gpus_of_a_root = max(1, node.gpus // node.efa)
    return groups if gpus // groups <= gpus_of_a_root else 0


def _request(name: str, device_class: str, count: int) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": device_class, "count": count}}
