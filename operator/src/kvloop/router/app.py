"""The running router: puts the parts together, keeps the engines known, and ends without cutting a stream."""

import asyncio
import contextlib
import logging
import ssl
import sys
import time
from collections.abc import Callable, Coroutine

import aiohttp
from aiohttp import web

from kvloop.api.contract import TLS, Endpoints, RouterConfig
from kvloop.api.contract import MemoryStore as MemoryConfig
from kvloop.api.contract import Store as StoreConfig
from kvloop.router import accesslog, tracing
from kvloop.router.admin import Admin
from kvloop.router.admission import Admission
from kvloop.router.apikeys import ApiKeys
from kvloop.router.conversations import Conversations
from kvloop.router.core import Core
from kvloop.router.endpoints import static
from kvloop.router.endpoints.slices import SliceSource
from kvloop.router.frontend import Frontend
from kvloop.router.metrics import Metrics
from kvloop.router.outcome import Arm, Outcome
from kvloop.router.pool import Endpoint, Engine, Pool
from kvloop.router.probe import probe
from kvloop.router.store import Store
from kvloop.router.store.memory import MemoryStore
from kvloop.router.store.resp import Client
from kvloop.router.store.valkey import ValkeyStore
from kvloop.router.summary import Summary
from kvloop.router.tally import Tally
from kvloop.router.wire.client import Upstream
from kvloop.router.wire.server import Server

log = logging.getLogger(__name__)

MARGIN_SECONDS = 5.0
"""For each of the last two steps of stopping; the pod's grace period leaves 15 s beyond `drainSeconds`."""


