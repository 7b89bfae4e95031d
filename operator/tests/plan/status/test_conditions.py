"""Counts, times and conditions beside Ready."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest

from kvloop.api.contract import ReuseCounters
from kvloop.api.labels import Reason, Role
from kvloop.api.v1alpha1 import Status
from kvloop.plan.measured import Engine, EngineCounters, Measured
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
        ({"prefill": {"replicas": 0}, "router": {"replicas": 0}}, "prefill and no router"),
    ],
)
def test_zero_is_a_state(healthy: Build, spec: dict[str, Any], empty: str) -> None:
    world = healthy(**spec)
    ready, available = world.condition("Ready"), world.condition("Available")
    assert (ready["status"], ready["reason"]) == ("True", Reason.SCALED_TO_ZERO)
    assert (available["status"], available["reason"]) == ("False", Reason.SCALED_TO_ZERO)
    # Not that nothing is served at all: without prefill, decode may serve alone.
    assert available["message"] == f"Nothing is served over KV transfer: there is no {empty}."


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


def test_the_deadline_runs_from_when_it_was_last_ready(healthy: Build) -> None:
    """Months after the last rollout another operator brings another router: its pods are about to be replaced."""
    world = healthy()
    world.wait(100 * 86400)
    world.set_workload("Deployment", "chat-router", updated=0)
    world.report()
    assert world.condition("Ready")["reason"] == Reason.ROUTER_NOT_READY
    assert (world.condition("Stalled")["status"], world.condition("Reconciling")["status"]) == ("False", "True")
    world.wait(1799)
    world.report()
    assert world.condition("Stalled")["status"] == "False"
    world.wait(1)
    world.report()
    assert world.condition("Stalled")["reason"] == Reason.PROGRESS_DEADLINE_EXCEEDED


def test_without_a_mark_no_deadline_has_passed(healthy: Build) -> None:
    """As in a status that an older operator wrote."""
    world = healthy()
    world.container("chat-decode-0", running=True)
    world.report()
    del world.latest["rollout"]["lastProgressAt"]
    world.wait(100_000)
    world.report()
    assert world.condition("Stalled")["status"] == "False"


GOOD = {"turns": 100, "follow_ups": 90, "reused_turns": 80, "prompt_tokens": 1000, "reused_tokens": 870}
P, D = Engine("chat-prefill-0", Role.PREFILL), Engine("chat-decode-0", Role.DECODE)


def counters(fetched: float = 870, cached: float = 0, **more: Any) -> EngineCounters:
    """An engine's, that fetched so much and had so much in its own cache."""
    return EngineCounters(prompt_tokens={"external_kv_transfer": fetched, "local_cache_hit": cached}, **more)


def seen(
    window: dict[str, Any] | None = None,
    *,
    engines: tuple[Engine, ...] = (P, D),
    prefill: EngineCounters | None = None,
    decode: EngineCounters | None = None,
    young: bool = False,
) -> Measured:
    """What routers (`window`) and engines counted; prefill fetched what the routers say, if nothing else is told."""
    routers = ReuseCounters.model_validate(window or {})
    return Measured(
        window=routers,
        window_seconds=600,
        beside=routers,
        engines=engines,
        prefill=prefill or counters(routers.reused_tokens),
        decode=decode or EngineCounters(),
        young=young,
    )


def computing(requests: int, prompts: int) -> EngineCounters:
    """Decode's, where so many of its requests had whole prompts computed."""
    return EngineCounters(requests=requests, computed_buckets={"20.0": requests - prompts, "+Inf": requests})


def moved(gigabytes_per_second: float, transfers: int = 100) -> EngineCounters:
    """Prefill's, after transfers of 100 MB, which take 20 ms to start."""
    seconds = transfers * (0.02 + 0.1 / gigabytes_per_second)
    return counters(transfers=transfers, transfer_bytes=transfers * 1e8, transfer_seconds=seconds)


