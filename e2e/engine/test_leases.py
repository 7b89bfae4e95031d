"""Leases and aborted legs in real time."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

import pytest

from e2e.contract.client import FIRST, Client, eventually
from e2e.contract.test_faults import INTERNAL
from e2e.engine.fleet import LEASE_S, TTL_S

if TYPE_CHECKING:
    from e2e.engine.fleet import RealEngines

pytestmark = pytest.mark.engine

EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
MARGIN_S = 5
UNREACHABLE = "192.0.2.1"  # of a block reserved for documentation (RFC 5737): no answer, no refusal


async def first_turn(engines: RealEngines, client: Client) -> tuple[list[int], dict[str, Any]]:
    """A next prompt and the handle for it."""
    first = client.tokens(300)
    one = await client.turn(engines.prefill, engines.decode[0], first)
    return first + one.tokens + client.tokens(30), one.handle


@pytest.mark.parametrize("left_s", [MARGIN_S + 3, MARGIN_S - 1])
async def test_the_last_five_seconds_of_a_lease_are_not_read(
    engines: RealEngines, client: Client, left_s: float
) -> None:
    """The end that the handle names is moved, not the clock; the decode engine keeps its blocks for as long as ever."""
    prompt, handle = await first_turn(engines, client)
    handle["remote_blocks_expiry_time"] -= TTL_S - left_s
    before = await client.metric(engines.prefill, EXPIRED)
    answer = await client.complete(engines.prefill, prompt, handle)
    if left_s > MARGIN_S:
        assert answer.tokens == await client.cold(engines.prefill, prompt, 1)
        assert answer.report == {"offered": 339, "verified": 339, "reason": "match"}
        return
    assert (answer.status, answer.body) == (500, INTERNAL)
    retried = await client.complete(engines.prefill, prompt, dict(FIRST))
    assert retried.tokens == await client.cold(engines.prefill, prompt, 1)

    async def counted() -> bool:
        return await client.metric(engines.prefill, EXPIRED) == before + 1

    await eventually(counted, "the declined read counted")


async def test_leases_end_by_themselves(engines: RealEngines, client: Client) -> None:
    began = time.monotonic()
    prompt, _ = await first_turn(engines, client)
    await client.complete(engines.prefill, prompt, dict(FIRST))  # a leg that no decode engine comes for
    assert await client.pinned(engines.prefill) == -(-len(prompt) // engines.block)
    assert await client.pinned(engines.decode[0]) == -(-339 // engines.block)

    async def free(url: str) -> bool:
        return await client.pinned(url) == 0

    await eventually(lambda: free(engines.prefill), "prefill's lease ended", 2 * TTL_S)
    assert time.monotonic() - began > LEASE_S - 2  # not by the way, but in its time
    await eventually(lambda: free(engines.decode[0]), "decode's lease ended", 2 * TTL_S)
    assert time.monotonic() - began > TTL_S - 2
    client.leases.clear()


async def works(engines: RealEngines, client: Client) -> None:
    prompt, handle = await first_turn(engines, client)
    two = await client.turn(engines.prefill, engines.decode[0], prompt, handle, max_tokens=12)
    assert two.prefill.report == {"offered": 339, "verified": 339, "reason": "match"}
    assert two.tokens == await client.cold(engines.prefill, prompt, 12)


async def test_a_prefill_leg_that_is_hung_up_while_it_waits_for_blocks_harms_nobody(
    engines: RealEngines, client: Client
) -> None:
    """A handshake with an engine that is not known yet takes up to 5 s; the client leaves meanwhile."""
    prompt, handle = await first_turn(engines, client)
    hostile = {**handle, "remote_host": UNREACHABLE, "remote_engine_id": "nobody"}
    leg = asyncio.create_task(client.complete(engines.prefill, prompt, hostile))

    async def waits() -> bool:
        stage = await client.metric(engines.prefill, "vllm:num_requests_waiting")
        return stage == 1 or leg.done()

    await eventually(waits, "the leg waits for its blocks")
    assert not leg.done()
    leg.cancel()
    with suppress(asyncio.CancelledError):
        await leg
    await works(engines, client)


async def test_a_decode_leg_that_is_hung_up_ends_both_leases(engines: RealEngines, client: Client) -> None:
    prompt = client.tokens(300)
    first = await client.complete(engines.prefill, prompt, dict(FIRST))
    body = {
        "model": client.model, "prompt": prompt, "max_tokens": 3000, "ignore_eos": True, "stream": True,
        "kv_transfer_params": first.handle,
    }  # fmt: skip
    async with aclosing(client.events(engines.decode[0], "/v1/completions", body)) as events:
        assert isinstance(await anext(events), dict)
    client.leases.clear()

    async def freed() -> bool:
        return await client.pinned(engines.decode[0]) == await client.pinned(engines.prefill) == 0

    await eventually(freed, "both engines' blocks freed", LEASE_S / 2)
    await works(engines, client)
