"""Events that are posted, and Events that are read."""

from typing import Any

import pytest

from kvloop.controller.cache import Cache
from kvloop.controller.events import Poster
from kvloop.controller.warnings import Warnings
from kvloop.kube.errors import ForbiddenError
from kvloop.plan.events import Event

from .doubles import KEY, OWNER, Body, Clock, MemoryKube, owned, pod

SCHEDULED = [{"type": "PodScheduled", "status": "True"}]
STARTED = {"name": "c", "state": {"running": {}}, "started": True}
READY_NOW = {"type": "Ready", "status": "True"}
READY = Event("Normal", "Ready", "All is there.")


class Recorder(MemoryKube):
    def __init__(self) -> None:
        super().__init__()
        self.posted: list[Body] = []

    async def create(self, body: Body) -> Body:
        self.posted.append(body)
        return await super().create(body)


async def test_an_event_is_about_the_resource(clock: Clock) -> None:
    kube = Recorder()
    await Poster(kube, clock).post(KEY, OWNER, [READY])
    (body,) = kube.posted
    assert body["involvedObject"]["uid"] == OWNER
    assert (body["type"], body["reason"], body["message"]) == ("Normal", "Ready", "All is there.")
    assert body["firstTimestamp"] == "1970-01-01T00:16:40Z"
    assert body["source"] == {"component": "kvloop"}


async def test_equal_events_are_posted_once_in_ten_minutes(clock: Clock) -> None:
    kube = Recorder()
    poster = Poster(kube, clock)
    await poster.post(KEY, OWNER, [READY, READY, Event("Normal", "Ready", "Other words.")])
    await poster.post(KEY, "another-uid", [READY])
    clock.now += 599
    await poster.post(KEY, OWNER, [READY])
    assert len(kube.posted) == 3
    clock.now += 2
    await poster.post(KEY, OWNER, [READY])
    assert len(kube.posted) == 4
    assert len({body["metadata"]["name"] for body in kube.posted}) == 4


async def test_a_long_message_is_cut_to_what_the_api_server_takes(clock: Clock) -> None:
    kube = Recorder()
    await Poster(kube, clock).post(KEY, OWNER, [Event("Warning", "EngineCrashed", "x" * 5000)])
    assert len(kube.posted[0]["message"]) == 1024


async def test_an_event_that_cannot_be_posted_is_given_up(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(MemoryKube):
        async def create(self, body: Body) -> Body:
            raise ForbiddenError("namespace is being terminated", 403)

    await Poster(Refusing(), clock).post(KEY, OWNER, [READY])
    assert "being terminated" in caplog.text


class Bench:
    def __init__(self, kube: MemoryKube, clock: Clock) -> None:
        self.kube = kube
        self.clock = clock
        self.cache = Cache()
        self.warnings = Warnings(kube, self.cache, clock)

    def stateful_set(self, pods: int) -> str:
        """Of two wanted pods; gives its uid."""
        body = self.kube.put(owned("StatefulSet", "chat-prefill", {"replicas": 2}) | {"status": {"replicas": pods}})
        self.cache.see(body)
        return str(body["metadata"]["uid"])

    def warn(self, uid: str, *events: tuple[str, str]) -> None:
        self.kube.events[uid] = [
            {"reason": "FailedCreate", "lastTimestamp": when, "message": message} for when, message in events
        ]

    async def after(self, seconds: float) -> dict[str, list[str]]:
        """What is known then, by uid."""
        self.clock.now += seconds
        await self.warnings.read(KEY)
        found = self.warnings.about(KEY)
        return {uid: [warning.message for warning in warnings] for uid, warnings in found.items()}


@pytest.fixture
async def bench(kube: MemoryKube, clock: Clock) -> Bench:
    """Of a resource that has been looked at before."""
    bench = Bench(kube, clock)
    await bench.after(0)
    return bench


async def test_what_was_stuck_before_the_operator_began_is_asked_about_at_once(kube: MemoryKube, clock: Clock) -> None:
    bench = Bench(kube, clock)
    uid = bench.stateful_set(pods=1)
    bench.warn(uid, ("2030-01-01T00:00:00Z", "no quota"))
    assert await bench.after(0) == {uid: ["no quota"]}


async def test_a_stateful_set_without_pods_is_asked_about_after_ten_seconds(bench: Bench) -> None:
    uid = bench.stateful_set(pods=1)
    bench.warn(uid, ("2030-01-01T00:00:00Z", "older"), ("2030-01-01T00:00:09Z", "newer"))
    assert await bench.after(0) == {uid: []}
    assert await bench.after(9) == {uid: []}
    assert bench.kube.calls == []
    assert await bench.after(1) == {uid: ["newer", "older"]}


async def test_it_is_asked_again_once_a_minute(bench: Bench) -> None:
    bench.warn(bench.stateful_set(pods=1), ("2030-01-01T00:00:00Z", "no quota"))
    for _ in range(14):
        await bench.after(10)
    assert len(bench.kube.calls) == 3


async def test_while_nothing_is_said_it_is_asked_every_ten_seconds_for_a_minute(bench: Bench) -> None:
    uid = bench.stateful_set(pods=1)
    for _ in range(4):
        await bench.after(10)
    bench.warn(uid, ("2030-01-01T00:00:00Z", "no quota"))
    assert await bench.after(10) == {uid: ["no quota"]}, "within 10 s of the event"
    assert len(bench.kube.calls) == 4


async def test_what_is_complete_is_not_asked_about_and_forgotten(bench: Bench) -> None:
    uid = bench.stateful_set(pods=1)
    bench.warn(uid, ("2030-01-01T00:00:00Z", "no quota"))
    await bench.after(0)
    assert await bench.after(10) == {uid: ["no quota"]}
    bench.stateful_set(pods=2)
    assert await bench.after(1) == {}
    assert not await bench.warnings.read(KEY)


@pytest.mark.parametrize(
    ("status", "asked"),
    [
        ({"containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}]}, True),
        ({}, True),
        ({"containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}, False),
        ({"phase": "Running", "containerStatuses": [{"name": "c", "state": {"running": {}}}]}, False),
        ({"phase": "Running", "containerStatuses": [STARTED]}, True),
        ({"phase": "Running", "containerStatuses": [STARTED], "conditions": [*SCHEDULED, READY_NOW]}, False),
        ({"phase": "Running", "containerStatuses": [STARTED, {"name": "d", "state": {"running": {}}}]}, False),
        ({"phase": "Running", "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "x"}}}]}, False),
        ({"conditions": []}, False),
    ],
)
async def test_a_mute_pod_is_asked_about(bench: Bench, status: dict[str, Any], asked: bool) -> None:
    bench.cache.see(pod("p", **{"phase": "Pending", "conditions": SCHEDULED} | status))
    assert bool(await bench.after(0)) is asked


async def test_of_pods_of_one_kind_one_is_asked_about(bench: Bench) -> None:
    for name, component in (("p0", "prefill"), ("p1", "prefill"), ("d0", "decode")):
        bench.cache.see(pod(name, component, phase="Pending", conditions=SCHEDULED))
    await bench.after(0)
    await bench.after(10)
    assert len(bench.kube.calls) == 2
    bench.warnings.forget(KEY)
    assert not bench.warnings.about(KEY)
