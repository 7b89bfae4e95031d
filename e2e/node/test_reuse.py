"""Conversations through routers and engines in pods: what is reused, what is told of it, and every answer is right.

Several custom resources stand side by side in one namespace, each with another way of (not) reusing.
"""

import asyncio
import json

import pytest

from e2e.cluster import eventually
from e2e.node.harness import MODEL, NodeSite, Talk, metrics, restarts, wrong
from e2e.site import Body
from kvloop.cli.load import LoadError

pytestmark = pytest.mark.node

STATUS_S = 90
"""Longest wait for numbers in the status: all pods may have to be read first, in the fourth round at the latest."""


async def converse(site: NodeSite, name: str, conversations: int = 2, turns: int = 4) -> list[Talk]:
    """Conversations of some turns, at the same time; all answers are right."""
    async with site.client(name) as client:
        talks = [Talk(client, f"the {number}th moon") for number in range(conversations)]
        for _ in range(turns):
            await asyncio.gather(*(talk.say() for talk in talks))
    assert not await wrong([turn for talk in talks for turn in talk.turns])
    return talks


async def test_decode_kv_returns_to_prefill(fleet: NodeSite) -> None:
    """And the engines' own counters agree with what the router says."""
    talks = await converse(fleet, "chat")
    counters = fleet.reuse("chat").counters
    assert (counters.turns, counters.follow_ups, counters.reused_turns) == (8, 6, 6)
    assert counters.reused_tokens > 0.8 * counters.prompt_tokens
    ((prefill,), (decode,)) = ([metrics(pod) for pod in fleet.pods(role, "chat")] for role in ("prefill", "decode"))
    source = "vllm:prompt_tokens_by_source_total"
    asked = sum(turn.prompt_tokens for talk in talks for turn in talk.turns)
    assert prefill.sum(source, source="external_kv_transfer") == counters.reused_tokens
    assert prefill.sum(source, source="local_compute") == asked - counters.reused_tokens
    assert decode.sum(source, source="local_compute") == 8, "the last token of each prompt, and no more"
    assert decode.sum(source, source="external_kv_transfer") > 0
    assert (prefill.sum("vllm:nixl_bytes_transferred_count"), decode.sum("vllm:nixl_bytes_transferred_count")) == (6, 8)
    assert prefill.sum("vllm:nixl_bytes_transferred_sum") > 0
    for engine in (prefill, decode):
        assert not engine.sum("vllm:nixl_num_failed_transfers_total")
        assert not engine.sum("vllm:nixl_num_kv_expired_reqs_total")


async def test_the_url_in_the_status_answers_in_pods(fleet: NodeSite) -> None:
    (engine,) = fleet.pods("decode", "chat")
    url = fleet.status("chat")["url"] + "/v1/models"
    answer = fleet.python(engine, f"import urllib.request; print(urllib.request.urlopen({url!r}).read().decode())")
    assert json.loads(answer)["data"][0]["id"] == MODEL


async def test_the_guard_comes_by_config_map(fleet: NodeSite) -> None:
    """Row 27: in a stock image, as in that of the simulated engine, is nothing of kvloop."""
    for role, kv_role in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
        (engine,) = fleet.pods(role, "chat")
        (labels,) = metrics(engine).labels("kvloop_engine_info")
        assert (labels["active"], labels["role"]) == ("1", kv_role)
        assert labels["boot_id"] in {each.boot_id for each in fleet.reuse("chat").engines if each.guard_active}


