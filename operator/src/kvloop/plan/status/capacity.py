"""What the cluster cannot give, read from the scheduler's words and, where nodes may be read, from what they have.

Nodes come and go all the time in a large cluster. So no message counts more of them than matter to the resource: the
status changes when there is something else to do, not with each node.

A node's line in the scheduler's message names the first check that it fails. Affinity between pods is checked after
resources, so that a node that only fails this one has room: https://kubernetes.io/docs/reference/scheduling/config/
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from kvloop.api.labels import ENGINE_CONTAINER, Reason, Role
from kvloop.api.v1alpha1.placement import SameZone
from kvloop.api.v1alpha1.pod import EFA_RESOURCE
from kvloop.api.v1alpha1.transfer import EFAMechanism
from kvloop.plan import names
from kvloop.plan.observed import ChildRef, Pod
from kvloop.plan.status.problem import Problem, brief
from kvloop.plan.status.view import View

_VOLUME: Final = ("persistentvolumeclaim", "PersistentVolumeClaim", "volume node affinity", "volume(s)")
_POD_AFFINITY: Final = "didn't match pod affinity rules"
_DRA: Final = ("cannot allocate all claims", "resourceclaim")


def unschedulable(view: View) -> Problem | None:
    """A pod that no node can take."""
    pod = next((pod for pod in view.waiting_for if pod.unschedulable), None)
    if pod is None:
        return None
    of_engine = _zones_split(view, pod) or _no_efa(view, pod) if pod.is_engine else None
    return _no_volume(pod) or of_engine or _no_room(view, pod)


def _no_volume(pod: Pod) -> Problem | None:
    if not any(word in pod.unschedulable for word in _VOLUME):
        return None
    absent = "not found" in pod.unschedulable
    remedy = "Create the claim; the pod then starts." if absent else "Provide the volume in a zone of the nodes."
    return Problem(Reason.VOLUME_NOT_READY, f"{_said(pod)}. {remedy}", stalls=absent)


def _no_efa(view: View, pod: Pod) -> Problem | None:
    efa = view.cr.spec.transfer.efa
    message = _no_claim(pod) if efa.mechanism is EFAMechanism.DRA else _no_device(view, pod)
    return Problem(Reason.EFA_UNAVAILABLE, message) if message else None


def _no_claim(pod: Pod) -> str:
    if not any(word in pod.unschedulable for word in _DRA):
        return ""
    return (
        f"{_said(pod)}. Install the EFA DRA driver on nodes with free devices, or set"
        f" transfer.efa.mechanism: {EFAMechanism.DEVICE_PLUGIN}."
    )


def _no_device(view: View, pod: Pod) -> str:
    asked, offered = _devices(view, pod).get(EFA_RESOURCE, 0), _offered(view, EFA_RESOURCE)
    waits = f"{pod.name} waits for a node with {asked} EFA devices"
    best = max(offered, default=asked)
    if not best and asked:
        return (
            f"{waits}, but no node has {EFA_RESOURCE} to give. Use nodes of a type with EFA and an EFA interface, and"
            " install the EFA device plugin on them; or set transfer.fabric: UCX."
        )
    if best < asked:
        return (
            f"{waits}, but none has more than {best} to give. See with kubectl describe node why some are missing, or"
            f" set transfer.efa.devicesPerPod: {best}."
        )
    if not asked or f"Insufficient {EFA_RESOURCE}" not in pod.unschedulable:
        return ""
    short = f" Some nodes have fewer than {asked} to give, used or not." if min(offered, default=asked) < asked else ""
    return f"{waits} free: {brief(pod.unschedulable)}.{short} Add such nodes, or lower transfer.efa.devicesPerPod."


def _zones_split(view: View, pod: Pod) -> Problem | None:
    if _POD_AFFINITY not in pod.unschedulable or view.cr.spec.placement.same_zone is not SameZone.REQUIRED:
        return None
    return Problem(
        Reason.ZONES_SPLIT,
        f"{_said(pod)}. There are free nodes, but not in the zone of the other engines, and EFA cannot leave a zone."
        f"{_large_enough(view, pod)} Set placement.zone to one that has room for all engines; with fabric UCX,"
        " placement.sameZone: Preferred.",
    )


def _large_enough(view: View, pod: Pod) -> str:
    """How many nodes there are in each zone on which the pod would fit if nothing else ran there.

    What is more than all engines need is not counted: it is of no interest, and changes all the time where many are.
    """
    devices, zones = _devices(view, pod), Counter[str]()
    needed = sum(fleet.wanted for fleet in view.fleets.values())
    for kind in view.observed.capacity or ():
        if all(kind.allocatable.get(name, 0) >= count for name, count in devices.items()):
            zones[kind.zone] += kind.nodes
    told = ((zone, f"{count}" if count < needed else f"{needed} or more") for zone, count in sorted(zones.items()))
    counts = ", ".join(f"{count} in {zone}" for zone, count in told if zone)
    return f" Nodes that are large enough, used or not: {counts}." if counts else ""


def _no_room(view: View, pod: Pod) -> Problem:
    known = _lacking(view, pod) if pod.is_engine else ""
    return Problem(
        Reason.INSUFFICIENT_CAPACITY,
        f"{_said(pod)}.{known} Add nodes that fit, correct spec.placement, or ask for less.",
    )


def _lacking(view: View, pod: Pod) -> str:
    """What no node has, used or not."""
    if view.observed.capacity == ():
        labels = ", ".join(f"{name}={value}" for name, value in view.desired.node_selector.items())
        return f" No ready node has the labels {labels}." if labels else " There is no ready node."
    for resource, asked in _devices(view, pod).items():
        best = max(_offered(view, resource), default=asked)
        if best < asked:
            return f" It asks for {asked} {resource}; no node has more than {best}."
    return ""


def _devices(view: View, pod: Pod) -> Mapping[str, int]:
    """Devices of device plugins that an engine asks for, by resource."""
    workload = view.children[ChildRef("StatefulSet", names.role(view.name, Role(pod.component)))]
    containers = workload["spec"]["template"]["spec"]["containers"]
    (engine,) = (each for each in containers if each["name"] == ENGINE_CONTAINER)
    limits = engine.get("resources", {}).get("limits", {})
    return {name: int(count) for name, count in limits.items() if "/" in name and str(count).isdecimal()}


def _offered(view: View, resource: str) -> set[int]:
    """How much of a resource nodes have to give, used or not; empty if that is unknown."""
    return {kind.allocatable.get(resource, 0) for kind in view.observed.capacity or ()}


def _said(pod: Pod) -> str:
    return f"{pod.name} cannot be scheduled: {brief(pod.unschedulable)}"