EXPIRING = {**GOOD, "expired_handles": 30}
NONE = {"turns": 100, "follow_ups": 90}
VERDICTS = {
    "no router answers": (None, "Unknown", Reason.NO_TRAFFIC, "Too few follow-ups"),
    "no traffic": (seen(), "Unknown", Reason.NO_TRAFFIC, "Too few follow-ups"),
    "few follow-ups": (seen({"turns": 50, "follow_ups": 4}), "Unknown", Reason.NO_TRAFFIC, "Too few"),
    "good": (seen(GOOD), "True", Reason.VERIFIED, "Prefill reads the KV of earlier turns from decode."),
    "guard off": (
        seen(GOOD, engines=(P, replace(D, guard="inactive"))),
        "False",
        Reason.GUARD_INACTIVE,
        "does not run in 1 of 2 engines: chat-decode-0. Nothing is reused there. The engine's log tells why",
    ),
    "guard off without traffic": (seen(engines=(replace(P, guard="absent"), D)), "False", Reason.GUARD_INACTIVE, ""),
    "no plugin": (seen(GOOD, engines=(replace(P, guard="absent"), D)), "False", Reason.GUARD_INACTIVE, "VLLM_PLUGINS"),
    "guard of an engine that does not answer": (
        seen(GOOD, engines=(P, replace(D, guard="absent", read=False))),
        "True",
        Reason.VERIFIED,
        "",
    ),
    "decode alone, as the routers know": (
        seen({"turns": 100, "decode_only_turns": 50}),
        "False",
        Reason.DECODE_ONLY,
        "Look at prefill's pods",
    ),
    "decode alone, since prefill is scaled to 0": (
        seen({"turns": 100, "decode_only_turns": 100}, engines=(D,)),
        "False",
        Reason.DECODE_ONLY,
        "No prefill engine is ready, so that decode computes every prompt. Scale prefill up, or look at prefill's",
    ),
    "decode alone, as only its own counters know": (
        seen(GOOD, decode=computing(100, prompts=40)),
        "False",
        Reason.DECODE_ONLY,
        "decode's log for failed transfers",
    ),
    "decode alone at times": (seen({**GOOD, "decode_only_turns": 10}), "True", Reason.VERIFIED, ""),
    "decode alone by nature of the requests": (
        seen({**GOOD, "unsplit_turns": 40}, decode=computing(100, prompts=40)),
        "True",
        Reason.VERIFIED,
        "",
    ),
    "decode alone twice of a few": (seen({"turns": 9, "decode_only_turns": 2}), "Unknown", Reason.NO_TRAFFIC, ""),
    "late twice of a few": (seen({**GOOD, "follow_ups": 9, "expired_handles": 2}), "True", Reason.VERIFIED, ""),
    "decode alone once": (seen({"turns": 1, "decode_only_turns": 1}), "Unknown", Reason.NO_TRAFFIC, ""),
    "metrics that nobody may read": (
        seen(GOOD, engines=(replace(P, read=False), D), prefill=counters(0)),
        "Unknown",
        Reason.METRICS_UNREADABLE,
        "network policy",
    ),
    "metrics that were never read": (
        seen(GOOD, engines=(), prefill=EngineCounters()),
        "Unknown",
        Reason.METRICS_UNREADABLE,
        "port 8000",
    ),
    "an engine that starts anew takes no proof back": (
        seen(GOOD, engines=(replace(P, read=False), D)),
        "True",
        Reason.VERIFIED,
        "",
    ),
    "expiring": (
        seen(EXPIRING),
        "False",
        Reason.EXPIRING,
        "Raise transfer.decoderKVBlocksTTLSeconds, now 480, above the pauses",
    ),
    "leases that are ended early": (
        seen({**GOOD, "misses": {"lease_ended": 30}}),
        "False",
        Reason.EXPIRING,
        "router.maxPinnedPercent",
    ),
    "reads that come too late for decode's clock": (
        seen(GOOD, decode=EngineCounters(late_reads=20)),
        "False",
        Reason.EXPIRING,
        "",
    ),
    "decode that comes too late for prefill": (
        seen({**GOOD, "ended_leases": 5}, prefill=counters(expired=20)),
        "False",
        Reason.EXPIRING,
        "Raise transfer.kvLeaseDurationSeconds, now 30",
    ),
    "leases that routers end": (
        seen({**GOOD, "ended_leases": 80}, prefill=counters(expired=80)),
        "True",
        Reason.VERIFIED,
        "",
    ),
    "nothing comes back": (
        seen({**NONE, "misses": {"no_handle": 70, "used": 20}}),
        "False",
        Reason.NO_TRANSFERS,
        "Prefill reads no follow-up's KV from decode. Most misses are no_handle. Decode gives no handle",
    ),
    "the store is down": (
        seen({**NONE, "misses": {"store_unavailable": 90}}),
        "False",
        Reason.NO_TRANSFERS,
        "router.store.valkey",
    ),
    "nothing comes back for a reason that only the log knows": (
        seen({**NONE, "misses": {"bad_block_count": 90}}),
        "False",
        Reason.NO_TRANSFERS,
        "Most misses are bad_block_count. status.reuse.misses counts",
    ),
    "nothing comes back for no reason": (seen(NONE), "False", Reason.NO_TRANSFERS, "status.reuse.misses counts"),
    "routers believe in what engines do not do": (seen(GOOD, prefill=counters(0)), "False", Reason.NO_TRANSFERS, ""),
    "most of what routers believe in is computed": (
        seen(GOOD, prefill=counters(100)),
        "False",
        Reason.NO_TRANSFERS,
        "Prefill computes most of what the routers count as reused.",
    ),
    "prefill's own cache has it": (
        seen(GOOD, prefill=counters(0, cached=870)),
        "Unknown",
        Reason.NO_TRAFFIC,
        "own prefix cache",
    ),
    "prefill's own cache has much of it": (seen(GOOD, prefill=counters(100, cached=770)), "True", Reason.VERIFIED, ""),
    "another prefill engine may have read": (
        seen(GOOD, engines=(P, replace(P, pod="chat-prefill-1", read=False), D), prefill=counters(0)),
        "Unknown",
        Reason.METRICS_UNREADABLE,
        "those that it can read have fetched nothing",
    ),
    "another prefill engine may have read the rest": (
        seen(GOOD, engines=(P, replace(P, pod="chat-prefill-1", read=False), D), prefill=counters(100)),
        "True",
        Reason.VERIFIED,
        "",
    ),
}


