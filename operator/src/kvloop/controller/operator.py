"""The running operator, put together: what the watches feed, what works in the background, how it starts and stops."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

import aiohttp

from kvloop.controller.apply import Applier
from kvloop.controller.audit import Audit
from kvloop.controller.cache import Cache, Key
from kvloop.controller.canary import Canary
from kvloop.controller.endpoints import Endpoints
from kvloop.controller.events import Poster
from kvloop.controller.metrics import Metrics
from kvloop.controller.nodes import Nodes
from kvloop.controller.queue import Backoff, WorkQueue
from kvloop.controller.reconcile import Reconciler
from kvloop.controller.scrape import Scraper, fetcher
from kvloop.controller.settings import (
    BACKOFF_FIRST_SECONDS,
    BACKOFF_LIMIT_SECONDS,
    PAGE_SIZE,
    STOP_SECONDS,
    Settings,
    plan_config,
)
from kvloop.controller.warnings import Warnings
from kvloop.kube.client import KubeClient
from kvloop.kube.dynamic import connect
from kvloop.kube.kinds import CHILDREN, CUSTOM_RESOURCE, LEASE, POD, POD_MONITOR, Kind
from kvloop.kube.transport import Timing

log = logging.getLogger(__name__)

Body = Mapping[str, Any]


class NotInstalledError(RuntimeError):
    """The API server does not know the custom resource."""


class Operator:
    """Everything that lives as long as the process. Made by `start`; then `run` and at last `stop`."""

    def __init__(
        self,
        settings: Settings,
        kube: KubeClient,
        http: aiohttp.ClientSession,
        metrics: Metrics,
        children: tuple[Kind, ...],
    ) -> None:
        backoff = Backoff(BACKOFF_FIRST_SECONDS, BACKOFF_LIMIT_SECONDS)
        self.cache = metrics.cache
        self.children = children
        self.queue: WorkQueue[Key] = WorkQueue(backoff, settings.settle_seconds, metrics)
        self._settings = settings
        self._kube = kube
        self._http = http
        self._metrics = metrics
        self._canary = Canary(kube, settings.canary_namespace, settings.pod_name, settings.canary_seconds)
        metrics.follow(lambda: self._canary.age)
        self._audit = Audit(kube, self.cache, (CUSTOM_RESOURCE, POD, *children), settings.namespace, self.queue.add)
        self._scraper = Scraper(self.cache, fetcher(http), self.queue.add, metrics.scraped, settings.window_seconds)
        self._endpoints = Endpoints(metrics.registry, self.check, (settings.metrics_port, settings.liveness_port))
        self._filled = False
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()

    @classmethod
    async def start(cls, settings: Settings) -> "Operator":
        """Connect, and serve /metrics and /healthz.

        Raises:
            UnavailableError: there are no credentials, or the API server does not answer.
            NotInstalledError: the CRD is missing.
        """
        metrics = Metrics(Cache())
        kube = await connect(timing(settings), metrics.requested)
        try:
            operator = cls(settings, kube, aiohttp.ClientSession(), metrics, await _served(kube))
        except BaseException:
            await kube.close()
            raise
        log.info("serving /metrics and /healthz on ports %s", await operator._endpoints.start())
        return operator

    def see(self, body: Body) -> None:
        """Take an object from a watch."""
        if body["kind"] == LEASE.kind:
            self._canary.hear(body)
            return
        for key in self.cache.see(body):
            self.queue.add(key)
            if body["kind"] == POD.kind and "deletionTimestamp" in body["metadata"]:
                self._scraper.hurry(key)

    def forget(self, body: Body) -> None:
        """Take an object from a watch as deleted."""
        for key in self.cache.forget(body) if body["kind"] != LEASE.kind else ():
            self.queue.add(key)

    def check(self) -> float:
        """Age of the canary, in seconds. Raises `DeafError`."""
        return self._canary.check()

    async def run(self) -> None:
        """Work until `stop`. Ends with an exception as soon as any part of it dies: then the process must end.

        Raises:
            ExceptionGroup: with what the part died of, such as a `DeafError`, or a `NotFoundError` without the CRD.
        """
        try:
            async with asyncio.TaskGroup() as group:
                canary = group.create_task(_every(self._settings.canary_seconds, self._canary.sing), name="canary")
                serve = group.create_task(self._serve(), name="serve")
                await self._stopping.wait()
                if self._filled:
                    await asyncio.wait([serve], timeout=STOP_SECONDS)
                canary.cancel()
                serve.cancel()
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Hand out no more work, let running passes end, and close everything. `run` must have begun."""
        self.queue.close()
        self._stopping.set()
        await self._ended.wait()
        await self._endpoints.stop()
        await self._http.close()
        await self._kube.close()

    async def _serve(self) -> None:
        await self._audit.fill()
        self._filled = True
        log.info("serving %d resources", len(self.cache.resources()))
        reconciler = self._reconciler()
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(self._scraper.run(self._settings.scrape_seconds), name="scraper"),
                group.create_task(_every(self._settings.resync_seconds, self._resync), name="resync"),
            ]
            workers = range(self._settings.workers)
            await asyncio.wait([group.create_task(self.queue.work(reconciler), name=f"worker {n}") for n in workers])
            for task in background:
                task.cancel()

    def _reconciler(self) -> Reconciler:
        return Reconciler(
            kube=self._kube,
            cache=self.cache,
            queue=self.queue,
            applier=Applier(self._kube, self.cache),
            poster=Poster(self._kube),
            scraper=self._scraper,
            warnings=Warnings(self._kube, self.cache),
            nodes=Nodes(self._kube, readable=not self._settings.namespace),
            metrics=self._metrics,
            status_seconds=self._settings.status_seconds,
            config=plan_config(self._settings, pod_monitors=POD_MONITOR in self.children),
        )

    async def _resync(self) -> None:
        await self._audit.check()
        for key in self.cache.resources():
            self.queue.add_after(key, random.uniform(0, self._settings.resync_seconds / 2))  # noqa: S311 (jitter)


def timing(settings: Settings) -> Timing:
    """Patience of the client."""
    return Timing(
        request_seconds=settings.request_seconds,
        connect_seconds=10,  # a server that does not answer a SYN by then is gone
        attempts=4,
        backoff_seconds=0.2,
        backoff_limit_seconds=10,
        page_size=PAGE_SIZE,
        connections=settings.workers + 4,  # the workers, and audit, canary and scraper beside them
    )


async def _served(kube: KubeClient) -> tuple[Kind, ...]:
    """Kinds of children that this cluster knows."""
    if not await kube.serves(CUSTOM_RESOURCE.api_version):
        name = f"{CUSTOM_RESOURCE.plural}.{CUSTOM_RESOURCE.group}"
        raise NotInstalledError(f"the CustomResourceDefinition {name} is not installed: apply it first")
    return tuple([kind for kind in CHILDREN if not kind.optional or await kube.serves(kind.api_version)])


async def _every(seconds: float, work: Callable[[], Awaitable[None]]) -> NoReturn:
    """Do something at once and then again and again, `seconds` apart on average."""
    while True:
        await work()
        await asyncio.sleep(seconds * random.uniform(0.9, 1.1))  # noqa: S311 (jitter)
