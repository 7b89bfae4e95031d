"""Leases end as soon as nobody will come back: on the simulated engine, whose decode then frees the blocks at once."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from e2e.router.fakevalkey import FakeValkey
from e2e.router.harness import eventually, user
from e2e.router.sim import Fleet, leases
from e2e.router.talk import DIALECTS
from kvloop.router import leases as module

PROMPT = "Tell me about the tides of the northern sea. " * 14
FIRST: dict[str, Any] = {"model": "tiny", "messages": [user(PROMPT)], "max_tokens": 40}
NAMED = {"x-conversation-id": "c 1"}


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


async def ended(fleet: Fleet) -> None:
    await eventually(lambda: leases(fleet.decode[0]) == 0, "decode has freed the blocks")


async def follow(fleet: Fleet, reply: dict[str, Any], headers: dict[str, str] | None = None) -> dict[str, int]:
    """A follow-up, checked against a cold answer; returns the misses."""
    await fleet.turn({**FIRST, "messages": [*FIRST["messages"], reply, user("More")]}, headers=headers)
    return (await fleet.router.reuse()).counters.misses


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_last_turn_keeps_nothing(fleet: Fleet, dialect: Any, stream: bool) -> None:
    headers = {**NAMED, "x-conversation-end": "true"}
    reply = await fleet.turn(FIRST, dialect=dialect, stream=stream, headers=headers)
    await ended(fleet)
    assert await follow(fleet, reply, NAMED) == {"ended": 1}


async def test_a_conversation_can_be_ended(fleet: Fleet) -> None:
    reply = await fleet.turn(FIRST, headers=NAMED)
    url = fleet.router.url + "/v1/conversations/c%201"
    for deleted in (True, False):
        async with fleet.router.session.delete(url) as answer:
            assert await answer.json() == {"id": "c 1", "object": "conversation.deleted", "deleted": deleted}
    await ended(fleet)
    assert await follow(fleet, reply, NAMED) == {"used": 1}


async def test_another_tenant_cannot_end_it(fleet: Fleet) -> None:
    reply = await fleet.turn(FIRST, headers=NAMED)
    url = fleet.router.url + "/v1/conversations/c%201"
    async with fleet.router.session.delete(url, headers={"authorization": "Bearer mallory"}) as answer:
        assert not (await answer.json())["deleted"]
    assert await follow(fleet, reply, NAMED) == {}


async def test_after_lease_seconds_without_a_follow_up() -> None:
    async with Fleet(leaseSeconds=20) as fleet:
        reply = await fleet.turn(FIRST)
        fleet.clock.advance(19)
        assert leases(fleet.decode[0]) == 1
        fleet.clock.advance(2)
        await ended(fleet)
        assert await follow(fleet, reply) == {"lease_ended": 1}


async def test_the_oldest_when_they_hold_too_much() -> None:
    async with Fleet(maxPinnedPercent=1) as fleet:
        for i in range(20):
            await fleet.turn({**FIRST, "messages": [user(f"{i} {PROMPT}")]})
            fleet.clock.advance(0.1)
        engine = fleet.decode[0].frontend.engine
        most = 0.01 * engine.config.num_blocks * engine.config.block_size
        address = fleet.decode[0].url.removeprefix("http://")
        pinned = fleet.router.app.core.leases.pinned
        await eventually(lambda: pinned(address) <= most, "the share has fallen")
        tokens = pinned(address)
        assert 0 < tokens <= most
        await eventually(lambda: 0 < leases(fleet.decode[0]) < 20, "decode has freed the oldest")


async def test_of_an_engine_that_terminates(fleet: Fleet) -> None:
    """Open leases count as work in vLLM, which would wait for them until its shutdown timeout."""
    await fleet.turn(FIRST)
    pool = fleet.router.app.pool
    endpoints = [engine.endpoint for engine in pool.all()]
    pool.update([type(e)(e.role, e.address, e.revision, terminating=e.role == "decode") for e in endpoints])
    await ended(fleet)


async def test_what_no_turn_could_find_is_not_kept(fleet: Fleet) -> None:
    """A text prompt without a name, and the holdout."""
    completions = DIALECTS[1]
    status, _ = await fleet.router.post(completions.encode(FIRST), path=completions.path)
    assert status == 200
    await ended(fleet)
    async with Fleet(holdoutPercent=100) as other:
        await other.turn(FIRST)
        await ended(other)


async def test_an_entry_that_another_replaces(fleet: Fleet) -> None:
    await fleet.turn(FIRST)
    await fleet.turn(FIRST)
    await eventually(lambda: leases(fleet.decode[0]) == 1, "only the newer lease is left")


async def test_a_follow_up_at_the_same_moment_is_never_wrong() -> None:
    """Either the turn takes the handle, or the lease is ended: both is what would read freed blocks."""
    async with Fleet(leaseSeconds=20) as fleet:
        for i in range(25):
            first = {**FIRST, "messages": [user(f"{i} {PROMPT}")]}
            reply = await fleet.turn(first)
            fleet.clock.advance(20)
            await fleet.turn({**first, "messages": [*first["messages"], reply, user("More")]})
        counters = (await fleet.router.reuse()).counters
        assert counters.failed_transfers == 0
        assert counters.follow_ups == 25


async def test_of_a_router_that_ends(fleet: Fleet) -> None:
    """Its memory goes, and with it all that could have asked for the blocks."""
    for i in range(10):
        await fleet.turn({**FIRST, "messages": [user(f"{i} {PROMPT}")]})
    assert leases(fleet.decode[0]) == 10
    await fleet.router.app.core.leases.stop(10)
    await ended(fleet)


async def test_but_not_of_one_that_shares_its_store() -> None:
    async with FakeValkey() as server:
        shared = {"valkey": {"url": server.url, "timeoutSeconds": 5}}
        async with Fleet(store=shared) as fleet:
            await fleet.turn(FIRST)
            await fleet.router.app.core.leases.stop(10)
            assert leases(fleet.decode[0]) == 1
