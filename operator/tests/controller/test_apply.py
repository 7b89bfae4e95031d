"""What is written, when, and what a refusal leads to."""

from typing import Any

import pytest

from kvloop.api.labels import APPLIED_HASH, KIND, Reason
from kvloop.controller.apply import Applier, Outcome, covers, digest_of
from kvloop.controller.cache import Cache
from kvloop.kube.errors import (
    ForbiddenError,
    InvalidError,
    KubeError,
    ServerError,
    UnavailableError,
)
from kvloop.plan.observed import ChildRef

from .doubles import KEY, OWNER, Body, Clock, MemoryKube, owned, resource

SERVICE = owned("Service", "chat", {"ports": 1})
STATEFUL_SET = owned("StatefulSet", "chat-prefill", {"replicas": 3, "template": {}})


class Bench:
    """An applier, the cache that the double's watch feeds, and passes over it."""

    def __init__(self, kube: MemoryKube, clock: Clock) -> None:
        self.kube = kube
        self.clock = clock
        self.cache = Cache()
        self.applier = Applier(kube, self.cache, clock)
        self.kube.objects[KIND, KEY.name] = resource()

    async def apply(self, *children: Body) -> Outcome:
        outcome = Outcome()
        await self.applier.apply(KEY, OWNER, children, outcome)
        return outcome

    async def writes(self, *children: Body) -> list[tuple[str, str, str]]:
        self.kube.writes()
        await self.apply(*children)
        return self.kube.writes()

    def restart(self) -> None:
        """Begin anew, with what is there."""
        self.cache = Cache()
        for body in self.kube.objects.values():
            self.cache.see(body)
        self.applier = Applier(self.kube, self.cache, self.clock)


@pytest.fixture
def bench(kube: MemoryKube, clock: Clock) -> Bench:
    return Bench(kube, clock)


async def test_each_child_is_applied_once_in_order_with_its_digest(bench: Bench) -> None:
    assert await bench.writes(SERVICE, STATEFUL_SET) == [
        ("apply", "Service", "chat"),
        ("apply", "StatefulSet", "chat-prefill"),
    ]
    stored = bench.kube.objects["Service", "chat"]
    assert stored["metadata"]["annotations"] == {APPLIED_HASH: digest_of(SERVICE)}
    assert await bench.writes(SERVICE, STATEFUL_SET) == []


async def test_after_a_restart_nothing_is_written(bench: Bench) -> None:
    await bench.apply(SERVICE, STATEFUL_SET)
    bench.restart()
    assert await bench.writes(SERVICE, STATEFUL_SET) == []


async def test_after_a_restart_what_others_edited_is_looked_at_and_undone_only_if_it_is_ours(bench: Bench) -> None:
    await bench.apply(SERVICE)
    stored = bench.kube.objects["Service", "chat"]
    stored["metadata"]["managedFields"].append({"manager": "cloud", "operation": "Update", "time": "2031"})
    stored["spec"] = {"ports": 1, "theirs": 2}
    bench.restart()
    assert await bench.writes(SERVICE) == []
    stored["spec"] = {"ports": 2}
    bench.restart()
    assert await bench.writes(SERVICE) == [("apply", "Service", "chat")]
    stored = bench.kube.objects["Service", "chat"]
    stored["metadata"]["managedFields"].append({"manager": "cloud", "operation": "Update", "time": "2031"})
    bench.restart()
    del bench.kube.objects["Service", "chat"]
    assert await bench.writes(SERVICE) == [("apply", "Service", "chat")], "gone meanwhile"


async def test_only_what_differs_is_written(bench: Bench) -> None:
    await bench.apply(SERVICE, STATEFUL_SET)
    assert await bench.writes(SERVICE | {"spec": {"ports": 2}}, STATEFUL_SET) == [("apply", "Service", "chat")]


async def test_what_is_no_longer_wanted_is_deleted(bench: Bench) -> None:
    await bench.apply(SERVICE, STATEFUL_SET)
    assert await bench.writes(STATEFUL_SET) == [("delete", "Service", "chat")]
    assert await bench.writes(STATEFUL_SET) == []


async def test_what_pods_still_need_is_kept(bench: Bench) -> None:
    await bench.apply(SERVICE, STATEFUL_SET)
    outcome, kept = Outcome(), {ChildRef("Service", "chat")}
    await bench.applier.apply(KEY, OWNER, [STATEFUL_SET], outcome, kept)
    assert ("Service", "chat") in bench.kube.objects


async def test_only_what_the_resource_owns_is_deleted(bench: Bench) -> None:
    bench.cache.see(bench.kube.put(owned("Service", "of-another", owner="uid-of-another")))
    bench.cache.see(bench.kube.put(owned("Service", "of-nobody", owner=None)))
    assert await bench.writes() == []


async def test_an_edit_of_ours_is_undone_once(bench: Bench) -> None:
    await bench.apply(SERVICE)
    bench.cache.see(bench.kube.edit("Service", "chat", "ports"))
    assert await bench.writes(SERVICE) == [("apply", "Service", "chat")]
    assert await bench.writes(SERVICE) == []


