"""Events of the custom resource: one for what has changed from one status to the next, none while it lasts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvloop.api.labels import Condition, Reason
from kvloop.api.v1alpha1 import Status
from kvloop.api.v1alpha1.status import ConditionStatus, StatusCondition

NORMAL: Final = "Normal"
WARNING: Final = "Warning"

CALM: Final = frozenset(
    {
        Reason.PROGRESSING,
        Reason.MODEL_LOADING,
        Reason.PODS_PENDING,
        Reason.ROLLING_OUT,
        Reason.ROUTER_NOT_READY,
        Reason.PAUSED,
        Reason.SCALED_TO_ZERO,
        Reason.DELETING,
        Reason.DISABLED,
    }
)
"""Reasons that belong to a life without trouble, though something is not as it is to be in the end."""


@dataclass(frozen=True)
class Event:
    """What is posted: `type` is Normal or Warning."""

    type: str
    reason: str
    message: str


def transitions(previous_status: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[Event, ...]:
    """What there is to say about the change from one status to the next, both as in the custom resource."""
    before, after = (_conditions(each) for each in (previous_status, status))
    changed = [kind for kind, now in after.items() if _state(before.get(kind)) != _state(now)]
    return tuple(dict.fromkeys(_events(before, after, changed)))


def _events(
    before: Mapping[str, StatusCondition], after: Mapping[str, StatusCondition], changed: list[str]
) -> Iterator[Event]:
    """Ready tells why in all cases; the others only what Ready does not tell."""
    for kind in changed:
        now = after[kind]
        match kind, now.status:
            case Condition.READY, _:
                yield _event(now)
            case Condition.STALLED, ConditionStatus.TRUE:
                if Condition.READY not in changed or now.reason != after[Condition.READY].reason:
                    yield _event(now)
            case Condition.AVAILABLE, _:
                # A new resource is not available, and that is no change.
                if kind in before and before[kind].status != now.status:
                    yield _event(now)
            case Condition.KV_TRANSFER_VERIFIED, ConditionStatus.TRUE | ConditionStatus.FALSE:
                yield _event(now)
            case _:
                pass


def _event(condition: StatusCondition) -> Event:
    calm = condition.status == ConditionStatus.TRUE and condition.type != Condition.STALLED
    return Event(NORMAL if calm or condition.reason in CALM else WARNING, condition.reason, condition.message)


def _conditions(status: Mapping[str, Any]) -> dict[str, StatusCondition]:
    return {each.type: each for each in Status.read(status).conditions}


def _state(condition: StatusCondition | None) -> tuple[str, str] | None:
    return (condition.status, condition.reason) if condition else None
