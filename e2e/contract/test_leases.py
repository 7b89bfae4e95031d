"""Who holds which blocks for how long, and what a handle is."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from e2e.contract.client import FIRST, Client, eventually
from e2e.contract.engines import BLOCK, LEASE_S, TTL_S, Engines, Setup

if TYPE_CHECKING:
    from e2e.contract.client import Answer

COMMON = {
    "do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host",
    "remote_port", "tp_size", "dcp_size", "pp_size", "remote_num_tokens", "remote_blocks_expiry_time", "transfer_mode",
}  # fmt: skip


async def test_both_handles_have_every_field(engines: Engines, client: Client) -> None:
    turn = await client.turn(engines.prefill, engines.decode[0], client.tokens(268), max_tokens=40)
    p, d = turn.prefill.handle or {}, turn.handle
    assert set(p) == COMMON | {"remote_prefill_cached_tokens", "prompt_digest"}
    assert set(d) == COMMON | {"guard"}
    assert (p["do_remote_prefill"], p["do_remote_decode"]) == (True, False)
    assert (d["do_remote_prefill"], d["do_remote_decode"]) == (False, True)
    assert (p["remote_num_tokens"], len(p["remote_block_ids"][0])) == (268, 9)
    assert (d["remote_num_tokens"], len(d["remote_block_ids"][0])) == (307, 10)
    assert p["remote_blocks_expiry_time"] is None
    assert isinstance(d["remote_blocks_expiry_time"], float)
    assert p["remote_engine_id"] != d["remote_engine_id"]
    assert p["remote_request_id"].startswith(turn.prefill.body["id"] + "-")
    assert p["transfer_mode"] == d["transfer_mode"] == "pull"


@pytest.mark.parametrize("params", [None, {}, {"do_remote_prefill": False}, {"do_remote_decode": False}, {"x": 1}])
async def test_a_decode_engine_pins_nothing_that_nobody_would_free(
    engines: Engines, client: Client, params: dict[str, Any] | None
) -> None:
    """Parameters for neither direction would pin for ever, see test_unguarded."""
    answer = await client.complete(engines.decode[0], client.tokens(100), params, 8)
    assert answer.body["kv_transfer_params"] is None
    assert await client.pinned(engines.decode[0]) == 0


async def decode_leg(engines: Engines, client: Client, max_tokens: int, **more: Any) -> Answer:
    prompt = client.tokens(200)
    first = await client.complete(engines.prefill, prompt, dict(FIRST))
    return await client.complete(engines.decode[0], prompt, first.handle, max_tokens, **more)


async def test_ends_that_give_a_handle(engines: Engines, client: Client) -> None:
    by_length = await decode_leg(engines, client, 20)
    assert (by_length.body["choices"][0]["finish_reason"], by_length.handle is not None) == ("length", True)
    prompt = client.tokens(200)
    whole = await client.turn(engines.prefill, engines.decode[0], prompt, max_tokens=20)
    stop = whole.tokens[9]
    stopped = await client.turn(engines.prefill, engines.decode[0], prompt, max_tokens=20, stop_token_ids=[stop])
    choice = stopped.decode.body["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert stopped.tokens == whole.tokens[: whole.tokens.index(stop) + 1]
    assert stopped.handle["remote_num_tokens"] == 200 + len(stopped.tokens) - 1


async def test_a_stop_string_gives_none_and_pins_nothing(engines: Engines, client: Client) -> None:
    whole = await decode_leg(engines, client, 40)
    await client.turn(engines.prefill, engines.decode[0], client.tokens(5), whole.handle)  # ends that lease
    before = await client.pinned(engines.decode[0])
    stopped = await decode_leg(engines, client, 200, stop=["a", "e", "i", "o"])
    choice = stopped.body["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"] in "aeio") == ("stop", True)
    assert not set(choice["text"]) & set("aeio")
    assert stopped.handle is None

    async def settled() -> bool:
        return await client.pinned(engines.decode[0]) == before

    await eventually(settled, "the stopped request's blocks freed")


async def test_a_client_that_hangs_up_leaves_nothing_pinned(engines: Engines, client: Client) -> None:
    prompt = client.tokens(200)
    first = await client.complete(engines.prefill, prompt, dict(FIRST))
    body = {
        "model": client.model, "prompt": prompt, "max_tokens": 3000, "ignore_eos": True, "stream": True,
        "kv_transfer_params": first.handle,
    }  # fmt: skip
    async with aclosing(client.events(engines.decode[0], "/v1/completions", body)) as events:
        assert isinstance(await anext(events), dict)

    async def freed() -> bool:
        return await client.pinned(engines.decode[0]) == 0

    await eventually(freed, "the aborted request's blocks freed")


@pytest.mark.parametrize("setup", [Setup(decode_bidirectional=False)])
async def test_a_decode_engine_without_bidirectional_transfer_gives_none(engines: Engines, client: Client) -> None:
    answer = await decode_leg(engines, client, 20)
    assert answer.body["kv_transfer_params"] is None


async def test_a_handle_is_used_once(engines: Engines, client: Client) -> None:
    first = client.tokens(300)
    one = await client.turn(engines.prefill, engines.decode[0], first)
    prompt = first + one.tokens + client.tokens(30)
    late = "vllm:nixl_num_notifications_after_expiry_total"
    before = await client.metric(engines.decode[0], late)
    two = await client.turn(engines.prefill, engines.decode[0], prompt, one.handle, max_tokens=12)
    again = await client.turn(engines.prefill, engines.decode[0], prompt, one.handle, max_tokens=12)
    assert again.prefill.report == {"offered": 339, "verified": 0, "reason": "already_read"}
    assert two.tokens == again.tokens == await client.cold(engines.prefill, prompt, 12)
    assert await client.metric(engines.decode[0], late) == before


async def test_a_prefills_handle_is_used_once_too(engines: Engines, client: Client) -> None:
    prompt = client.tokens(300)
    first = await client.complete(engines.prefill, prompt, dict(FIRST))
    read = await client.complete(engines.decode[0], prompt, first.handle, 12)
    again = await client.complete(engines.decode[0], prompt, first.handle, 12)
    assert read.tokens == again.tokens == await client.cold(engines.prefill, prompt, 12)
    assert read.handle is not None
    assert again.handle is None


async def test_of_two_branches_at_the_same_time_one_reads(engines: Engines, client: Client) -> None:
    first = client.tokens(300)
    one = await client.turn(engines.prefill, engines.decode[0], first)
    prompts = [first + one.tokens + client.tokens(30) for _ in range(2)]
    answers = await asyncio.gather(*(client.complete(engines.prefill, p, one.handle) for p in prompts))
    reports = [a.report or {} for a in answers]
    assert sorted((r["verified"], r["reason"]) for r in reports) == [(0, "already_read"), (339, "match")]
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.tokens == await client.cold(engines.prefill, prompt, 1)


async def test_of_several_choices_one_reads(engines: Engines, client: Client) -> None:
    first = client.tokens(300)
    one = await client.turn(engines.prefill, engines.decode[0], first)
    prompt = first + one.tokens + client.tokens(30)
    source = {"source": "external_kv_transfer"}
    before = await client.metric(engines.prefill, "vllm:prompt_tokens_by_source_total", **source)
    answer = await client.complete(engines.prefill, prompt, one.handle, n=2, temperature=1, top_k=1)
    assert [c["token_ids"] for c in answer.body["choices"]] == [await client.cold(engines.prefill, prompt, 1)] * 2
    assert await client.metric(engines.prefill, "vllm:prompt_tokens_by_source_total", **source) - before == 339


@pytest.mark.parametrize("gone_s", [TTL_S - 6, TTL_S - 4, TTL_S - 1])
async def test_the_last_five_seconds_of_a_lease_are_not_read(engines: Engines, client: Client, gone_s: float) -> None:
    first = client.tokens(300)
    one = await client.turn(engines.prefill, engines.decode[0], first)
    await engines.pass_time(gone_s)
    prompt = first + one.tokens + client.tokens(30)
    answer = await client.complete(engines.prefill, prompt, one.handle)
    readable = gone_s < TTL_S - 5
    assert answer.status == (200 if readable else 500)
    assert await client.metric(engines.prefill, "vllm:nixl_num_kv_expired_reqs_total") == (0 if readable else 1)
    if not readable:
        assert answer.body == {
            "error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
        }
        retried = await client.complete(engines.prefill, prompt, dict(FIRST))
        assert retried.tokens == await client.cold(engines.prefill, prompt, 1)


async def test_leases_end_by_themselves(engines: Engines, client: Client) -> None:
    prompt = client.tokens(300)
    await client.complete(engines.prefill, prompt, dict(FIRST))
    await client.turn(engines.prefill, engines.decode[0], prompt)
    blocks = -(-300 // BLOCK)
    assert await client.pinned(engines.decode[0]) == -(-339 // BLOCK)
    assert await client.pinned(engines.prefill) == blocks  # the leg that no decode engine came for

    await engines.pass_time(LEASE_S + 1)
    assert await client.pinned(engines.prefill) == 0
    assert await client.pinned(engines.decode[0]) == -(-339 // BLOCK)
    await engines.pass_time(TTL_S - LEASE_S)
    assert await client.pinned(engines.decode[0]) == 0


async def test_a_lease_is_ended_by_a_one_token_leg_with_nothing_to_read(engines: Engines, client: Client) -> None:
    one = await client.turn(engines.prefill, engines.decode[0], client.tokens(300))
    handle = {**one.handle, "remote_num_tokens": 0}
    assert (await client.complete(engines.prefill, client.tokens(1), handle)).status == 200

    async def freed() -> bool:
        return await client.pinned(engines.decode[0]) == 0

    await eventually(freed, "the lease ended")


async def test_a_decode_leg_refused_for_its_length_lets_the_prefills_blocks_go(
    engines: Engines, client: Client
) -> None:
    first = await client.complete(engines.prefill, client.tokens(300), dict(FIRST))
    refused = await client.complete(engines.decode[0], client.tokens(5000), first.handle)
    assert refused.status == 400
    assert refused.body["error"]["type"] == "BadRequestError"

    async def freed() -> bool:
        return await client.pinned(engines.prefill) == 0

    await eventually(freed, "the lease ended")


async def test_a_handle_that_lost_its_leases_end_is_not_read(engines: Engines, client: Client) -> None:
    first = client.tokens(300)
    one = await client.turn(engines.prefill, engines.decode[0], first)
    prompt = first + one.tokens + client.tokens(30)
    handle = {**one.handle, "remote_blocks_expiry_time": None}
    two = await client.turn(engines.prefill, engines.decode[0], prompt, handle, max_tokens=12)
    assert two.prefill.report == {"offered": 339, "verified": 0, "reason": "no_expiry"}
    assert two.tokens == await client.cold(engines.prefill, prompt, 12)


@pytest.mark.parametrize("setup", [Setup(vllm_version="0.24.0")])
async def test_before_vllm_026_handles_have_no_expiry_and_are_not_read(engines: Engines, client: Client) -> None:
    first = client.tokens(300)
    one = await client.turn(engines.prefill, engines.decode[0], first)
    assert "remote_blocks_expiry_time" not in one.handle
    prompt = first + one.tokens + client.tokens(30)
    two = await client.turn(engines.prefill, engines.decode[0], prompt, one.handle, max_tokens=12)
    assert two.prefill.report == {"offered": 339, "verified": 0, "reason": "no_expiry"}
    assert two.tokens == await client.cold(engines.prefill, prompt, 12)
