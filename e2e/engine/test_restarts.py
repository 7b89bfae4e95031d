"""Engines that die and come back, once for all cases: each start takes a minute."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from e2e.contract.client import FIRST, Client, eventually
from e2e.contract.test_faults import INTERNAL, first_turn, works

if TYPE_CHECKING:
    from e2e.engine.fleet import RealEngines

pytestmark = pytest.mark.engine

FAILED = "vllm:nixl_num_failed_transfers_total"


async def fails(engines: RealEngines, client: Client, prompt: list[int], handle: dict[str, Any], **more: Any) -> None:
    """The leg fails at once, and the same one without the handle works."""
    answer = await client.complete(engines.prefill, prompt, handle, **more)
    if more:
        assert answer.events == [INTERNAL, "[DONE]"]
    else:
        assert (answer.status, answer.body) == (500, INTERNAL)
    retried = await client.complete(engines.prefill, prompt, dict(FIRST))
    assert retried.tokens == await client.cold(engines.prefill, prompt, 1)


async def test_engines_that_die_and_come_back(engines: RealEngines, client: Client) -> None:
    await works(engines, client)
    turns = [await first_turn(engines, client) for _ in range(3)]
    client.leases.clear()
    before = await client.metric(engines.prefill, FAILED)
    await engines.kill(engines.decode[0])
    await fails(engines, client, *turns[0])
    await fails(engines, client, *turns[1], stream=True)

    async def counted() -> bool:
        return await client.metric(engines.prefill, FAILED) == before + 2

    await eventually(counted, "two failed transfers")

    await engines.kill(engines.prefill)
    client.leases.clear()
    # All at once, and with them the one that test_unguarded needs next.
    await asyncio.to_thread(engines.fleet.start, "prefill", "decode", "unguarded")
    prompt, old = turns[2]
    old["remote_blocks_expiry_time"] += 3600  # not for its age: for the engine that it names
    await fails(engines, client, prompt, old)
    again = await works(engines, client)
    assert again.handle["remote_engine_id"] != old["remote_engine_id"]
