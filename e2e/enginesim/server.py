"""The engine as a server: routes, start, and vLLM's way of ending."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Self

from aiohttp import web

from e2e.enginesim.api import chat, common, completions, messages, responses, utility
from e2e.enginesim.clock import Clock, RealClock, pause
from e2e.enginesim.frontend import Frontend, installed_plugin
from e2e.enginesim.sidechannel import TransferError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import ModuleType, TracebackType

    from e2e.enginesim.config import Config

log = logging.getLogger("enginesim")

_MAX_BODY = 256 * 1024 * 1024


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except common.ApiError as error:
        return common.json_response(error.body, error.status)
    except web.HTTPException as error:
        body = {"message": error.reason, "type": error.reason, "param": None, "code": error.status}
        return common.json_response({"error": body}, error.status)
    except (TransferError, Exception):
        log.exception("request failed")
        return common.json_response(common.internal_error().body, 500)


def application(frontend: Frontend) -> web.Application:
    app = web.Application(middlewares=[_errors], client_max_size=_MAX_BODY)
    app[common.FRONTEND] = frontend
    app.add_routes(
        [
            web.post("/v1/chat/completions", chat.handle),
            web.post("/v1/completions", completions.handle),
            web.post("/v1/messages", messages.handle),
            web.post("/v1/messages/count_tokens", messages.count_tokens),
            web.post("/v1/responses", responses.handle),
            web.get("/v1/models", utility.models),
            web.post("/tokenize", utility.tokenize),
            web.post("/detokenize", utility.detokenize),
            web.post("/reset_prefix_cache", utility.reset_prefix_cache),
            web.get("/health", utility.health),
            web.route("*", "/ping", utility.health),
            web.get("/load", utility.load),
            web.get("/version", utility.version),
            web.get("/metrics", utility.metrics),
        ]
    )
    return app


class EngineSim:
    """A simulated engine in this process: ``async with EngineSim(config) as engine: engine.url``.

    Port 0, for HTTP and the side channel alike, lets the system choose. `plugin` is kvloop's guard module with its
    version, or None for plain vLLM; by default it is looked up as vLLM looks up its plugins.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock | None = None,
        plugin: tuple[ModuleType, str] | str | None = "installed",
    ) -> None:
        self.config = config
        self.clock = clock or RealClock()
        self._plugin = installed_plugin() if isinstance(plugin, str) else plugin
        self.frontend = Frontend(config, self.clock, self._plugin)
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self.port = config.port

    @property
    def url(self) -> str:
        host = {None: "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.config.host, self.config.host or "")
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def start(self) -> None:
        await self.frontend.engine.start()
        self._runner = runner = web.AppRunner(
            application(self.frontend), handler_cancellation=True, access_log=None, shutdown_timeout=0.1
        )
        await runner.setup()
        self._site = web.TCPSite(runner, self.config.host or "0.0.0.0", self.config.port)
        await self._site.start()
        self.port = runner.addresses[0][1]

    async def stop(self) -> None:
        """End at once, as by SIGKILL: open connections are cut."""
        if self._runner is not None:
            await self._runner.cleanup()
        await self.frontend.engine.stop()

    async def terminate(self) -> None:
        """End as by SIGTERM: see `drain`."""
        await self.drain()
        await self.stop()

    def take_no_more(self) -> None:
        """Answer no new requests from now on, if there is time to drain."""
        if self.config.shutdown_timeout > 0:
            self.frontend.draining.set()

    async def drain(self) -> None:
        """Wait as vLLM does on SIGTERM.

        With ``--shutdown-timeout``: running streams finish, new requests are accepted but not answered, open leases
        count as work, and after the timeout the end comes anyway. Without it: the listener closes, and streams that
        are open get neither another byte nor an end until their clients hang up.
        """
        engine = self.frontend.engine
        self.take_no_more()
        if self.config.shutdown_timeout > 0:
            idle = asyncio.create_task(engine.wait_until(lambda: not engine.busy))
            limit = asyncio.create_task(pause(self.clock, self.config.shutdown_timeout))
            _, late = await asyncio.wait((idle, limit), return_when=asyncio.FIRST_COMPLETED)
            for task in late:
                task.cancel()
            return
        self.frontend.frozen.set()
        if self._site is not None:
            await self._site.stop()
        await engine.wait_until(lambda: engine.load == 0)

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(self.start())
        try:
            await asyncio.shield(starting)  # asyncio loses the sockets of a server whose start is cancelled
        except BaseException:
            await asyncio.wait([starting])
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
