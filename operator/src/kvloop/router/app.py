"""The running router: puts the parts together, keeps the engines known, and ends without cutting a stream."""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable, Coroutine

import aiohttp
from aiohttp import web

from kvloop.api.contract import MemoryStore as MemoryConfig
from kvloop.api.contract import RouterConfig
from kvloop.router import accesslog
from kvloop.router.admin import Admin
from kvloop.router.core import Core
from kvloop.router.endpoints import static
from kvloop.router.endpoints.slices import SliceSource
from kvloop.router.frontend import Frontend
from kvloop.router.metrics import Metrics
from kvloop.router.outcome import Outcome
from kvloop.router.pool import Endpoint, Engine, Pool
from kvloop.router.probe import probe
from kvloop.router.store.memory import MemoryStore
from kvloop.router.summary import Summary
from kvloop.router.tally import Tally
from kvloop.router.wire.client import Upstream
from kvloop.router.wire.server import Server

log = logging.getLogger(__name__)


class App:
    """One router. `start`, then `stop`; not to be started again."""

    def __init__(self, config: RouterConfig, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic, in seconds; leases and the window follow it."""
        self.config = config
        self.metrics = Metrics()
        self.tally = Tally(config.window_seconds, clock)
        self.pool = Pool()
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._runner: web.AppRunner
        self._server: Server
        self._session: aiohttp.ClientSession
        self.core: Core
        self.port = self.admin_port = 0
        """As bound, once started."""

    async def start(self) -> None:
        """Listen, and learn who the engines are. Returns when requests can be served."""
        config = self.config
        self._session = aiohttp.ClientSession()
        memory = config.store.memory or MemoryConfig()
        self.core = Core(
            config,
            self.pool,
            MemoryStore(memory.max_conversations, self._clock),
            Upstream(),
            self._record,
            self._clock,
        )
        self._server = Server(Frontend(self.core).handle, self._clock, config.limits.max_request_bytes)
        self.port = await self._server.start(config.listen.host, config.listen.port)
        admin = Admin(self.core, Summary(self.tally, self.pool), self.metrics.registry, self.drain)
        self.admin_port = await self._start_admin(admin.app(), config.admin.host, config.admin.port)
        if config.endpoints.static is not None:
            self._update(static.endpoints(config.endpoints.static))
        elif config.endpoints.endpoint_slices is not None:
            self._spawn(SliceSource(config.endpoints.endpoint_slices, self._session, self._update).run())
        self._spawn(self._probe_all())
        log.info("serving on port %d, admin on port %d", self.port, self.admin_port)

    def drain(self) -> None:
        """Not ready from now on; everything is still served."""
        self.core.ready = False

    async def stop(self) -> None:
        """Finish what runs, within `drainSeconds`, and close."""
        self.drain()
        await self._server.stop(self.config.drain_seconds)
        with contextlib.suppress(TimeoutError):  # prefill legs whose clients have left
            await asyncio.wait_for(self.pool.no_legs(), self.config.deadlines.prefill_seconds)
        await self._runner.cleanup()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.core.upstream.close()
        await self._session.close()

    async def _start_admin(self, app: web.Application, host: str, port: int) -> int:
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, host or None, port).start()
        return int(self._runner.addresses[0][1])

    def _record(self, outcome: Outcome) -> None:
        self.tally.add(outcome)
        self.metrics.observe(outcome)
        if self.config.access_log:
            accesslog.write(sys.stdout.buffer, outcome)

    def _update(self, endpoints: list[Endpoint]) -> None:
        for engine in self.pool.update(endpoints):
            self._spawn(self._probe(engine))
        self.core.ready = True

    async def _probe_all(self) -> None:
        while True:
            await asyncio.sleep(self.config.probe_seconds)
            await asyncio.gather(*(self._probe(engine) for engine in self.pool.all()))

    async def _probe(self, engine: Engine) -> None:
        await probe(self._session, engine)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
