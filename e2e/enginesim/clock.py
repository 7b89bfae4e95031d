"""Time as the simulated engine sees it: real, or moved by hand in tests."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """Seconds since an arbitrary start, like vLLM's ``perf_counter``: of no meaning to another process."""

    def now(self) -> float: ...
    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer: ...


class RealClock:
    """The event loop's time plus an offset of its own, so that nobody can take it for wall-clock time."""

    def __init__(self) -> None:
        self._offset = 1000.0 + time.time() % 997

    def now(self) -> float:
        return time.perf_counter() + self._offset

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay, callback)


class ManualClock:
    """Stands still until `advance`, which runs what has come due, in order."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._order = itertools.count()
        self._due: list[tuple[float, int, _Entry]] = []

    def now(self) -> float:
        return self._now

    @property
    def pending(self) -> int:
        """Timers that have not run yet and were not cancelled."""
        return sum(entry.active for _, _, entry in self._due)

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        entry = _Entry(callback)
        heapq.heappush(self._due, (self._now + delay, next(self._order), entry))
        return entry

    def advance(self, seconds: float) -> None:
        end = self._now + seconds
        while self._due and self._due[0][0] <= end:
            when, _, entry = heapq.heappop(self._due)
            self._now = max(self._now, when)
            entry.run()
        self._now = end


class _Entry:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    @property
    def active(self) -> bool:
        return self._callback is not None

    def cancel(self) -> None:
        self._callback = None

    def run(self) -> None:
        if self._callback is not None:
            self._callback()


async def pause(clock: Clock, seconds: float) -> None:
    """Sleep on `clock`; no time at all if `seconds` is not positive."""
    if seconds <= 0:
        return
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_later(seconds, partial(_resolve, done))
    try:
        await done
    finally:
        timer.cancel()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
