"""HTTP towards clients."""

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from kvloop.router import dialects, passthrough, turn
from kvloop.router.core import Core, Incoming
from kvloop.router.errors import RefusalError

CORE: Final = web.AppKey("core", Core)


class _Reply:
    """A `Reply` on aiohttp."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response: web.StreamResponse | None = None

    async def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.response = web.Response(status=status, headers=headers, body=body)

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        response = web.StreamResponse(status=status, headers=headers)
        self.response = response
        await response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        if self.response is None:
            raise RuntimeError("write before start")
        await self.response.write(data)

    async def end(self) -> None:
        if self.response is not None:
            await self.response.write_eof()


async def _handle(request: web.Request) -> web.StreamResponse:
    core, reply = request.app[CORE], _Reply(request)
    arrived = core.clock()
    dialect = dialects.BY_PATH.get(request.path) if request.method == "POST" else None
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        refusal = RefusalError(413, f"The request body is larger than {core.config.limits.max_request_bytes} bytes.")
        return web.Response(status=413, headers=refusal.headers(), body=refusal.body(dialect))
    incoming = Incoming(request.method, request.path_qs, request.headers, body, arrived)
    if dialect is not None:
        await turn.serve(core, dialect, incoming, reply)
    else:
        await passthrough.serve(core, incoming, reply)
    if reply.response is None:
        raise RuntimeError("a turn ended without an answer")
    return reply.response


async def _alive(_: web.Request) -> web.Response:
    return web.Response()


async def _ready(request: web.Request) -> web.Response:
    return web.Response(status=200 if request.app[CORE].ready else 503)


def make(core: Core) -> web.Application:
    """The client port."""
    app = web.Application(client_max_size=core.config.limits.max_request_bytes)
    app[CORE] = core
    app.router.add_get("/health", _alive)
    app.router.add_get("/ready", _ready)
    app.router.add_route("*", "/{path:.*}", _handle)
    return app