async def test_without_the_guard_no_handle_is_used(fleet: NodeSite) -> None:
    """Row 27."""
    await converse(fleet, "unguarded")
    for pod in (*fleet.pods("prefill", "unguarded"), *fleet.pods("decode", "unguarded")):
        assert not metrics(pod).labels("kvloop_engine_info")
    summary = fleet.reuse("unguarded")
    assert not any(engine.guard_active for engine in summary.engines)
    assert (summary.counters.follow_ups, summary.counters.offered_tokens, summary.counters.reused_turns) == (6, 0, 0)
    (prefill,) = (metrics(pod) for pod in fleet.pods("prefill", "unguarded"))
    assert prefill.sum("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == 0


async def test_one_way_nothing_returns(fleet: NodeSite) -> None:
    await converse(fleet, "one-way")
    counters = fleet.reuse("one-way").counters
    assert (counters.reused_turns, counters.misses) == (0, {"disabled": 6})
    assert fleet.condition("KVTransferVerified", "one-way")["reason"] == "Disabled"


async def test_decode_answers_alone_where_that_is_wanted(fleet: NodeSite) -> None:
    """Row 15."""
    await converse(fleet, "decode-only")
    counters = fleet.reuse("decode-only").counters
    assert (counters.turns, counters.decode_only_turns) == (8, 8)
    assert fleet.condition("Available", "decode-only")["reason"] == "ScaledToZero"


async def test_without_prefill_a_turn_fails_where_that_is_wanted(fleet: NodeSite) -> None:
    async with fleet.client("strict") as client:
        with pytest.raises(LoadError, match=r"answered 503: .*[Nn]o prefill engine"):
            await Talk(client, "the moon").say()


async def test_an_edited_history_is_reused_up_to_the_edit(fleet: NodeSite) -> None:
    """Row 17's kind: what differs from what decode holds is computed."""
    async with fleet.client("chat") as client:
        talk = Talk(client, "tides")
        for _ in range(3):
            await talk.say(conversation_id="tides")
        talk.messages[3]["content"] = "Never mind."
        before = fleet.reuse("chat").counters.reused_tokens
        turn = await talk.say(conversation_id="tides")
        assert 0 < fleet.reuse("chat").counters.reused_tokens - before < turn.prompt_tokens - 100
        assert not await wrong(talk.turns)


async def test_thinking_that_is_not_sent_back(fleet: NodeSite) -> None:
    """Row 17: the prompt before it is reused nevertheless."""
    thinking: Body = {"chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 120}
    async with fleet.client("chat") as client:
        talk = Talk(client, "springs")
        before = fleet.reuse("chat").counters
        for _ in range(3):
            await talk.say(**thinking)
            thought, end, reply = talk.messages[-1]["content"].partition("</think>")
            assert (thought.startswith("<think>"), end) == (True, "</think>")
            talk.messages[-1]["content"] = reply.lstrip()
        assert not await wrong(talk.turns)
        assert fleet.reuse("chat").counters.reused_turns - before.reused_turns == 2


async def test_two_tenants_with_the_same_conversation(fleet: NodeSite) -> None:
    async with (
        fleet.client("chat", authorization="Bearer one") as one,
        fleet.client("chat", authorization="Bearer two") as two,
    ):
        mine, theirs = Talk(one, "wells"), Talk(two, "wells")
        await mine.say(conversation_id="wells")
        theirs.messages = [*mine.messages]
        before = fleet.reuse("chat").counters
        await theirs.say(conversation_id="wells")
        assert fleet.reuse("chat").counters.follow_ups == before.follow_ups, "to the router it is a first turn"
        await mine.say(conversation_id="wells")
        assert fleet.reuse("chat").counters.reused_turns == before.reused_turns + 1
        assert not await wrong([*mine.turns, *theirs.turns])


async def test_a_turn_sent_twice_is_reused_once(fleet: NodeSite) -> None:
    async with fleet.client("chat") as client:
        talk = Talk(client, "rivers")
        await talk.say()
        before = fleet.reuse("chat").counters
        again = [*talk.messages, {"role": "user", "content": "Go on."}]
        await asyncio.gather(talk.send(again), talk.send(again))
        after = fleet.reuse("chat").counters
        assert (after.follow_ups - before.follow_ups, after.reused_turns - before.reused_turns) == (2, 1)
        assert not await wrong(talk.turns)


async def test_a_changed_setting_reaches_the_router_without_a_restart(fleet: NodeSite) -> None:
    """Nor does it disturb the stream that runs meanwhile."""
    (router,) = fleet.pods("router", "one-way")
    async with fleet.client("one-way") as client:
        stream = asyncio.create_task(Talk(client, "patience").say(max_tokens=1500, ignore_eos=True))
        fleet.patch({"router": {"holdoutPercent": 100}}, "one-way")
        talk = Talk(client, "change")
        while "holdout" not in fleet.reuse("one-way").counters.misses:
            assert not stream.done(), "the setting did not come while the stream ran"
            # The kubelet brings a changed ConfigMap once a minute, and whenever the pod changes.
            fleet.edit("pod", router["metadata"]["name"], {"metadata": {"annotations": {"turn": str(len(talk.turns))}}})
            await talk.say(max_tokens=3)
        turn = await stream
        assert not await wrong([turn, *talk.turns])
    (same,) = fleet.pods("router", "one-way")
    assert (same["metadata"]["uid"], restarts(same)) == (router["metadata"]["uid"], 0)


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("chat", "True", "Verified"),
        ("one-way", "False", "Disabled"),
        ("unguarded", "False", "GuardInactive"),
        ("decode-only", "False", "DecodeOnly"),
    ],
)
def test_the_status_says_whether_kv_returns(fleet: NodeSite, name: str, status: str, reason: str) -> None:
    fleet.wait_for("KVTransferVerified", status, reason, name, STATUS_S)


def test_the_status_says_how_much_was_reused(fleet: NodeSite) -> None:
    window = fleet.reuse("chat").window

    def told() -> Body:
        reuse: Body = fleet.status("chat")["reuse"]
        assert reuse["turns"] == window.turns
        return reuse

    reuse = eventually(told, STATUS_S)
    percent = f"{100 * window.reused_tokens // window.prompt_tokens}%"
    assert (reuse["followUps"], reuse["reusedTurns"], reuse["hitPercent"]) == (
        window.follow_ups,
        window.reused_turns,
        percent,
    )
    header, *rows = (line.split() for line in fleet.kubectl("get", "di").splitlines())
    table = {row[0]: dict(zip(header, row, strict=False)) for row in rows}
    assert table["chat"] | {"AGE": ""} == {
        "NAME": "chat",
        "READY": "True",
        "REASON": "Ready",
        "PREFILL": "1/1",
        "DECODE": "1/1",
        "ROUTER": "1/1",
        "REUSE": percent,
        "AGE": "",
    }
    assert table["one-way"]["REUSE"] == table["unguarded"]["REUSE"] == "0%"
