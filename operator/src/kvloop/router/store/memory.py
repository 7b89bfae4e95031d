"""Handles in the router's own memory: bounded, oldest out first, every operation O(1)."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from kvloop.api.contract import Miss
from kvloop.router.store import Entry, Found


class MemoryStore:
    """A `Store` for one router.

    Beside the entries it keeps as many traces: why a key that once had an entry has none, at some hundred bytes each.
    """

    shared = False

    def __init__(self, max_conversations: int, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._most = max_conversations
        self._clock = clock
        self._entries: OrderedDict[bytes, tuple[Entry, float]] = OrderedDict()
        self._traces: OrderedDict[bytes, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    async def take(self, keys: Sequence[bytes]) -> Found:
        for key in keys:
            if (held := self._entries.pop(key, None)) is not None:
                entry, deadline = held
                if self._clock() < deadline:
                    self._trace(key, Miss.USED)
                    return Found(entry, key=key)
                self._trace(key, Miss.EXPIRED)
        for key in keys:
            if (reason := self._traces.get(key)) is not None:
                return Found(reason=reason, key=key)
        return Found()

    async def peek(self, key: bytes) -> Entry | None:
        held = self._entries.get(key)
        return held[0] if held is not None and self._clock() < held[1] else None

    async def put(self, key: bytes, entry: Entry, seconds: float) -> list[tuple[bytes, Entry]]:
        now = self._clock()
        self._traces.pop(key, None)
        older = self._entries.pop(key, None)
        self._entries[key] = (entry, now + seconds)
        self._sweep(now)
        dropped = [(key, older)] if older is not None else []
        while len(self._entries) > self._most:
            evicted = self._entries.popitem(last=False)
            self._trace(evicted[0], Miss.EVICTED)
            dropped.append(evicted)
        return [(old, held) for old, (held, deadline) in dropped if now < deadline]

    async def mark(self, key: bytes, reason: str) -> Entry | None:
        older = await self.peek(key)
        self._entries.pop(key, None)
        self._trace(key, reason)
        return older

    def close(self) -> None:
        """Nothing to let go of: it is all in this process."""

    def _sweep(self, now: float) -> None:
        """Forget what expired: every lease is as long as the others, so the oldest entries end first."""
        while self._entries:
            key = next(iter(self._entries))
            if now < self._entries[key][1]:
                return
            del self._entries[key]
            self._trace(key, Miss.EXPIRED)

    def _trace(self, key: bytes, reason: str) -> None:
        self._traces[key] = reason
        self._traces.move_to_end(key)
        while len(self._traces) > self._most:
            self._traces.popitem(last=False)
