"""What the cluster cannot give, read from the scheduler's words and, where nodes may be read, from what they have.

A node's line in the scheduler's message names the first check that it fails. Affinity between pods is checked after
resources, so that a node that only fails this one has room: https://kubernetes.io/docs/reference/scheduling/config/
"""

import re
from typing import Final

from kvloop.api.labels import Reason, Role
from kvloop.api.v1alpha1.placement import SameZone
from kvloop.api.v1alpha1.pod import EFA_RESOURCE
from kvloop.api.v1alpha1.transfer import EFAMechanism
from kvloop.plan.observed import Pod
from kvloop.plan.status.problem import Problem, brief
from kvloop.plan.status.view import View

_VOLUME: Final = ("persistentvolumeclaim", "PersistentVolumeClaim", "volume node affinity", "volume(s)")
_POD_AFFINITY: Final = "didn't match pod affinity rules"
_PREEMPTION: Final = re.compile(r"\. (?:[^.]*, )?preemption:")
"""Where the last sentence begins: what preemption, or taking back claims, could not do is a repetition."""
_DRA: Final = ("cannot allocate all claims", "resourceclaim")


def unschedulable(view: View) -> Problem | None:
    """A pod that no node can take."""
    pod = next((pod for pod in view.waiting_for if pod.unschedulable), None)
    if pod is None:
        return None
    of_engine = _no_efa(view, pod) or _zones_split(view, pod) if pod.is_engine else None
    return _no_volume(pod) or of_engine or _no_room(view, pod)


def _no_volume(pod: Pod) -> Problem | None:
    if not any(word in pod.unschedulable for word in _VOLUME):
        return None
    absent = "not found" in pod.unschedulable
    remedy = "Create the claim; the pod then starts." if absent else "Provide the volume in a zone of the nodes."
    return Problem(Reason.VOLUME_NOT_READY, f"{_said(pod)}. {remedy}", stalls=absent)


def _no_efa(view: View, pod: Pod) -> Problem | None:
    asked, best = view.desired.resolved.efa_devices_per_pod.get(pod.component, 0), _best(view, EFA_RESOURCE)
    if not asked:
        return None
    by_claim = view.cr.spec.transfer.efa.mechanism is EFAMechanism.DRA
    message = _no_claim(pod) if by_claim else _no_device(pod, asked, asked if best is None else best)
    return Problem(Reason.EFA_UNAVAILABLE, message) if message else None


def _no_claim(pod: Pod) -> str:
    if not any(word in pod.unschedulable for word in _DRA):
        return ""
    return (
        f"{_said(pod)}. Install the EFA DRA driver on nodes with free devices, or set"
        f" transfer.efa.mechanism: {EFAMechanism.DEVICE_PLUGIN}."
    )


def _no_device(pod: Pod, asked: int, best: int) -> str:
    waits = f"{pod.name} waits for a node with {asked} EFA devices"
    if best == 0:
        return (
            f"{waits}, but no node has {EFA_RESOURCE} to give. Use nodes of a type with EFA and an EFA interface, and"
            " install the EFA device plugin on them; or set transfer.fabric: UCX."
        )
    if best < asked:
        return (
            f"{waits}, but none has more than {best} to give. See with kubectl describe node why some are missing, or"
            f" set transfer.efa.devicesPerPod: {best}."
        )
    if f"Insufficient {EFA_RESOURCE}" not in pod.unschedulable:
        return ""
    return f"{waits} free: {brief(pod.unschedulable)}. Add such nodes, or lower transfer.efa.devicesPerPod."


def _zones_split(view: View, pod: Pod) -> Problem | None:
    if _POD_AFFINITY not in pod.unschedulable or view.cr.spec.placement.same_zone is not SameZone.REQUIRED:
        return None
    return Problem(
        Reason.ZONES_SPLIT,
        f"{_said(pod)}. There are free nodes, but not in the zone of the other engines, and EFA cannot leave a zone."
        " Set placement.zone to one that has room for all engines; with fabric UCX, placement.sameZone: Preferred.",
    )


def _no_room(view: View, pod: Pod) -> Problem:
    known = _most_accelerators(view, Role(pod.component)) if pod.is_engine else ""
    return Problem(
        Reason.INSUFFICIENT_CAPACITY,
        f"{_said(pod)}.{known} Add nodes that fit, correct spec.placement, or ask for less.",
    )


def _most_accelerators(view: View, role: Role) -> str:
    resource = view.fleets[role].spec.gpu_resource
    best, asked = _best(view, resource), view.desired.resolved.gpus_per_pod.get(role, 0)
    return (
        f" It asks for {asked} {resource}; no node has more than {best}." if best is not None and best < asked else ""
    )


def _best(view: View, resource: str) -> int | None:
    """Most of a resource that a single node has to give, used or not; None if that is unknown."""
    placement = view.cr.spec.placement
    return max(
        (
            kind.allocatable.get(resource, 0)
            for kind in view.observed.capacity or ()
            if placement.instance_type in {None, kind.instance_type} and placement.zone in {None, kind.zone}
        ),
        default=None,
    )


def _said(pod: Pod) -> str:
    return f"{pod.name} cannot be scheduled: {brief(_PREEMPTION.split(pod.unschedulable)[0])}"
