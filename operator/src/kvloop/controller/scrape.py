"""Reads what routers and engines count, in rounds, and keeps what it amounts to for each custom resource.

The routers' `/reuse` first; only where one answers, the engines' `/metrics`, of which a few lines are looked at. All of
it is bounded in time, in size and in number at a time, and done in some rounds only where nothing changes.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NoReturn

import aiohttp
from pydantic import ValidationError

from kvloop.api.contract import ReuseSummary
from kvloop.api.labels import ENGINE_HTTP, ROUTER_ADMIN, Role
from kvloop.controller import exposition
from kvloop.controller.cache import Cache, Key, PodEntry
from kvloop.controller.settings import (
    SCRAPE_BYTES,
    SCRAPE_CONCURRENCY,
    SCRAPE_LEAVING_SECONDS,
    SCRAPE_SLOWEST,
    SCRAPE_TIMEOUT_SECONDS,
)
from kvloop.controller.site import Site
from kvloop.plan.measured import Measured

log = logging.getLogger(__name__)

Fetch = Callable[[str], Awaitable[bytes]]
"""Reads the body of a URL; raises OSError, TimeoutError or aiohttp.ClientError."""

ROUTER: Final = "router"
"""The component of router pods."""
_FAILURES: Final = (OSError, TimeoutError, aiohttp.ClientError, ValueError)
"""No answer, or nonsense: whoever may create a resource chooses what its pods answer."""


class Scraper:
    """Keeps a site for every custom resource with routers, and tells of those whose numbers changed."""

    def __init__(
        self,
        cache: Cache,
        fetch: Fetch,
        changed: Callable[[Key], None],
        counted: Callable[[str, bool], None],
        window_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`counted` is told of each read: what was read (router or engine), and whether that went well.

        `clock` is monotonic, `wall` gives Unix seconds.
        """
        self._cache = cache
        self._fetch = fetch
        self._changed = changed
        self._counted = counted
        self._window_seconds = window_seconds
        self._clock = clock
        self._wall = wall
        self._sites: dict[Key, Site] = {}
        self._measured: dict[Key, Measured] = {}
        self._slots = asyncio.Semaphore(SCRAPE_CONCURRENCY)
        self._round = 0
        self._urgent: set[Key] = set()
        self._hurry = asyncio.Event()

    def measured(self, key: Key) -> Measured | None:
        """The last numbers; the same object until something changes."""
        return self._measured.get(key)

    def forget(self, key: Key) -> None:
        """Forget a resource that is gone."""
        self._sites.pop(key, None)
        self._measured.pop(key, None)

    def hurry(self, key: Key) -> None:
        """A pod of that resource is about to go, and what it has counted with it."""
        if key in self._sites:
            self._urgent.add(key)
            self._hurry.set()

    async def run(self, seconds: float) -> NoReturn:
        """A round every so many seconds, on average, and in between those pods that are about to go."""
        loop = asyncio.get_running_loop()
        while True:
            await self.scrape()
            end = loop.time() + seconds * random.uniform(0.9, 1.1)  # noqa: S311 (jitter)
            while (left := end - loop.time()) > 0:
                try:
                    await asyncio.wait_for(self._hurry.wait(), left)
                except TimeoutError:
                    break
                await self.scrape_leaving()
                await asyncio.sleep(SCRAPE_LEAVING_SECONDS)

    async def scrape(self) -> None:
        """Read all once, but for those that have had no news for a while: these in some rounds only."""
        self._round += 1
        await asyncio.gather(*(self._alone(key, self._resource(key)) for key in self._cache.resources()))

    async def scrape_leaving(self) -> None:
        """Read the pods that are about to go, again and again until they do not answer."""
        keys, self._urgent = self._urgent, set()
        self._hurry.clear()
        await asyncio.gather(*(self._alone(key, self._leaving(key)) for key in keys))

    async def _alone(self, key: Key, work: Awaitable[None]) -> None:
        """No failure gets out of a resource: the others are read, and the operator goes on."""
        try:
            await work
        except Exception:
            log.exception("its pods could not be read", extra=key.extra)

    async def _leaving(self, key: Key) -> None:
        site, pods = self._sites.get(key), [entry for entry in self._cache.pods(key) if entry.pod.deleting]
        if site is None:
            return
        leaving = [*filter(_answers, pods)]
        routers = [self._router(key, site, entry) for entry in leaving if entry.pod.component == ROUTER]
        engines = [self._engine(key, site, entry) for entry in leaving if entry.pod.is_engine]
        if any(await asyncio.gather(*routers, *engines)):
            site.pause = 1
            self.hurry(key)

    async def _resource(self, key: Key) -> None:
        resource, pods = self._cache.resource(key), self._cache.pods(key)
        routers = [entry for entry in pods if entry.pod.component == ROUTER]
        engines = [entry for entry in pods if entry.pod.is_engine]
        site = self._sites.get(key)
        if resource is None or (site is None and not any(map(_answers, routers))):
            return
        if site is None or site.uid != resource.uid:
            fresh = all(self._is_young(entry) for entry in (*routers, *engines))
            site = self._sites[key] = Site(resource.uid, self._window_seconds, self._clock, fresh)
        site.keep({entry.uid for entry in routers}, {entry.uid for entry in engines})
        if self._round % site.pause:
            return
        await self._read(key, site, [*filter(_answers, routers)], [*filter(_answers, engines)])
        self._settle(key, site, [entry.uid for entry in engines if _serves(entry)])

    async def _read(self, key: Key, site: Site, routers: Sequence[PodEntry], engines: Sequence[PodEntry]) -> None:
        answers = await asyncio.gather(*(self._router(key, site, entry) for entry in routers))
        if not any(answers):
            site.misses += 1
            return
        await asyncio.gather(*(self._engine(key, site, entry) for entry in engines))
        site.rounds, site.misses = site.rounds + 1, 0

    def _settle(self, key: Key, site: Site, ready: Sequence[str]) -> None:
        if self._sites.get(key) is not site:
            return  # forgotten meanwhile
        try:
            measured = site.measured(ready)
        except ValidationError as error:
            log.debug("what routers count adds up to nonsense: %s", error, extra=key.extra)
            measured = None
        if measured == self._measured.get(key):
            site.pause = min(2 * site.pause, SCRAPE_SLOWEST)
            return
        site.pause = 1
        if measured is None:
            self._measured.pop(key, None)
        else:
            self._measured[key] = measured
        self._changed(key)

    async def _router(self, key: Key, site: Site, entry: PodEntry) -> bool:
        try:
            summary = ReuseSummary.model_validate_json(await self._get(entry, ROUTER_ADMIN, "reuse"))
            if ours := summary.resource_uid == site.uid:
                site.hear_router(entry.uid, summary, young=self._is_young(entry))
            else:
                # Left by another resource of this name, or not told yet that it belongs to this one.
                log.debug("router %s counts for another resource", entry.pod.name, extra=key.extra)
        except _FAILURES as error:
            self._missed(key, entry, error)
            return False
        self._counted("router", True)
        return ours

    async def _engine(self, key: Key, site: Site, entry: PodEntry) -> bool:
        try:
            found = exposition.parse((await self._get(entry, ENGINE_HTTP, "metrics")).decode())
            site.hear_engine(entry.uid, entry.pod.name, Role(entry.pod.component), found, young=self._is_young(entry))
        except _FAILURES as error:
            self._missed(key, entry, error)
            site.miss_engine(entry.uid)
            return False
        self._counted("engine", True)
        return True

    async def _get(self, entry: PodEntry, port: int, path: str) -> bytes:
        host = f"[{entry.address}]" if ":" in entry.address else entry.address
        async with self._slots:
            return await self._fetch(f"http://{host}:{port}/{path}")

    def _missed(self, key: Key, entry: PodEntry, error: Exception) -> None:
        self._counted("router" if entry.pod.component == ROUTER else "engine", False)
        log.debug("pod %s did not tell its numbers: %r", entry.pod.name, error, extra=key.extra)

    def _is_young(self, entry: PodEntry) -> bool:
        """Whether all that the pod has counted has come within the window."""
        return self._wall() < entry.pod.created_at + self._window_seconds


def _serves(entry: PodEntry) -> bool:
    return entry.pod.ready and not entry.pod.deleting and bool(entry.address)


def _answers(entry: PodEntry) -> bool:
    """Whether the pod may tell its numbers; one that is on its way out, too, as long as it can."""
    return (entry.pod.ready or entry.pod.deleting) and bool(entry.address)


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
