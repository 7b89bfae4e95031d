"""Reads `/reuse` of every ready router, and adds up the answers by custom resource."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

import aiohttp
from pydantic import ValidationError

from kvloop.api.contract import EngineSummary, ReuseCounters, ReuseSummary
from kvloop.api.contract.summary import first_token_by_arm
from kvloop.api.counters import Flat, add, flat, nested
from kvloop.api.labels import ROUTER_ADMIN
from kvloop.controller.cache import Cache, Key, PodEntry
from kvloop.controller.settings import (
    SCRAPE_BYTES,
    SCRAPE_CONCURRENCY,
    SCRAPE_MISSES,
    SCRAPE_SLOWEST,
    SCRAPE_TIMEOUT_SECONDS,
)

log = logging.getLogger(__name__)

Fetch = Callable[[str], Awaitable[bytes]]
"""Reads the body of a URL; raises OSError, TimeoutError or aiohttp.ClientError."""

ROUTER = "router"
"""The component of router pods."""


@dataclass
class Routers:
    """Answers of one resource's routers, by uid of the pod.

    `silent` are the last answers of routers that no longer answer, `retired` the counts of those that are no more.
    `pause` is how many rounds there are from one read to the next: more while nothing changes.
    """

    answers: dict[str, ReuseSummary] = field(default_factory=dict)
    silent: dict[str, ReuseSummary] = field(default_factory=dict)
    misses: Counter[str] = field(default_factory=Counter)
    retired: ReuseCounters = field(default_factory=ReuseCounters)
    known: frozenset[str] = frozenset()
    pause: int = 1

    def keep(self, uids: frozenset[str]) -> None:
        """These are ready now; whoever is not is gone."""
        for uid in (self.answers.keys() | self.silent.keys()) - uids:
            self._retire(uid)
        if uids != self.known:
            self.known, self.pause = uids, 1

    def answered(self, uid: str, summary: ReuseSummary) -> None:
        """Take an answer; a router that has restarted counts from 0, so that its former counts are kept."""
        before = self.answers.get(uid) or self.silent.get(uid)
        if before and before.since != summary.since:
            self._retire(uid)
        self.silent.pop(uid, None)
        self.answers[uid] = summary
        del self.misses[uid]

    def missed(self, uid: str) -> None:
        """A router did not answer; its last answer stands for a few times."""
        self.misses[uid] += 1
        if self.misses[uid] >= SCRAPE_MISSES and uid in self.answers:
            self.silent[uid] = self.answers.pop(uid)

    def summary(self) -> ReuseSummary | None:
        """All of them together; None if none answers."""
        if not self.answers:
            return None
        silent = (each.counters for each in self.silent.values())
        return total(list(self.answers.values()), added([self.retired, *silent]))

    def _retire(self, uid: str) -> None:
        del self.misses[uid]
        for answers in (self.answers, self.silent):
            if last := answers.pop(uid, None):
                self.retired = added([self.retired, last.counters])


class Scraper:
    """Keeps a summary for every resource with ready routers, and tells of those that changed."""

    def __init__(
        self, cache: Cache, fetch: Fetch, changed: Callable[[Key], None], counted: Callable[[bool], None]
    ) -> None:
        self._cache = cache
        self._fetch = fetch
        self._changed = changed
        self._counted = counted
        self._routers: dict[Key, Routers] = {}
        self._summaries: dict[Key, ReuseSummary] = {}
        self._slots = asyncio.Semaphore(SCRAPE_CONCURRENCY)
        self._round = 0

    def summary(self, key: Key) -> ReuseSummary | None:
        """The last summary; the same object until something changes."""
        return self._summaries.get(key)

    def forget(self, key: Key) -> None:
        """Forget a resource that is gone."""
        self._routers.pop(key, None)
        self._summaries.pop(key, None)

    async def scrape(self) -> None:
        """Read all routers once, but for those that have had no news for a while: these in some rounds only."""
        self._round += 1
        await asyncio.gather(*(self._resource(key) for key in self._cache.resources()))

    async def _resource(self, key: Key) -> None:
        ready = [entry for entry in self._cache.pods(key) if _serves(entry)]
        if not ready and key not in self._routers:
            return
        routers = self._routers.setdefault(key, Routers())
        routers.keep(frozenset(entry.uid for entry in ready))
        if self._round % routers.pause:
            return
        await asyncio.gather(*(self._router(key, routers, entry) for entry in ready))
        summary = routers.summary()
        if summary == self._summaries.get(key):
            routers.pause = min(2 * routers.pause, SCRAPE_SLOWEST)
            return
        routers.pause = 1
        if summary is None:
            self._summaries.pop(key, None)
        else:
            self._summaries[key] = summary
        self._changed(key)

    async def _router(self, key: Key, routers: Routers, entry: PodEntry) -> None:
        host = f"[{entry.address}]" if ":" in entry.address else entry.address
        try:
            async with self._slots:
                text = await self._fetch(f"http://{host}:{ROUTER_ADMIN}/reuse")
            routers.answered(entry.uid, ReuseSummary.model_validate_json(text))
            self._counted(True)
        except (OSError, TimeoutError, aiohttp.ClientError, ValidationError) as error:
            routers.missed(entry.uid)
            self._counted(False)
            log.debug("router %s did not tell its reuse: %r", entry.pod.name, error, extra=key.extra)


def _serves(entry: PodEntry) -> bool:
    return entry.pod.component == ROUTER and entry.pod.ready and not entry.pod.deleting and bool(entry.address)


def fetcher(session: aiohttp.ClientSession) -> Fetch:
    """Reads over HTTP, bounded in time and size."""

    async def fetch(url: str) -> bytes:
        timeout = aiohttp.ClientTimeout(total=SCRAPE_TIMEOUT_SECONDS)
        async with session.get(url, timeout=timeout, allow_redirects=False) as answer:
            answer.raise_for_status()
            text = bytearray()
            async for part in answer.content.iter_any():
                text += part
                if len(text) > SCRAPE_BYTES:
                    raise aiohttp.ClientPayloadError(f"{url} answers more than {SCRAPE_BYTES} bytes")
            return bytes(text)

    return fetch


def total(summaries: Sequence[ReuseSummary], retired: ReuseCounters) -> ReuseSummary:
    """The sum of at least one summary.

    An engine is as the router knows it that has most to say for it.
    """
    engines: dict[str, EngineSummary] = {}
    for engine in (engine for each in summaries for engine in each.engines):
        best = engines.get(engine.address)
        if best is None or _rank(engine) > _rank(best):
            engines[engine.address] = engine
    window = added([each.window for each in summaries])
    return ReuseSummary(
        version=max(each.version for each in summaries),
        since=min(each.since for each in summaries),
        window_seconds=max(each.window_seconds for each in summaries),
        counters=added([retired, *(each.counters for each in summaries)]),
        window=window,
        first_token=first_token_by_arm(window),
        engines=[engines[address] for address in sorted(engines)],
    )


def _rank(engine: EngineSummary) -> tuple[bool, bool, bool]:
    return engine.healthy, engine.guard_active, engine.probed


def added(summands: Iterable[ReuseCounters]) -> ReuseCounters:
    """The sum, field by field and reason by reason."""
    numbers: Flat = {}
    for each in summands:
        add(numbers, flat(each.model_dump()))
    return ReuseCounters.model_validate(nested(numbers))