class App:
    """One router. `start`, then any number of `apply`, then `stop`; not to be started again."""

    def __init__(self, config: RouterConfig, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic, in seconds; leases and the window follow it."""
        self.config = config
        self.metrics = Metrics()
        self.tally = Tally(config.window_seconds, clock)
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._source: asyncio.Task[None] | None = None
        self._tls: ssl.SSLContext | None = None
        self.port = self.admin_port = 0
        """As bound, once started."""

    async def start(self) -> None:
        """Listen, and begin to learn who the engines are. Raises OSError where a port or a certificate is missing."""
        config = self.config
        self.pool = Pool(self._clock, config.circuit_breaker)
        self.pool.on_suspect = self._suspect
        self._session = aiohttp.ClientSession()
        self.core = Core(
            config,
            self.pool,
            Admission(self.pool),
            self._make_store(config.store),
            Upstream(self.pool.suspect_address),
            ApiKeys(config.api_keys_folder) if config.api_keys_folder is not None else None,
            self._record,
            self._clock,
            Conversations(self._clock, self._finished),
            tracing.from_environment(),
        )
        self.core.leases.on_release = self.tally.released
        self.core.leases.on_ended = self.tally.ended
        self.core.leases.usual_gap = self.tally.usual_gap
        self.metrics.follow(self.core)
        if config.listen.tls is not None:
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._load_certificate(config.listen.tls)
        self._server = Server(Frontend(self.core).handle, self._clock, config.limits.max_request_bytes)
        self.port = await self._server.start(config.listen.host, config.listen.port, self._tls)
        admin = Admin(self.core, Summary(self.tally, self.core), self.metrics.registry, self.drain)
        self.admin_port = await self._start_admin(admin.app(), config.admin.host, config.admin.port)
        self._follow(config.endpoints)
        self._keep_running(self._probe_all())
        self._keep_running(self.core.leases.run())
        log.info("serving on port %d, admin on port %d", self.port, self.admin_port)

    def apply(self, config: RouterConfig) -> None:
        """Go over to another configuration; running turns keep the one they began with.

        Raises OSError where the certificate cannot be read; nothing has changed then.
        """
        if config.listen.tls is not None:
            self._load_certificate(config.listen.tls)
        old, self.config = self.config, config
        if (config.listen, config.admin) != (old.listen, old.admin):
            log.warning("changes of listen and admin take effect after a restart")
        self.core.config = config
        self.pool.settings = config.circuit_breaker
        self._server.max_body = config.limits.max_request_bytes
        self._load_keys()
        if config.resource_uid != old.resource_uid:
            self.tally.restart(config.window_seconds)  # what was counted is another resource's
        elif config.window_seconds != old.window_seconds:
            self.tally.resize(config.window_seconds)
        if config.store != old.store:
            self.core.store.close()
            self.core.store = self._make_store(config.store)
        if config.endpoints != old.endpoints:
            self._follow(config.endpoints)

    def _load_keys(self) -> None:
        folder, keys = self.config.api_keys_folder, self.core.api_keys
        if folder is None:
            self.core.api_keys = None
        elif keys is not None and keys.folder == folder:
            keys.load()
        else:
            self.core.api_keys = ApiKeys(folder)

    def drain(self) -> None:
        """Not ready from now on; everything is still served."""
        self.core.ready = False
        self.core.draining = True

    async def stop(self) -> None:
        """Finish what runs, within `drainSeconds`, free what decode keeps for nobody then, and close."""
        self.drain()
        loop = asyncio.get_running_loop()
        end = loop.time() + self.config.drain_seconds
        await self._server.stop(self.config.drain_seconds)
        with contextlib.suppress(TimeoutError):  # prefill legs whose clients have left
            await asyncio.wait_for(self.pool.idle(), max(MARGIN_SECONDS, end - loop.time()))
        await self.core.leases.stop(MARGIN_SECONDS)
        await self._runner.cleanup()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.core.store.close()
        self.core.upstream.close()
        if self.core.tracing is not None:
            await asyncio.to_thread(self.core.tracing.close)
        await self._session.close()

    async def _start_admin(self, app: web.Application, host: str, port: int) -> int:
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, host or None, port).start()
        return int(self._runner.addresses[0][1])

    def _make_store(self, config: StoreConfig) -> Store:
        if config.valkey is not None:
            return ValkeyStore(Client(config.valkey), self.metrics.observe_store)
        return MemoryStore((config.memory or MemoryConfig()).max_conversations, self._clock)

    def _load_certificate(self, tls: TLS) -> None:
        if self._tls is not None:
            self._tls.load_cert_chain(tls.cert_file, tls.key_file)

    def _follow(self, endpoints: Endpoints) -> None:
        """Learn the engines from this source, and no longer from the one before."""
        if self._source is not None:
            self._source.cancel()
            self._source = None
        if endpoints.static is not None:
            self._update(static.endpoints(endpoints.static))
        elif endpoints.endpoint_slices is not None:
            source = SliceSource(endpoints.endpoint_slices, self._session, self._update)
            self._source = self._keep_running(source.run())

    def _update(self, endpoints: list[Endpoint]) -> None:
        for engine in self.pool.update(endpoints):
            self._spawn(self._probe(engine))
        self.core.ready = not self.core.draining

    async def _probe_all(self) -> None:
        while True:
            await asyncio.sleep(self.config.probe_seconds)
            await asyncio.gather(*(self._probe(engine) for engine in self.pool.all()))

    def _suspect(self, engine: Engine) -> None:
        self._spawn(self._probe(engine))

    async def _probe(self, engine: Engine) -> None:
        was_usable = engine.usable
        await probe(self._session, engine)
        if engine.usable and not was_usable:
            self.pool.on_room()

    def _record(self, outcome: Outcome) -> None:
        self.tally.add(outcome)
        self.metrics.observe(outcome)
        if self.config.access_log:
            accesslog.write(sys.stdout.buffer, outcome)

    def _finished(self, arm: Arm, turns: int, seconds: float) -> None:
        self.tally.finished(arm, turns, seconds)
        self.metrics.finished(arm, turns, seconds)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _keep_running(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run what must never end by itself: if it does, the router is not alive."""
        task = self._spawn(work)
        task.add_done_callback(self._look_at_end)
        return task

    def _look_at_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            log.error("a part of the router has ended; it should be restarted", exc_info=task.exception())
            self.core.alive = False