@pytest.mark.parametrize(("measured", "status", "reason", "message"), VERDICTS.values(), ids=VERDICTS.keys())
def test_kv_transfer_verified(world: Build, measured: Measured | None, status: str, reason: str, message: str) -> None:
    made = world()
    made.facts["measured"] = measured
    made.report()
    found = made.condition("KVTransferVerified")
    assert (found["status"], found["reason"]) == (status, reason)
    assert message in found["message"]


def test_reads_and_leases_are_counted_once_though_every_rank_counts_them(world: Build) -> None:
    """Routers end one lease in ten turns; of each, vLLM's eight workers on prefill count one that ran out."""
    made = world(prefill=TP8, decode=TP8)
    late = {**GOOD, "ended_leases": 10}
    read = {"transfers": 8 * 90, "transfer_seconds": 8 * 9.0, "transfer_bytes": 8 * 1.8e9, "failed_transfers": 8 * 2}
    made.facts["measured"] = seen(
        late,
        prefill=counters(870, expired=8 * 10, **read),
        decode=EngineCounters(expired=8 * 3, late_reads=8 * 5, failed_transfers=1),
    )
    made.report()
    assert made.condition("KVTransferVerified")["reason"] == Reason.VERIFIED
    told = made.latest["reuse"]["transfer"]
    assert (told["transfers"], told["expiries"], told["megabytesPerSecond"]) == (90, 3, 200)
    assert told["failures"] == 2 + 1, "one rank's failure is one, too"


P5EN = {"placement": {"instanceType": "p5en.48xlarge"}, "transfer": {"fabric": "EFA"}}
TP8 = {"replicas": 2, "tensorParallelSize": 8}
UNKNOWN_TYPE = {"transfer": {"fabric": "EFA"}, "prefill": {"replicas": 2, "gpus": 1}}
WIRES = {
    "published": (moved(6.0), P5EN, Reason.VERIFIED),
    "as over TCP": (moved(0.3), P5EN, Reason.TRANSPORT_FALLBACK),
    "just enough": (moved(1.51), P5EN, Reason.VERIFIED),
    "just too little": (moved(1.49), P5EN, Reason.TRANSPORT_FALLBACK),
    "too few to tell": (moved(0.3, transfers=4), P5EN, Reason.VERIFIED),
    "UCX may be what it is": (moved(0.3), {"transfer": {"fabric": "UCX"}}, Reason.VERIFIED),
    "another type": (moved(0.3), UNKNOWN_TYPE, Reason.TRANSPORT_FALLBACK),
    "another type, quicker": (moved(0.4), UNKNOWN_TYPE, Reason.VERIFIED),
    "only starts": (counters(transfers=100, transfer_bytes=1e6, transfer_seconds=1.5), P5EN, Reason.VERIFIED),
}


