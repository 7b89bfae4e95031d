"""Whatever the cluster looks like, the status keeps its promises."""

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvloop.api.v1alpha1 import Status

ENGINES = ("chat-prefill-0", "chat-prefill-1", "chat-decode-0", "chat-decode-1")
STATES: dict[str, dict[str, Any]] = {
    "absent": {},
    "pending": {"unschedulable": "no nodes are available: Insufficient nvidia.com/gpu"},
    "loading": {"running": True},
    "started": {"running": True, "started": True},
    "image": {"waiting": "ImagePullBackOff", "message": "not found"},
    "crashed": {"running": True, "restarts": 1, "exit_code": 1},
    "crashing": {"waiting": "CrashLoopBackOff", "restarts": 7, "exit_code": 1},
    "old": {"template": "older"},
    "ready": {},
}
Build = Callable[..., Any]


def become(world: Any, name: str, state: str) -> None:
    if state == "absent":
        del world.pods[name]
    elif state in {"pending", "old"}:
        world.change(name, ready=state == "old", **STATES[state])
    elif state != "ready":
        world.container(name, **STATES[state])


# Each example makes its own world, which the fixture only knows how to build.
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    states=st.tuples(*[st.sampled_from(sorted(STATES))] * len(ENGINES)),
    router=st.booleans(),
    paused=st.booleans(),
    seconds=st.sampled_from([0, 100, 10_000]),
)
def test_promises(healthy: Build, states: tuple[str, ...], router: bool, paused: bool, seconds: int) -> None:
    world = healthy(rollout={"paused": paused})
    for name, state in zip(ENGINES, states, strict=True):
        become(world, name, state)
    if not router:
        world.change("chat-router-abc-0", ready=False)
        world.set_workload("Deployment", "chat-router", ready=0)
    world.report()
    world.wait(seconds)
    status = world.report()
    assert Status.model_validate(status).model_dump(mode="json", by_alias=True, exclude_none=True) == status
    assert world.report() == status, "the same again while nothing changes"
    world.pods = dict(reversed(world.pods.items()))
    assert world.report() == status, "in whatever order pods became known"
    truth = {each["type"]: each["status"] == "True" for each in status["conditions"]}
    assert truth["Ready"] == (router and set(states) == {"ready"})
    assert not (truth["Reconciling"] and truth["Stalled"])
    assert sum(truth[kind] for kind in ("Ready", "Reconciling", "Stalled")) == 1 or (paused and "old" in states)
    serving = [any(state in {"ready", "old"} for state in role) for role in (states[:2], states[2:])]
    assert truth["Available"] == (router and all(serving))
    assert all(each["message"] and each["reason"].isalpha() for each in status["conditions"])
