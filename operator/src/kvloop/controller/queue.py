"""A keyed, level-driven work queue: a key says that something about an object may have changed, never what.

A key waits at most once and is worked on by one worker at a time; a key added meanwhile is worked on once more after.
Must be used within one event loop.
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)


class QueueMetrics(Protocol):
    """What the queue tells about itself."""

    def depth(self, keys: int) -> None:
        """Keys that wait."""

    def waited(self, seconds: float) -> None:
        """Time from the first addition of a key until a worker took it."""

    def retried(self) -> None:
        """A key failed, and comes again."""


@dataclass(frozen=True)
class Backoff:
    """Exponential delays with jitter, in seconds."""

    first: float
    limit: float

    def delay(self, failures: int) -> float:
        """Delay after this many failures in a row (1 or more)."""
        exact: float = min(self.first * 2 ** min(failures - 1, 30), self.limit)
        return exact * random.uniform(0.75, 1.25)  # noqa: S311 (jitter, so that failures of one cause do not come in step)


class WorkQueue(Generic[Key]):
    """See the module. `settle` is how long a key added by an event waits, in seconds, so that a burst is one work."""

    def __init__(self, backoff: Backoff, settle: float, metrics: QueueMetrics) -> None:
        self._backoff = backoff
        self._settle = settle
        self._metrics = metrics
        self._ready: OrderedDict[Key, float] = OrderedDict()
        self._timers: dict[Key, tuple[float, asyncio.Handle]] = {}
        self._running: set[Key] = set()
        self._dirty: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._wakeup = asyncio.Event()
        self._closed = False

    def add(self, key: Key) -> None:
        """Work on `key` soon."""
        self.add_after(key, self._settle)

    def add_after(self, key: Key, delay: float) -> None:
        """Work on `key` in `delay` seconds, or earlier if it is due earlier."""
        if self._closed or key in self._ready:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + delay
        if key in self._timers:
            planned, timer = self._timers[key]
            if planned <= when:
                return
            timer.cancel()
        self._timers[key] = (when, loop.call_later(delay, self._due, key))

    def retry(self, key: Key) -> float:
        """Work on `key` again after a failure; gives the delay, which grows with every failure in a row."""
        self._failures[key] = self._failures.get(key, 0) + 1
        delay = self._backoff.delay(self._failures[key])
        self.add_after(key, delay)
        self._metrics.retried()
        return delay

    def forget(self, key: Key) -> None:
        """Forget the failures of `key`."""
        self._failures.pop(key, None)

    def close(self) -> None:
        """Hand out nothing more; workers leave when their present key is done."""
        self._closed = True
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._ready.clear()
        self._wakeup.set()

    async def work(self, process: Callable[[Key], Awaitable[None]]) -> None:
        """Be a worker until the queue is closed. An exception of `process` is not handled here: it ends the worker."""
        while (key := await self._take()) is not None:
            try:
                await process(key)
            finally:
                self._done(key)
            await asyncio.sleep(0)  # a pass that wrote nothing has not waited for anything; let others run

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        if key in self._running:
            self._dirty.add(key)
            return
        self._ready.setdefault(key, asyncio.get_running_loop().time())
        self._wakeup.set()
        self._metrics.depth(len(self._ready))

    async def _take(self) -> Key | None:
        while not self._ready:
            if self._closed:
                return None
            self._wakeup.clear()
            await self._wakeup.wait()
        key, since = self._ready.popitem(last=False)
        self._running.add(key)
        # What was planned for later is done now: the worker looks at everything.
        if planned := self._timers.pop(key, None):
            planned[1].cancel()
        self._metrics.depth(len(self._ready))
        self._metrics.waited(asyncio.get_running_loop().time() - since)
        return key

    def _done(self, key: Key) -> None:
        self._running.discard(key)
        if key in self._dirty:
            self._dirty.discard(key)
            self.add_after(key, 0)
