"""`status`: one pure function from what is wanted and what is there to what the resource says of itself.

How GitOps tools and people read the conditions:

- kstatus (Flux, kpt): another observedGeneration, or Reconciling True: in progress. Stalled True: failed, at once.
  Ready True: current. Ready False alone waits for ever, so that Reconciling and Stalled are always told, and never both
  True.
- Argo CD (our health check) and `kubectl wait` likewise; Ready False beyond the progress deadline becomes Stalled.
- Available says whether clients are served meanwhile. Ready says whether all is there, of the newest template.

When somebody must act (Stalled), and when to wait (Reconciling). Whatever waits for longer than
`rollout.progressDeadlineSeconds` without a change of pods or readiness is Stalled too: ProgressDeadlineExceeded. All of
them heal by themselves once their cause is gone.

====================  ==================================================  ===========================================
reason                Stalled                                             Reconciling
====================  ==================================================  ===========================================
ImagePullFailed       no such image or tag, no access, no known cause     the registry does not answer, or is overloaded
SecretNotFound        always; so is ConfigMapNotFound
EngineCrashed         from the third crash in a row until it is ready;    first and second crash
                      at once if its process cannot even be started
EngineOutOfMemory     as EngineCrashed; so is RouterCrashed               first and second crash
AdmissionRefused      a policy refuses                                    a quota, a webhook that does not answer, the
                                                                          kubelet, a namespace that is going away
InvalidPodTemplate    always; so are ImmutableField and NameConflict
ApplyFailed           the API server can never accept it                  any other error
VolumeNotReady        there is no such claim                              the volume is not bound yet, or elsewhere
InsufficientCapacity  never, since an autoscaler may add nodes            always; so are EFAUnavailable, ZonesSplit
all others            never                                               always, but for Paused, which waits for you
====================  ==================================================  ===========================================
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvloop.api.labels import Role
from kvloop.api.v1alpha1 import DisaggregatedInference, Status
from kvloop.api.v1alpha1.status import RoleStatus, RolloutStatus, RouterStatus
from kvloop.plan.advice import advice_status
from kvloop.plan.desired import Desired
from kvloop.plan.observed import Observed
from kvloop.plan.resolve import role_spec
from kvloop.plan.reuse import MIN_SECONDS, is_due, reuse_status
from kvloop.plan.status.conditions import conditions
from kvloop.plan.status.view import View
from kvloop.plan.times import to_rfc3339

__all__ = ["status"]


def status(
    cr: DisaggregatedInference,
    observed: Observed,
    desired: Desired,
    previous: Mapping[str, Any],
    seconds: float = MIN_SECONDS,
) -> dict[str, Any]:
    """The whole status as it is to be written; equal to `previous` while nothing has changed.

    `previous` is the status in the custom resource. Whatever of it goes on, such as times, is taken from there. What is
    concluded from traffic changes every so many `seconds` at most.
    """
    before = Status.read(previous)
    view = View(cr, _counted_once(cr, observed), desired, before, seconds)
    counts = Status(prefill=_role(view, Role.PREFILL), decode=_role(view, Role.DECODE), router=_router(view))
    rollout = _rollout(view, counts)
    found = {
        "observed_generation": cr.metadata.generation,
        "conditions": conditions(view, rollout),
        "url": desired.url,
        "rollout": rollout,
        "resolved": desired.resolved,
        **_evidence(view),
    }
    return counts.model_copy(update=found).model_dump(mode="json", by_alias=True, exclude_none=True)


def _counted_once(cr: DisaggregatedInference, observed: Observed) -> Observed:
    ranks = {role: role_spec(cr.spec, role).tensor_parallel_size for role in Role}
    return replace(observed, measured=observed.measured and observed.measured.once(ranks))


def _evidence(view: View) -> dict[str, Any]:
    before, now, measured = view.previous, view.observed.now, view.observed.measured
    if not is_due(before, now, view.status_seconds):
        return {"reuse": before.reuse, "advice": before.advice}
    return {
        "reuse": reuse_status(before.reuse, measured, now),
        "advice": advice_status(before.advice, view.cr.spec, measured, now),
    }


def _role(view: View, role: Role) -> RoleStatus:
    fleet = view.fleets[role]
    ready = len(fleet.ready)
    return RoleStatus(desired=fleet.wanted, ready=ready, updated=len(fleet.updated), summary=f"{ready}/{fleet.wanted}")


def _router(view: View) -> RouterStatus:
    wanted, ready = view.cr.spec.router.replicas, sum(pod.ready for pod in view.routers)
    return RouterStatus(desired=wanted, ready=ready, summary=f"{ready}/{wanted}")


def _rollout(view: View, counts: Status) -> RolloutStatus:
    """The marks of time move only with what they mark, so that a status without news is the same status."""
    now, revision = to_rfc3339(view.observed.now), view.desired.revision
    before = view.previous.rollout or RolloutStatus()
    edited = before.revision != revision or view.previous.observed_generation != view.cr.metadata.generation
    moved = any(getattr(view.previous, part) != getattr(counts, part) for part in ("prefill", "decode", "router"))
    return RolloutStatus(
        revision=revision,
        started_at=now if before.revision != revision or (edited and view.outdated) else before.started_at,
        last_progress_at=now if edited or moved else before.last_progress_at,
        message=view.desired.rollout.message,
    )
