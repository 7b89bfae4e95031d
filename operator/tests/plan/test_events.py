"""Events tell of changes, once, and of nothing that merely lasts."""

from typing import Any

import pytest

from kvloop.plan.events import NORMAL, WARNING, Event, transitions


def status(**conditions: tuple[str, str]) -> dict[str, Any]:
    """A status with these conditions: type=(status, reason)."""
    return {
        "conditions": [
            {
                "type": kind,
                "status": truth,
                "reason": reason,
                "message": f"about {reason}",
                "observedGeneration": 1,
                "lastTransitionTime": "2024-01-01T00:00:00Z",
            }
            for kind, (truth, reason) in conditions.items()
        ]
    }


def event(kind: str, reason: str) -> Event:
    return Event(kind, reason, f"about {reason}")


LOADING = {"Ready": ("False", "ModelLoading"), "Stalled": ("False", "ModelLoading")}
READY = {"Ready": ("True", "Ready"), "Stalled": ("False", "Reconciled"), "Available": ("True", "Available")}
CASES = {
    "a new resource": (
        {},
        {**LOADING, "Available": ("False", "NoReadyPair"), "KVTransferVerified": ("Unknown", "NoTraffic")},
        [event(NORMAL, "ModelLoading")],
    ),
    "nothing new": (READY, READY, []),
    "ready": (
        {**LOADING, "Available": ("False", "NoReadyPair")},
        READY,
        [event(NORMAL, "Ready"), event(NORMAL, "Available")],
    ),
    "another reason for the same": (
        {"Ready": ("False", "PodsPending")},
        {"Ready": ("False", "InsufficientCapacity")},
        [event(WARNING, "InsufficientCapacity")],
    ),
    "a fault is told once, though two conditions tell it": (
        LOADING,
        {"Ready": ("False", "EngineCrashed"), "Stalled": ("True", "EngineCrashed")},
        [event(WARNING, "EngineCrashed")],
    ),
    "the deadline passes": (
        LOADING,
        {**LOADING, "Stalled": ("True", "ProgressDeadlineExceeded")},
        [event(WARNING, "ProgressDeadlineExceeded")],
    ),
    "a known fault becomes final": (
        {"Ready": ("False", "EngineCrashed"), "Stalled": ("False", "EngineCrashed")},
        {"Ready": ("False", "EngineCrashed"), "Stalled": ("True", "EngineCrashed")},
        [event(WARNING, "EngineCrashed")],
    ),
    "a fault is over": (
        {"Ready": ("False", "EngineCrashed"), "Stalled": ("True", "EngineCrashed")},
        LOADING,
        [event(NORMAL, "ModelLoading")],
    ),
    "serves no more": (
        READY,
        {**READY, "Available": ("False", "NoReadyPair")},
        [event(WARNING, "NoReadyPair")],
    ),
    "unavailable for another reason": (
        {"Available": ("False", "NoReadyPair")},
        {"Available": ("False", "ScaledToZero")},
        [],
    ),
    "scaled to zero": (
        READY,
        {**READY, "Ready": ("True", "ScaledToZero"), "Available": ("False", "ScaledToZero")},
        [event(NORMAL, "ScaledToZero")],
    ),
    "transfer works": (
        {"KVTransferVerified": ("Unknown", "NoTraffic")},
        {"KVTransferVerified": ("True", "Verified")},
        [event(NORMAL, "Verified")],
    ),
    "transfer fails": (
        {"KVTransferVerified": ("True", "Verified")},
        {"KVTransferVerified": ("False", "GuardInactive")},
        [event(WARNING, "GuardInactive")],
    ),
    "transfer is switched off": (
        {"KVTransferVerified": ("True", "Verified")},
        {"KVTransferVerified": ("False", "Disabled")},
        [event(NORMAL, "Disabled")],
    ),
    "no traffic any more": (
        {"KVTransferVerified": ("True", "Verified")},
        {"KVTransferVerified": ("Unknown", "NoTraffic")},
        [],
    ),
    "reconciling": ({"Reconciling": ("True", "RollingOut")}, {"Reconciling": ("False", "Reconciled")}, []),
}


@pytest.mark.parametrize(("before", "after", "expected"), CASES.values(), ids=CASES.keys())
def test_transitions(before: dict[str, Any], after: dict[str, Any], expected: list[Event]) -> None:
    assert transitions(status(**before), status(**after)) == tuple(expected)


def test_the_first_status_of_all() -> None:
    assert transitions({"observedGeneration": -1}, status(**LOADING)) == (event(NORMAL, "ModelLoading"),)