async def test_repairs_of_the_same_thing_come_ever_more_slowly(bench: Bench) -> None:
    await bench.apply(SERVICE)
    waits = []
    for _ in range(5):
        bench.cache.see(bench.kube.edit("Service", "chat", "ports"))
        outcome = await bench.apply(SERVICE)
        waits.append(outcome.recheck or 0)
        bench.clock.now += (outcome.recheck or 0) + 0.1
        await bench.apply(SERVICE)
    assert waits[0] == 0, "the first is undone at once"
    assert all(0.75 * 2**n - 0.1 <= wait <= 1.25 * 2**n for n, wait in enumerate(waits[1:])), waits


async def test_a_deleted_child_is_made_again(bench: Bench) -> None:
    await bench.apply(SERVICE)
    bench.cache.forget(bench.kube.objects.pop(("Service", "chat")))
    assert await bench.writes(SERVICE) == [("apply", "Service", "chat")]


@pytest.mark.parametrize("gone", ["deleted", "deleting", "another"])
async def test_nothing_is_made_for_a_resource_that_is_going(bench: Bench, gone: str) -> None:
    """The watch of the children can be ahead of that of the resource."""
    await bench.apply(SERVICE, STATEFUL_SET)
    bench.cache.forget(bench.kube.objects.pop(("Service", "chat")))
    live = bench.kube.objects.pop((KIND, KEY.name))
    change = {"deleting": {"deletionTimestamp": "2030-01-01T00:00:00Z"}, "another": {"uid": "another"}}
    if gone != "deleted":
        bench.kube.objects[KIND, KEY.name] = live | {"metadata": live["metadata"] | change[gone]}
    assert await bench.writes(SERVICE, STATEFUL_SET) == []


async def test_the_object_of_somebody_else_is_left_alone(bench: Bench) -> None:
    theirs = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "chat", "namespace": KEY.namespace}}
    before = bench.kube.put(theirs, manager="somebody")
    outcome = await bench.apply(SERVICE, STATEFUL_SET)
    (failure,) = outcome.failures
    assert (failure.reason, failure.terminal) == (Reason.NAME_CONFLICT, True)
    assert outcome.recheck == pytest.approx(30)
    assert not outcome.retry
    assert bench.kube.objects["Service", "chat"] == before
    assert ("StatefulSet", "chat-prefill") in bench.kube.objects


@pytest.mark.parametrize("seen", [True, False])
async def test_a_child_of_a_former_resource_of_that_name_is_left_to_the_garbage_collector(
    bench: Bench, seen: bool
) -> None:
    """As after kubectl replace --force: nobody has to act, and nothing is stalled."""
    former = bench.kube.put(owned("Service", "chat", owner="uid-of-the-former"))
    if seen:
        bench.cache.see(former)
    outcome = await bench.apply(SERVICE)
    assert [(failure.reason, failure.terminal) for failure in outcome.failures] == [(Reason.PROGRESSING, False)]
    assert outcome.retry
    bench.cache.forget(bench.kube.objects.pop(("Service", "chat")))
    assert not (await bench.apply(SERVICE)).failures


async def test_a_child_of_another_owner_is_a_conflict_whatever_its_labels(bench: Bench) -> None:
    theirs = owned("Service", "chat", owner="another")
    theirs["metadata"]["ownerReferences"][0]["kind"] = "Other"
    bench.cache.see(bench.kube.put(theirs))
    assert [failure.reason for failure in (await bench.apply(SERVICE)).failures] == [Reason.NAME_CONFLICT]


async def test_an_orphan_is_adopted(bench: Bench) -> None:
    bench.cache.see(bench.kube.put(owned("Service", "chat", owner=None)))
    assert not (await bench.apply(SERVICE)).failures
    assert bench.kube.objects["Service", "chat"]["metadata"]["ownerReferences"][0]["uid"] == OWNER


async def test_orphans_of_a_resource_that_is_on_its_way_out_stay_orphans(bench: Bench) -> None:
    bench.cache.see(bench.kube.put(owned("Service", "chat", owner=None)))
    bench.kube.objects[KIND, KEY.name]["metadata"]["deletionTimestamp"] = "2030-01-02T03:04:05Z"
    assert await bench.writes(SERVICE) == []


async def test_one_refusal_does_not_hold_up_the_others(bench: Bench) -> None:
    bench.kube.errors["Service", "chat"] = ForbiddenError("exceeded quota", 403)
    outcome = await bench.apply(SERVICE, STATEFUL_SET)
    assert [failure.ref.name for failure in outcome.failures] == ["chat"]
    assert outcome.retry
    assert ("StatefulSet", "chat-prefill") in bench.kube.objects


