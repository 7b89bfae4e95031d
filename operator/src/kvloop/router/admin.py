"""The admin port: for the operator, Prometheus and the kubelet."""

from collections.abc import Callable
from dataclasses import dataclass

import prometheus_client
from aiohttp import web
from prometheus_client import CollectorRegistry

from kvloop.router.core import Core
from kvloop.router.summary import Summary


@dataclass(frozen=True)
class Admin:
    """What the admin port tells and does."""

    core: Core
    summary: Summary
    registry: CollectorRegistry
    drain: Callable[[], None]
    """Makes the router not ready; everything is still served."""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/reuse", self._reuse)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/health", self._alive)
        app.router.add_get("/ready", self._ready)
        app.router.add_post("/drain", self._drain)
        return app

    async def _reuse(self, _: web.Request) -> web.Response:
        return web.Response(body=self.summary.make().model_dump_json(by_alias=True), content_type="application/json")

    async def _metrics(self, _: web.Request) -> web.Response:
        body = prometheus_client.generate_latest(self.registry)
        return web.Response(body=body, headers={"content-type": prometheus_client.CONTENT_TYPE_LATEST})

    async def _alive(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.core.alive else 503)

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.core.ready else 503)

    async def _drain(self, _: web.Request) -> web.Response:
        self.drain()
        return web.Response(status=202)
