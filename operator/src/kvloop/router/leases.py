"""Decode's leases: ended early where nobody will come back for the KV.

vLLM fixes a lease's length at its start and never ends one early, so an abandoned conversation holds decode's memory to
the end. A lease may be ended only once nobody can take its entry any more: a handle that is used after its blocks were
freed reads another request's KV. So an entry is always taken from the store first, as a turn would take it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from kvloop.api.contract import Miss
from kvloop.api.labels import Role
from kvloop.router import policy
from kvloop.router.strip import KV
from kvloop.router.wire.client import LegError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvloop.router.core import Core
    from kvloop.router.pool import Engine
    from kvloop.router.store import Entry

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
MARGIN_SECONDS = 10
"""A handle is forgotten this long before the lease ends: prefill declines its last 5 s, and may queue first."""
MAX_LEGS = 4
"""Leases that are ended at the same time."""
LEG_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Lease:
    """An entry that this router has put into the store."""

    decode: str
    tokens: int
    since: float
    handle: int
    """Hash of the handle, to know it again."""


class Leases:
    """What this router has put into the store, and which of it should be ended."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._leases: OrderedDict[bytes, Lease] = OrderedDict()
        self._pinned: dict[str, int] = {}
        self._legs = asyncio.Semaphore(MAX_LEGS)
        self._tasks: set[asyncio.Task[None]] = set()
        self.ended = 0
        """Leases that were ended so far."""
        self.on_release: Callable[[int, float], None] = lambda _tokens, _seconds: None
        """Called with the tokens of a lease that is over, and the seconds for which it was held."""
        self.on_ended: Callable[[], None] = lambda: None
        """Called when a lease was ended before its time."""
        self.usual_gap: Callable[[], float] = lambda: 0.0
        """Median gap between turns, in seconds; 0 where unknown."""

    def pinned(self, decode: str) -> int:
        """Tokens that the decode engine at that address holds for this router's conversations."""
        return self._pinned.get(decode, 0)

    def keep(self, key: bytes, entry: Entry, dropped: Sequence[tuple[bytes, Entry]] = ()) -> None:
        """An entry was put into the store, which has dropped others for it: their leases are ended."""
        self.forget(key)
        for old, held in dropped:
            self.forget(old)
            self.end(held)
        self._leases[key] = Lease(entry.decode, entry.tokens, self._core.clock(), hash(entry.handle))
        self._pinned[entry.decode] = self.pinned(entry.decode) + entry.tokens

    def forget(self, key: bytes) -> float | None:
        """The key's entry was taken, or has gone; returns for how many seconds decode held it, if it was ours."""
        lease = self._leases.pop(key, None)
        if lease is None:
            return None
        left = self._pinned[lease.decode] - lease.tokens
        if left:
            self._pinned[lease.decode] = left
        else:
            del self._pinned[lease.decode]
        held = self._core.clock() - lease.since
        self.on_release(lease.tokens, held)
        return held

    def end(self, entry: Entry) -> None:
        """End the lease of an entry that nobody can take any more."""
        task = asyncio.ensure_future(self._end(entry))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end_conversation(self, key: bytes) -> bool:
        """Forget a conversation that its client has ended; returns whether there was anything to forget."""
        self.forget(key)
        found = await self._core.store.take((key,))
        if found.entry is not None:
            self.end(found.entry)
        return found.entry is not None

    async def mark(self, key: bytes, reason: str) -> None:
        """A turn ended here and left no handle; another's that was there is lost, so its lease is ended."""
        if (lost := await self._core.store.mark(key, reason)) is not None:
            self.forget(key)
            self.end(lost)

    async def run(self) -> None:
        """End what should be ended, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for key in self.due():
                if not await self._is_anothers(key):
                    await self._take_and_end(key)

    async def stop(self, seconds: float) -> None:
        """End all leases whose handles go down with this router, as far as the time allows."""
        keys = [] if self._core.store.shared else list(self._leases)
        for key in keys:
            await self._take_and_end(key)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def due(self) -> list[bytes]:
        """Keys whose leases should be ended: too old, too much of decode's memory, or on an engine that terminates.

        Of an engine that holds too much, those go first that have waited longer than half of all gaps do: few are still
        wanted. Then the newest, since the others are wanted sooner: to end the oldest of conversations that take turns
        would end each one just before its next turn.
        """
        config, now = self._core.config, self._core.clock()
        ttl = config.transfer.decoder_kv_blocks_ttl_seconds - MARGIN_SECONDS
        late = now - min(config.lease_seconds or ttl, ttl)
        excess = self._excess()
        stale = max(late, now - self.usual_gap()) if excess else late
        due = []
        for key, lease in self._leases.items():
            if lease.since > (stale if excess else late):
                break
            if lease.since <= late or lease.decode in excess:
                due.append(key)
                _relieve(excess, lease)
        for key, lease in reversed(self._leases.items()):
            if not excess or lease.since <= stale:
                break
            if lease.decode in excess:
                due.append(key)
                _relieve(excess, lease)
        return due

    def _excess(self) -> dict[str, float]:
        """Tokens to be freed, by decode engine: only engines with any."""
        excess = {}
        for decode, tokens in self._pinned.items():
            engine = self._core.pool.get(Role.DECODE, decode)
            if engine is None:
                continue  # nobody would ask for its entries
            most = self._core.config.max_pinned_percent / 100 * engine.info.capacity_tokens
            if engine.endpoint.terminating:
                excess[decode] = float(tokens)  # vLLM waits for its leases before it ends
            elif engine.info.capacity_tokens and tokens > most:
                excess[decode] = tokens - most
        return excess

    async def _is_anothers(self, key: bytes) -> bool:
        """Whether another router has served a later turn of the conversation: it ends what that turn left."""
        if not self._core.store.shared or (lease := self._leases.get(key)) is None:
            return False
        entry = await self._core.store.peek(key)
        if entry is None or hash(entry.handle) == lease.handle:
            return False
        self.forget(key)
        return True

    async def _take_and_end(self, key: bytes) -> None:
        if await self.end_conversation(key):
            await self.mark(key, Miss.LEASE_ENDED)

    async def _end(self, entry: Entry) -> None:
        """A leg of one token with nothing to read: prefill tells decode that it is done with the blocks."""
        async with self._legs:
            engine = self._choose(entry)
            if engine is None:
                return
            handle = orjson.loads(entry.handle)
            handle["remote_num_tokens"] = 0
            body = orjson.dumps({"prompt": [1], "max_tokens": 1, "temperature": 0, "stream": False, KV: handle})
            try:
                status = await self._send(engine, body)
            except LegError as error:
                log.info("a lease runs on until its end: %s", error)
                return
            if status == 200:
                self.ended += 1
                self.on_ended()
            else:
                log.info("a lease runs on until its end: prefill answered %d", status)

    async def _send(self, engine: Engine, body: bytes) -> int:
        core = self._core
        connection = await core.upstream.connect(engine.address, core.config.deadlines.connect_seconds)
        try:
            sent = {"content-type": "application/json", "x-request-id": core.new_id()}
            connection.send("POST", "/v1/completions", sent, body, LEG_SECONDS)
            await connection.read()
            return connection.status
        finally:
            connection.release()

    def _choose(self, entry: Entry) -> Engine | None:
        pool = self._core.pool
        engines = [
            engine
            for engine in pool.usable(Role.PREFILL)
            if engine.revision == entry.revision and engine.info.guard_active and pool.pair_allows(engine, entry.decode)
        ]
        return policy.choose_prefill(engines, prefer="")


def _relieve(excess: dict[str, float], lease: Lease) -> None:
    """Take a lease off what its engine holds too much; an engine that then does not is taken out."""
    left = excess.pop(lease.decode, 0.0) - lease.tokens
    if left > 0:
        excess[lease.decode] = left