@pytest.mark.parametrize(
    ("error", "kind", "reason", "terminal"),
    [
        (InvalidError("no such field", 500, "spec.x"), STATEFUL_SET, Reason.INVALID_POD_TEMPLATE, True),
        (InvalidError("no such field", 422, "spec.x"), SERVICE, Reason.APPLY_FAILED, True),
        (InvalidError("field is immutable", 422, "spec.x", immutable=True), SERVICE, Reason.IMMUTABLE_FIELD, True),
        (ForbiddenError("exceeded quota", 403), SERVICE, Reason.ADMISSION_REFUSED, False),
        (ForbiddenError('User "x" cannot patch resource "y"', 403), SERVICE, Reason.APPLY_FAILED, False),
        (ServerError("webhook is down", 500), SERVICE, Reason.APPLY_FAILED, False),
    ],
)
async def test_refusals_by_their_kind(
    bench: Bench, error: KubeError, kind: Body, reason: Reason, terminal: bool
) -> None:
    bench.kube.errors[kind["kind"], kind["metadata"]["name"]] = error
    outcome = await bench.apply(kind)
    (failure,) = outcome.failures
    assert (failure.reason, failure.terminal, outcome.retry) == (reason, terminal, not terminal)
    assert error.message in failure.message


async def test_what_is_refused_for_good_is_not_sent_again_until_it_changes(bench: Bench) -> None:
    bench.kube.errors["Service", "chat"] = InvalidError("no", 422)
    await bench.apply(SERVICE)
    assert await bench.writes(SERVICE) == []
    assert (await bench.apply(SERVICE)).failures, "it is told all the same"
    del bench.kube.errors["Service", "chat"]
    assert await bench.writes(SERVICE | {"spec": {"ports": 2}}) == [("apply", "Service", "chat")]
    assert not (await bench.apply(SERVICE | {"spec": {"ports": 2}})).failures


async def test_a_final_refusal_is_believed_for_ten_minutes(bench: Bench) -> None:
    bench.kube.errors["Service", "chat"] = InvalidError("no", 422)
    await bench.apply(SERVICE)
    bench.clock.now += 601
    assert await bench.writes(SERVICE) == [("apply", "Service", "chat")]


async def test_an_immutable_field_is_named(bench: Bench) -> None:
    await bench.apply(STATEFUL_SET)
    message = "updates to statefulset spec for fields other than 'replicas', 'template' are forbidden"
    bench.kube.errors["StatefulSet", "chat-prefill"] = InvalidError(message, 422, "spec", immutable=True)
    changed = owned("StatefulSet", "chat-prefill", {"replicas": 2, "template": {}, "serviceName": "other"})
    (failure,) = (await bench.apply(changed)).failures
    assert "spec.serviceName cannot be changed" in failure.message


async def test_a_refusal_is_forgotten_when_the_object_in_the_way_has_gone(bench: Bench) -> None:
    await bench.apply(STATEFUL_SET)
    changed = STATEFUL_SET | {"spec": {"selector": 1}}
    bench.kube.errors["StatefulSet", "chat-prefill"] = InvalidError("field is immutable", 422, "s", immutable=True)
    assert (await bench.apply(changed)).failures
    del bench.kube.errors["StatefulSet", "chat-prefill"]
    bench.cache.forget(bench.kube.objects.pop(("StatefulSet", "chat-prefill")))
    assert not (await bench.apply(changed)).failures


async def test_a_server_that_takes_no_requests_ends_the_pass(bench: Bench) -> None:
    bench.kube.errors["Service", "chat"] = UnavailableError("no connection")
    with pytest.raises(UnavailableError):
        await bench.apply(SERVICE, STATEFUL_SET)
    assert ("StatefulSet", "chat-prefill") not in bench.kube.objects


async def test_the_replica_count_is_handed_over_when_it_becomes_somebody_elses(bench: Bench) -> None:
    await bench.apply(STATEFUL_SET)
    without = owned("StatefulSet", "chat-prefill", {"template": {}})
    assert await bench.writes(without) == [
        ("scale 3", "StatefulSet", "chat-prefill"),
        ("apply", "StatefulSet", "chat-prefill"),
    ]
    assert await bench.writes(without) == []
    assert await bench.writes(STATEFUL_SET) == [("apply", "StatefulSet", "chat-prefill")]


async def test_records_go_with_the_resource(bench: Bench) -> None:
    bench.kube.errors["Service", "chat"] = InvalidError("no", 422)
    await bench.apply(SERVICE)
    bench.applier.forget(KEY)
    assert await bench.writes(SERVICE) == [("apply", "Service", "chat")]


def test_the_earliest_recheck_counts() -> None:
    outcome = Outcome()
    for seconds in (20, 5, 60):
        outcome.look_again(seconds)
    assert outcome.recheck == 5


@pytest.mark.parametrize(
    ("live", "sent", "expected"),
    [
        ({"a": 1, "default": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": [{"b": 1, "default": 2}]}, {"a": [{"b": 1}]}, True),
        ({"a": [1, 2]}, {"a": [1]}, False),
        (None, {"a": 1}, False),
    ],
)
def test_covers(live: Any, sent: Any, expected: bool) -> None:
    assert covers(live, sent) is expected
