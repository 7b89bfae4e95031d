"""Counts, times and conditions beside Ready."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from kvloop.api.contract import EngineSummary, FirstTokenByArm, ReuseCounters, ReuseSummary
from kvloop.api.labels import Reason, Role
from kvloop.api.v1alpha1 import Status
from kvloop.plan.observed import ChildRef

Build = Callable[..., Any]


def test_the_whole_document(healthy: Build) -> None:
    status = healthy().latest
    assert Status.model_validate(status).model_dump(mode="json", by_alias=True, exclude_none=True) == status
    assert status["observedGeneration"] == 1
    assert status["url"] == "http://chat.ns.svc.cluster.local:8000"
    assert status["prefill"] == {"desired": 2, "ready": 2, "updated": 2, "summary": "2/2"}
    assert status["decode"] == status["prefill"]
    assert status["router"] == {"desired": 1, "ready": 1, "summary": "1/1"}
    assert status["resolved"]["vllmVersion"] == "0.32.0"
    assert status["rollout"]["message"] == ""
    assert "reuse" not in status
    kinds = [condition["type"] for condition in status["conditions"]]
    assert kinds == ["Ready", "Available", "Reconciling", "Stalled", "KVTransferVerified"]
    assert status["conditions"][0]["message"].startswith("2 prefill and 2 decode engines of revision ")


def test_no_news_is_the_same_status(healthy: Build) -> None:
    """Hours later, not a letter has changed: nothing is written."""
    world = healthy()
    before = world.latest
    world.wait(7200)
    assert world.report() == before


def test_transition_times_change_with_the_status_only(healthy: Build) -> None:
    world = healthy()
    first = world.condition("Ready")["lastTransitionTime"]
    world.wait(60)
    world.container("chat-decode-0", running=True)
    world.report()
    second = world.condition("Ready")["lastTransitionTime"]
    assert second > first
    world.wait(60)
    world.container("chat-decode-0", waiting="CrashLoopBackOff", exit_code=1)
    world.report()
    assert world.condition("Ready")["reason"] == Reason.ENGINE_CRASHED
    assert world.condition("Ready")["lastTransitionTime"] == second
    assert world.condition("Available")["lastTransitionTime"] == first


def test_progress_is_marked_when_pods_or_the_spec_change(healthy: Build) -> None:
    world = healthy()
    marks = [world.latest["rollout"]]
    for change in (
        lambda: None,
        lambda: world.container("chat-decode-0", running=True),
        lambda: world.edit(rollout={"progressDeadlineSeconds": 900}),
        lambda: world.edit(engine={"image": "registry.example/vllm:0.33.0"}),
    ):
        world.wait(10)
        change()
        marks.append(world.report()["rollout"])
    assert [mark["lastProgressAt"][-4:-1] for mark in marks] == [":20", ":20", ":40", ":50", ":00"]
    assert [mark["startedAt"][-4:-1] for mark in marks] == [":20"] * 4 + [":00"]
    assert marks[4]["revision"] != marks[3]["revision"]
    assert marks[4]["message"].startswith("prefill 0 of 2, decode 0 of 2 updated; replacing ")


def test_a_template_that_keeps_the_revision_begins_a_rollout_too(healthy: Build) -> None:
    world = healthy()
    before = world.latest["rollout"]
    world.wait(10)
    world.edit(decode={"replicas": 2, "resources": {"requests": {"cpu": "2"}}})
    after = world.report()["rollout"]
    assert after["revision"] == before["revision"]
    assert after["startedAt"] > before["startedAt"]


def test_replicas_that_belong_to_somebody_else(world: Build) -> None:
    """Absent in the spec: what the StatefulSet says, and before there is one, what Kubernetes defaults to."""
    made = world(prefill={"replicas": None})
    assert made.report()["prefill"]["summary"] == "0/1"
    made.make_children()
    made.set_workload("StatefulSet", "chat-prefill", replicas=3)
    assert made.report()["prefill"]["summary"] == "0/3"


def test_available_needs_a_pair_of_one_revision_and_a_router(healthy: Build) -> None:
    world = healthy()
    for name in ("chat-prefill-0", "chat-prefill-1"):
        world.change(name, revision="other")
    world.report()
    assert world.condition("Available")["reason"] == Reason.NO_READY_PAIR
    assert "no prefill and decode engine of one revision" in world.condition("Available")["message"]
    world.change("chat-decode-1", revision="other")
    world.report()
    assert world.condition("Available")["status"] == "True"
    world.change("chat-router-abc-0", ready=False)
    world.report()
    assert world.condition("Available")["message"].endswith("no router is ready.")


@pytest.mark.parametrize(
    ("spec", "empty"),
    [
        ({"prefill": {"replicas": 0}}, "prefill"),
        ({"decode": {"replicas": 0}}, "decode"),
        ({"router": {"replicas": 0}}, "router"),
        ({"prefill": {"replicas": 0}, "router": {"replicas": 0}}, "prefill and router"),
    ],
)
def test_zero_is_a_state(healthy: Build, spec: dict[str, Any], empty: str) -> None:
    world = healthy(**spec)
    ready, available = world.condition("Ready"), world.condition("Available")
    assert (ready["status"], ready["reason"]) == ("True", Reason.SCALED_TO_ZERO)
    assert (available["status"], available["reason"]) == ("False", Reason.SCALED_TO_ZERO)
    assert f"since {empty} is scaled to 0" in available["message"]


def test_many_names_are_cut_short(world: Build) -> None:
    made = world(prefill={"replicas": 9}, decode={"replicas": 0})
    made.make_children()
    made.all_load()
    made.report()
    expected = "Loading the model: chat-prefill-0, chat-prefill-1, chat-prefill-2, 6 more."
    assert made.condition("Ready")["message"] == expected


def test_a_deleted_resource_counts_what_is_left(healthy: Build) -> None:
    world = healthy()
    world.delete()
    status = world.report()
    assert status["prefill"]["summary"] == "2/2"
    assert status["prefill"]["updated"] == 0
    assert world.condition("Reconciling")["reason"] == Reason.DELETING
    world.wait(100_000)
    world.report()
    assert world.condition("Stalled")["status"] == "False"


def test_without_a_mark_no_deadline_has_passed(healthy: Build) -> None:
    """As in a status that an older operator wrote."""
    world = healthy()
    world.container("chat-decode-0", running=True)
    world.report()
    del world.latest["rollout"]["lastProgressAt"]
    world.wait(100_000)
    world.report()
    assert world.condition("Stalled")["status"] == "False"


def engines(**changes: str | bool) -> list[EngineSummary]:
    fields: dict[str, Any] = {"revision": "r", "probed": True, "boot_id": "b", "guard_active": True, "healthy": True}
    prefill = EngineSummary(address="10.0.0.1:8000", role=Role.PREFILL, **fields)
    return [prefill, EngineSummary(address="10.0.0.2:8000", role=Role.DECODE, **{**fields, **changes})]


def summary(window: dict[str, Any] | None = None, of: list[EngineSummary] | None = None) -> ReuseSummary:
    return ReuseSummary(
        since=0,
        window_seconds=600,
        counters=ReuseCounters(),
        window=ReuseCounters(**(window or {})),
        first_token=FirstTokenByArm(),
        engines=engines() if of is None else of,
    )


GOOD = {"turns": 100, "follow_ups": 90, "reused_turns": 80, "prompt_tokens": 1000, "reused_tokens": 870}
VERDICTS = {
    "no router answers": (None, "Unknown", Reason.NO_TRAFFIC, "Too few follow-ups"),
    "no traffic": (summary(), "Unknown", Reason.NO_TRAFFIC, "Too few follow-ups"),
    "few follow-ups": (summary({"turns": 50, "follow_ups": 4}), "Unknown", Reason.NO_TRAFFIC, "Too few"),
    "good": (summary(GOOD), "True", Reason.VERIFIED, "Prefill reads the KV of earlier turns from decode."),
    "guard off": (
        summary(GOOD, engines(guard_active=False)),
        "False",
        Reason.GUARD_INACTIVE,
        "does not run in 1 of 2 engines, such as the decode engine at 10.0.0.2:8000",
    ),
    "guard off without traffic": (
        summary(of=engines(guard_active=False)),
        "False",
        Reason.GUARD_INACTIVE,
        "does not run",
    ),
    "no plugin": (
        summary(GOOD, engines(guard_active=False, boot_id="")),
        "False",
        Reason.GUARD_INACTIVE,
        "VLLM_PLUGINS",
    ),
    "guard not read yet": (
        summary(GOOD, engines(guard_active=False, boot_id="", probed=False)),
        "True",
        Reason.VERIFIED,
        "",
    ),
    "guard of a dead engine": (summary(GOOD, engines(guard_active=False, healthy=False)), "True", "Verified", ""),
    "guard of a leaving engine": (summary(GOOD, engines(guard_active=False, draining=True)), "True", "Verified", ""),
    "decode alone": (
        summary({"turns": 100, "decode_only_turns": 50}),
        "False",
        Reason.DECODE_ONLY,
        "Look at prefill's pods",
    ),
    "decode alone at times": (summary({**GOOD, "decode_only_turns": 10}), "True", Reason.VERIFIED, ""),
    "expiring": (
        summary({**GOOD, "expired_handles": 30}),
        "False",
        Reason.EXPIRING,
        "Raise transfer.decoderKVBlocksTTLSeconds, now 480, above the pauses",
    ),
    "nothing comes back": (
        summary({"turns": 100, "follow_ups": 90, "misses": {"no_handle": 20, "unknown": 70}}),
        "False",
        Reason.NO_TRANSFERS,
        "No follow-up reads its KV from decode, mostly because of unknown.",
    ),
    "nothing comes back for no reason": (
        summary({"turns": 100, "follow_ups": 90}),
        "False",
        Reason.NO_TRANSFERS,
        "No follow-up reads its KV from decode. status.reuse.misses",
    ),
}


@pytest.mark.parametrize(("reuse", "status", "reason", "message"), VERDICTS.values(), ids=VERDICTS.keys())
def test_kv_transfer_verified(world: Build, reuse: ReuseSummary | None, status: str, reason: str, message: str) -> None:
    made = world()
    made.facts["reuse"] = reuse
    made.report()
    found = made.condition("KVTransferVerified")
    assert (found["status"], found["reason"]) == (status, reason)
    assert message in found["message"]


def test_switched_off(healthy: Build) -> None:
    """What the spec alone decides is told at once, in both directions."""
    world = healthy(transfer={"bidirectional": False})
    world.facts["reuse"] = summary(GOOD)
    world.report()
    assert world.condition("KVTransferVerified")["reason"] == Reason.DISABLED
    world.edit(transfer={"bidirectional": True})
    world.report()
    assert world.condition("KVTransferVerified")["reason"] == Reason.VERIFIED
    world.edit(transfer={"bidirectional": False})
    world.report()
    assert world.condition("KVTransferVerified")["reason"] == Reason.DISABLED


def test_traffic_alone_writes_at_most_once_a_minute(healthy: Build) -> None:
    world = healthy()
    written = []
    for second in range(0, 600, 5):
        before = world.latest
        window = {**GOOD, "turns": 100 + second, "reused_turns": 80 if second % 10 else 0}
        world.facts["reuse"] = summary(window)
        world.wait(5)
        if world.report() != before:
            written.append(second)
    assert written
    assert all(later - earlier >= 60 for earlier, later in pairwise(written))


def test_a_silent_router_takes_nothing_back(healthy: Build) -> None:
    """As right after a restart of the operator: what was known stays, and nothing is written."""
    world = healthy()
    world.wait(100)
    world.facts["reuse"] = summary(GOOD)
    known = world.report()
    assert known["reuse"]["hitPercent"] == "87%"
    world.wait(100)
    world.facts["reuse"] = None
    assert world.report() == known


def test_without_a_router_nothing_is_verified(healthy: Build) -> None:
    world = healthy()
    world.facts["reuse"] = summary(GOOD)
    world.wait(100)
    world.report()
    world.wait(100)
    world.facts["reuse"] = None
    world.change("chat-router-abc-0", ready=False)
    world.report()
    assert world.condition("KVTransferVerified")["reason"] == Reason.NO_TRAFFIC


def test_an_edit_does_not_age_what_was_verified(healthy: Build) -> None:
    world = healthy()
    world.wait(100)
    world.facts["reuse"] = summary(GOOD)
    world.report()
    world.edit(rollout={"progressDeadlineSeconds": 900})
    world.report()
    assert world.condition("KVTransferVerified")["observedGeneration"] == 2
    assert world.condition("KVTransferVerified")["reason"] == Reason.VERIFIED


def test_a_child_without_a_workload_is_no_engine_count(healthy: Build) -> None:
    world = healthy(decode={"replicas": None})
    ref = ChildRef("StatefulSet", "chat-decode")
    world.children[ref] = replace(world.children[ref], workload=None)
    assert world.report()["decode"]["summary"] == "0/1"