@pytest.mark.parametrize(("prefill", "spec", "reason"), WIRES.values(), ids=WIRES.keys())
@pytest.mark.parametrize("reads", [Role.PREFILL, Role.DECODE])
def test_what_carries_the_kv(
    world: Build, prefill: EngineCounters, spec: dict[str, Any], reason: str, reads: Role
) -> None:
    made = world(
        **{"prefill": TP8, "decode": TP8, **spec, **({"decode": spec["prefill"]} if "prefill" in spec else {})}
    )
    made.facts["measured"] = (
        seen(GOOD, prefill=prefill) if reads is Role.PREFILL else seen(GOOD, prefill=counters(), decode=prefill)
    )
    made.report()
    found = made.condition("KVTransferVerified")
    assert found["reason"] == reason
    if reason == Reason.TRANSPORT_FALLBACK:
        assert f"KV moves to {reads} at less than 3% of EFA's line rate" in found["message"]
        assert "LIBFABRIC" in found["message"]


FAULTS: dict[Reason, dict[str, Any]] = {
    Reason.GUARD_INACTIVE: {"engines": (P, replace(D, guard="absent"))},
    Reason.DECODE_ONLY: {"decode": computing(100, prompts=40)},
    Reason.EXPIRING: {"decode": EngineCounters(late_reads=8 * 50)},
    Reason.NO_TRANSFERS: {"prefill": counters(0)},
    Reason.TRANSPORT_FALLBACK: {"prefill": moved(0.1)},
}


@pytest.mark.parametrize(
    "faults",
    [names for number in range(1, len(FAULTS) + 1) for names in combinations(FAULTS, number)],
    ids="+".join,
)
def test_of_several_faults_the_first_is_told(world: Build, faults: tuple[Reason, ...]) -> None:
    """That without which the others cannot be judged."""
    changes = [FAULTS[reason] for reason in reversed(faults)]
    merged: dict[str, Any] = {name: value for change in changes for name, value in change.items()}
    if Reason.DECODE_ONLY in faults and Reason.EXPIRING in faults:
        merged["decode"] = replace(computing(100, prompts=40), late_reads=8 * 50)
    made = world(prefill=TP8, decode=TP8, **P5EN)
    made.facts["measured"] = seen(GOOD, **merged)
    made.report()
    assert made.condition("KVTransferVerified")["reason"] == faults[0]


def test_an_operator_that_has_just_started_takes_nothing_back(healthy: Build) -> None:
    world = healthy()
    world.wait(100)
    world.facts["measured"] = seen(GOOD)
    world.report()
    world.wait(100)
    world.facts["measured"] = seen(young=True)
    world.report()
    assert world.condition("KVTransferVerified")["reason"] == Reason.VERIFIED
    world.wait(600)
    world.facts["measured"] = seen()
    world.report()
    assert world.condition("KVTransferVerified")["reason"] == Reason.NO_TRAFFIC


def test_switched_off(healthy: Build) -> None:
    """What the spec alone decides is told at once, in both directions."""
    world = healthy(transfer={"bidirectional": False})
    world.facts["measured"] = seen(GOOD)
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
        world.facts["measured"] = seen(window)
        world.wait(5)
        if world.report() != before:
            written.append(second)
    assert written
    assert all(later - earlier >= 60 for earlier, later in pairwise(written))


def test_a_silent_router_takes_nothing_back(healthy: Build) -> None:
    """As right after a restart of the operator: what was known stays, and nothing is written."""
    world = healthy()
    world.wait(100)
    world.facts["measured"] = seen(GOOD)
    known = world.report()
    assert known["reuse"]["hitPercent"] == "87%"
    world.wait(100)
    world.facts["measured"] = None
    assert world.report() == known


def test_without_a_router_nothing_is_verified(healthy: Build) -> None:
    world = healthy()
    world.facts["measured"] = seen(GOOD)
    world.wait(100)
    world.report()
    world.wait(100)
    world.facts["measured"] = None
    world.change("chat-router-abc-0", ready=False)
    world.report()
    assert world.condition("KVTransferVerified")["reason"] == Reason.NO_TRAFFIC


def test_an_edit_does_not_age_what_was_verified(healthy: Build) -> None:
    world = healthy()
    world.wait(100)
    world.facts["measured"] = seen(GOOD)
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
