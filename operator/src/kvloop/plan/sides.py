"""From what is observed to the two rows of engines that the rollout's arithmetic is about."""

from collections.abc import Mapping

from kvloop.api.labels import ENGINE_CONTAINER, Role
from kvloop.plan import names
from kvloop.plan.container_states import CRASH_LOOP, CRASHES, NOT_PULLED, NOT_STARTED, REGISTRY_UNAVAILABLE
from kvloop.plan.observed import Child, ChildRef, Container, Observed, Pod, Workload
from kvloop.plan.rollout import Engine, Side, Sides
from kvloop.plan.scope import Scope

_HELPLESS = (NOT_PULLED | NOT_STARTED | {CRASH_LOOP}) - {REGISTRY_UNAVAILABLE}
"""Reasons of a waiting container that only an edit, or a missing object's arrival, takes away."""


def sides(scope: Scope, revision: str, templates: Mapping[Role, str], observed: Observed | None) -> Sides:
    """Both roles' engines; `templates` are the hashes of the newest pod templates."""
    return {role: _side(scope, role, revision, templates[role], observed) for role in Role}


def _side(scope: Scope, role: Role, revision: str, template: str, observed: Observed | None) -> Side:
    spec = scope.role(role)
    child = observed.children.get(ChildRef("StatefulSet", names.role(scope.name, role))) if observed else None
    workload = child.workload if child else None
    pods = observed.pods_of(role) if observed else ()
    replicas = _replicas(spec.replicas, workload)
    return Side(
        replicas=replicas,
        max_unavailable=spec.max_unavailable,
        revision=revision,
        engines={pod.ordinal: _engine(pod, template, workload) for pod in pods},
        opened=workload.partition if workload and _knows(child, template) else replicas,
    )


def _knows(child: Child | None, template: str) -> bool:
    """Whether a StatefulSet has the newest template, and its controller has seen it."""
    if child is None or child.workload is None:
        return False
    return child.workload.template == template and child.observed_generation >= child.generation


def _replicas(wanted: int | None, workload: Workload | None) -> int:
    """As the spec says, or as somebody else has set it, or what Kubernetes defaults to."""
    if wanted is not None:
        return wanted
    return workload.replicas if workload else 1


def _engine(pod: Pod, template: str, workload: Workload | None) -> Engine:
    return Engine(
        revision=pod.revision,
        updated=pod.template == template,
        ready=pod.ready,
        base=workload is not None and pod.controller_revision == workload.current_revision,
        started=pod.ready or any(each.started for each in pod.containers if each.name == ENGINE_CONTAINER),
        failing=is_failing(pod),
    )


def is_failing(pod: Pod) -> bool:
    """Whether a pod is not ready, and time alone will not heal it."""
    if pod.ready:
        return False
    return pod.phase == "Failed" or any(each.waiting in _HELPLESS or _crashing(each) for each in pod.containers)


def _crashing(container: Container) -> bool:
    """A container that runs again after so many crashes still counts as failing until it has started up."""
    return container.restarts >= CRASHES and not container.started and container.exit_code not in (None, 0)
