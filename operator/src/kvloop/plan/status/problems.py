"""Why the resource is not ready: policies in order. The first problem that needs somebody comes before all others."""

from collections.abc import Callable
from typing import Final

from kvloop.api.labels import Reason
from kvloop.plan.status import capacity, objects, pods
from kvloop.plan.status.problem import Problem, names, worst_of
from kvloop.plan.status.view import View

Policy = Callable[[View], Problem | None]


def worst(view: View) -> Problem | None:
    """The problem to tell of, None if the resource is as it should be."""
    if view.deleting:
        return Problem(Reason.DELETING, "The resource is being deleted, and its children with it.")
    return worst_of(problem for policy in POLICIES if (problem := policy(view)) is not None)


def _paused(view: View) -> Problem | None:
    if not view.cr.spec.rollout.paused or not view.outdated:
        return None
    return Problem(Reason.PAUSED, f"{view.desired.rollout.message}. Set spec.rollout.paused: false to go on.")


def _rolling_out(view: View) -> Problem | None:
    return Problem(Reason.ROLLING_OUT, f"{view.desired.rollout.message}.") if view.outdated else None


def _pods_pending(view: View) -> Problem | None:
    """Pods that are not there, do not run yet, or are too many."""
    pending = [pod for pod in view.waiting_for if pod.is_engine]
    if pending:
        return Problem(Reason.PODS_PENDING, f"Waiting for {names(pending)} to start.")
    for role, fleet in view.fleets.items():
        if len(fleet.pods) != fleet.wanted:
            return Problem(Reason.PODS_PENDING, f"{len(fleet.pods)} of {fleet.wanted} {role} pods are there.")
    return None


def _router_not_ready(view: View) -> Problem | None:
    """A Deployment, be it the router's or that of its store, has pods that are not of its newest template and ready."""
    for ref, child in view.children.items():
        if ref.kind == "Deployment":
            wanted = child["spec"].get("replicas", 1)
            workload = view.observed.workload(ref.kind, ref.name)
            if workload is None or not workload.updated == workload.ready == workload.pods == wanted:
                ready = workload.ready if workload else 0
                counts = f"{ready} of {wanted} pods of Deployment {ref.name} are ready."
                message = counts if ready < wanted else f"Deployment {ref.name} replaces pods."
                return Problem(Reason.ROUTER_NOT_READY, message)
    return None


POLICIES: Final[tuple[Policy, ...]] = (
    objects.refused,
    objects.reference_missing,
    pods.image_pull_failed,
    pods.crashed,
    objects.pods_refused,
    pods.ended,
    capacity.unschedulable,
    _paused,
    _rolling_out,
    objects.not_made,
    pods.loading,
    pods.not_ready,
    _pods_pending,
    _router_not_ready,
)
