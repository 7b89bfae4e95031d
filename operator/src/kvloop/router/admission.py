"""Room on the decode engines: turns beyond it wait in one bounded queue, and beyond that are refused."""

import asyncio
from collections import deque
from collections.abc import Callable

from kvloop.api.contract import Limits
from kvloop.router.errors import RefusalError
from kvloop.router.pool import Engine, Pool


class Admission:
    """Binds turns to decode engines, first come, first served."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting: deque[asyncio.Future[None]] = deque()
        pool.on_room = self._wake

    def __len__(self) -> int:
        """Turns that wait."""
        return len(self._waiting)

    def check(self, limits: Limits) -> None:
        """Raise `RefusalError` if another turn could not even wait."""
        if len(self._waiting) >= max(1, limits.max_queued_turns):
            raise _busy(limits)

    async def bind(self, choose: Callable[[], Engine | None], limits: Limits) -> Engine:
        """Bind a turn to the engine that `choose` finds; it finds None while all are full.

        The caller must `end` it at the pool. Raises `RefusalError`.
        """
        engine = None if self._waiting else choose()
        if engine is None:
            engine = await self._queue(choose, limits)
        self._pool.begin(engine)
        return engine

    async def _queue(self, choose: Callable[[], Engine | None], limits: Limits) -> Engine:
        if len(self._waiting) >= limits.max_queued_turns:
            raise _busy(limits)
        try:
            async with asyncio.timeout(limits.queue_seconds):
                at_head = False
                while True:
                    await self._wait(at_head=at_head)
                    if (engine := choose()) is not None:
                        return engine
                    at_head = True
        except TimeoutError as error:
            raise _busy(limits) from error
        finally:
            self._wake()  # what woke this turn may be of use to the next

    async def _wait(self, *, at_head: bool) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if at_head:
            self._waiting.appendleft(place)
        else:
            self._waiting.append(place)
        try:
            await place
        finally:
            if place in self._waiting:
                self._waiting.remove(place)

    def _wake(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return


def _busy(limits: Limits) -> RefusalError:
    return RefusalError(429, "All decode engines are busy; try again soon.", retry_after=round(limits.queue_seconds))
