"""The conditions of `status`, from the worst problem and from what serves."""

from kvloop.api.labels import Condition, Reason, Role
from kvloop.api.v1alpha1.status import ConditionStatus, RolloutStatus, StatusCondition
from kvloop.plan import reuse
from kvloop.plan.status.problem import Problem
from kvloop.plan.status.problems import worst
from kvloop.plan.status.transfer import verdict
from kvloop.plan.status.view import View
from kvloop.plan.times import from_rfc3339, to_rfc3339

TRUE, FALSE = ConditionStatus.TRUE, ConditionStatus.FALSE


def conditions(view: View, rollout: RolloutStatus) -> list[StatusCondition]:
    """All conditions, always, in the same order."""
    problem = worst(view)
    stall = _stall(view, problem, rollout)
    return [
        _condition(view, Condition.READY, *_ready(view, problem)),
        _condition(view, Condition.AVAILABLE, *_available(view)),
        _condition(view, Condition.RECONCILING, *_reconciling(problem, stall)),
        _condition(view, Condition.STALLED, *_stalled(problem, stall)),
        _kv_transfer_verified(view),
    ]


State = tuple[ConditionStatus, Reason, str]


def _ready(view: View, problem: Problem | None) -> State:
    if problem:
        return FALSE, problem.reason, problem.message
    empty = _empty(view)
    if empty:
        return TRUE, Reason.SCALED_TO_ZERO, f"As wanted, there is no {' and no '.join(empty)}."
    counts = " and ".join(f"{len(fleet.ready)} {role}" for role, fleet in view.fleets.items())
    return TRUE, Reason.READY, f"{counts} engines of revision {view.desired.revision} are ready, and so is the router."


def _available(view: View) -> State:
    if any(pod.ready for pod in view.routers):
        revisions = [{pod.revision for pod in fleet.ready} for fleet in view.fleets.values()]
        if set.intersection(*revisions):
            return TRUE, Reason.AVAILABLE, "A router and a prefill and a decode engine of one revision serve."
        missing = "no prefill and decode engine of one revision are ready"
    else:
        missing = "no router is ready"
    if empty := _empty(view):
        # Without prefill, decode may serve alone: see router.whenNoPrefill.
        return (
            FALSE,
            Reason.SCALED_TO_ZERO,
            f"Nothing is served over KV transfer: there is no {' and no '.join(empty)}.",
        )
    return FALSE, Reason.NO_READY_PAIR, f"Nothing is served over KV transfer: {missing}."


def _empty(view: View) -> list[str]:
    """What is wanted in no copy at all."""
    roles = [str(role) for role in Role if view.fleets[role].wanted == 0]
    return [*roles, *([] if view.cr.spec.router.replicas else ["router"])]


def _stall(view: View, problem: Problem | None, rollout: RolloutStatus) -> Problem | None:
    """What somebody must act on: the problem itself, or that it has lasted too long."""
    if problem is None or problem.stalls:
        return problem
    limit = view.cr.spec.rollout.progress_deadline_seconds
    waits_for_us = problem.reason not in {Reason.DELETING, Reason.PAUSED}
    since = from_rfc3339(rollout.last_progress_at) if rollout.last_progress_at else view.observed.now
    if not waits_for_us or view.observed.now < max(since, _unready_since(view)) + limit:
        return None
    return Problem(Reason.PROGRESS_DEADLINE_EXCEEDED, f"No progress for {limit} s: {problem.message}", stalls=True)


def _unready_since(view: View) -> float:
    """While a resource is ready there is no progress to be made, however long ago the last was."""
    found = (each for each in view.previous.conditions if each.type == Condition.READY and each.status == FALSE)
    unready = next(found, None)
    return from_rfc3339(unready.last_transition_time) if unready else view.observed.now


def _reconciling(problem: Problem | None, stall: Problem | None) -> State:
    if stall:
        return FALSE, stall.reason, "Waiting for somebody to act."
    if problem is None:
        return FALSE, Reason.RECONCILED, "All is as wanted."
    return FALSE if problem.reason is Reason.PAUSED else TRUE, problem.reason, problem.message


def _stalled(problem: Problem | None, stall: Problem | None) -> State:
    if stall:
        return TRUE, stall.reason, stall.message
    return FALSE, problem.reason if problem else Reason.RECONCILED, "Nobody has to act."


def _kv_transfer_verified(view: View) -> StatusCondition:
    """Judged as seldom as `status.reuse` is written, but for what the spec alone decides."""
    measured = view.observed.measured
    found = verdict(view.cr.spec, view.desired.resolved, measured)
    before = next((each for each in view.previous.conditions if each.type == Condition.KV_TRANSFER_VERIFIED), None)
    switched = before is not None and Reason.DISABLED in {before.reason, found.reason}
    unheard = measured is None and any(pod.ready for pod in view.routers)
    # An operator that has just started has seen too little to take back what was known.
    unheard |= measured is not None and measured.young and found.reason is Reason.NO_TRAFFIC
    due = reuse.is_due(view.previous, view.observed.now, view.status_seconds)
    if before and not switched and (unheard or not due):
        return before.model_copy(update={"observed_generation": view.cr.metadata.generation})
    return _condition(view, Condition.KV_TRANSFER_VERIFIED, found.status, found.reason, found.message)


def _condition(view: View, kind: Condition, status: ConditionStatus, reason: Reason, message: str) -> StatusCondition:
    same = next((each for each in view.previous.conditions if each.type == kind and each.status == status), None)
    return StatusCondition(
        type=kind,
        status=status,
        observed_generation=view.cr.metadata.generation,
        last_transition_time=same.last_transition_time if same else to_rfc3339(view.observed.now),
        reason=reason,
        message=message,
    )
