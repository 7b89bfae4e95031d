"""Turns beyond the engines' room: they wait in order, and not for ever."""

import asyncio

import pytest

from kvloop.api.contract import CircuitBreaker, Limits
from kvloop.api.labels import Role
from kvloop.router.admission import Admission
from kvloop.router.errors import RefusalError
from kvloop.router.pool import Endpoint, Engine, Pool

LIMITS = Limits(max_turns_per_engine=1, max_queued_turns=3, queue_seconds=60)


class Door:
    """One decode engine with room for one turn."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.pool = Pool(lambda: 0.0, CircuitBreaker())
        self.admission = Admission(self.pool)
        (self.engine,) = self.pool.update([Endpoint(Role.DECODE, "d", "r")])
        self.limits = limits
        self.served: list[int] = []

    def choose(self) -> Engine | None:
        return self.engine if self.engine.in_flight < 1 else None

    async def turn(self, number: int) -> None:
        await self.admission.bind(self.choose, self.limits)
        self.served.append(number)

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def test_turns_are_served_in_order() -> None:
    door = Door()
    tasks = [asyncio.ensure_future(door.turn(i)) for i in range(4)]
    for served in range(1, 5):
        await door.settle()
        assert door.served == list(range(served))
        assert len(door.admission) == 4 - served
        door.pool.end(door.engine)
    await asyncio.gather(*tasks)


async def test_beyond_the_queue_is_429_at_once() -> None:
    door = Door()
    tasks = [asyncio.ensure_future(door.turn(i)) for i in range(4)]
    await door.settle()
    with pytest.raises(RefusalError) as refused:
        await door.turn(5)
    assert (refused.value.status, refused.value.retry_after) == (429, 60)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_waiting_has_an_end() -> None:
    door = Door(Limits(max_turns_per_engine=1, max_queued_turns=3, queue_seconds=0.01))
    await door.turn(0)
    with pytest.raises(RefusalError) as refused:
        await door.turn(1)
    assert refused.value.status == 429
    assert len(door.admission) == 0


async def test_who_leaves_the_queue_passes_the_place_on() -> None:
    door = Door()
    await door.turn(0)
    leaves, stays = (asyncio.ensure_future(door.turn(i)) for i in (1, 2))
    await door.settle()
    door.pool.end(door.engine)
    leaves.cancel()  # woken, but not yet running
    await asyncio.wait_for(stays, 5)
    assert door.served == [0, 2]


async def test_waiters_hear_of_no_engine_at_all() -> None:
    door = Door()
    await door.turn(0)

    def none_left() -> Engine | None:
        if not door.pool.usable(Role.DECODE):
            raise RefusalError(503, "none")
        return door.choose()

    waiting = asyncio.ensure_future(door.admission.bind(none_left, LIMITS))
    await door.settle()
    door.pool.update([])
    with pytest.raises(RefusalError) as refused:
        await waiting
    assert refused.value.status == 503
