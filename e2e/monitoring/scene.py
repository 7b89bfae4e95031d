"""A play for Prometheus: a real router and simulated engines under the demo's load, first well, then in trouble.

Everything runs in this process. Prometheus keeps what it has read, so that it can be asked after the play.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from itertools import count
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Final, Self

import orjson

from e2e.enginesim import Config, EngineSim, Knobs
from e2e.enginesim.speed import PRESETS, WIRES
from e2e.monitoring import generate, targets
from e2e.monitoring.dashboard import ROWS
from e2e.monitoring.panels import Query
from e2e.monitoring.prometheus import Prometheus, Target, running
from e2e.router.fakevalkey import FakeValkey
from e2e.router.harness import Router, config, user
from e2e.router.sim import BLOCK, engine_config
from kvloop.cli.load import Client, LoadError, Workload
from kvloop.engine import guard
from kvloop.router.leases import MARGIN_SECONDS

SCOPE: Final = 'namespace=~"default", kvloop_io_name=~"demo"'
"""The resource that is played, as the dashboard's variables choose it."""
_PLUGIN: Final = (guard, "0.1.0")
_ROOM: Final = 8
"""Turns on a decode engine, and turns that wait."""
_CROWD: Final = 60
"""Turns at once: more than there is room for."""
_LATE: Final = 25
"""Conversations that come back too late, spread over as many tenths of a second."""
_BREATH_S: Final = 0.25
"""Between two tries: the router refuses at once while no engine is left."""
_PATIENCE_S: Final = 30
"""For Prometheus to see what happens."""


class Moment(StrEnum):
    """When to look: all is well, or there is one trouble."""

    WELL = "all is well"
    LATE = "follow-ups after the lease"
    GUARD = "a decode engine without guard"
    CROWD = "more turns than there is room for"
    HELD = "conversations that nobody goes on with"
    PREFILL = "prefill gone"
    DECODE = "decode gone, too"


TELLS: Final = {
    Moment.LATE: "KvloopHandlesExpiring",
    Moment.GUARD: "KvloopGuardInactive",
    Moment.CROWD: "KvloopQueueFull",
    Moment.HELD: "KvloopPinnedMemoryHigh",
    Moment.PREFILL: "KvloopDecodeOnly",
    Moment.DECODE: "KvloopRouterErrors",
}
"""Troubles, and the alert that tells of each."""


@dataclass(frozen=True)
class Pace:
    """How fast and how long is played; times in seconds."""

    interval_s: float = 0.5
    """Between two reads by Prometheus."""
    well_s: float = 3
    """Before the troubles, at least."""
    trouble_s: float = 0
    """Of each trouble, at least."""
    rest_s: float = 0
    """Between two troubles."""
    rate_s: float = 4
    """What `$rate` is in queries, and how far alerts look back."""
    lease_s: float = 15
    """How long decode holds KV for later turns; the router forgets handles 10 s before. 15 is the least."""
    time_scale: float = 0.05
    """Of the speed model, that of a published test bed (see e2e.enginesim.speed)."""
    kv_tokens: int = 32_768
    """Size of an engine's KV cache."""
    workload: Workload = field(
        default_factory=lambda: Workload(
            conversations=6, turns=5, clients=4, system_tokens=(300, 600, 1200), user_tokens=100, pause_s=0.8
        )
    )


@dataclass(frozen=True)
class Recording:
    """What was played: Prometheus, and when it saw what; in seconds since the epoch."""

    prometheus: Prometheus
    pace: Pace
    begin: float
    moments: dict[Moment, float] = field(default_factory=dict)

    def labels(self, query: Query, at: float) -> list[dict[str, str]]:
        """Of the series at a moment, as Grafana asks for them with one resource chosen."""
        expression = query.over(SCOPE, f"{self.pace.rate_s}s", f"{max(1, round(at - self.begin))}s")
        return [series["metric"] for series in self.prometheus.query(expression, at)]

    def alerts(self, at: float) -> set[str]:
        """Alerts that would fire at a moment, if they waited for nothing, and looked back no further than is played."""
        window = f"[{self.pace.rate_s}s]"
        rules = {name: re.sub(r"\[\d+[mhd]\]", window, rule["expr"]) for name, rule in generate.rules().items()}
        return {name for name, expression in rules.items() if self.prometheus.query(expression, at)}

    def is_well(self, at: float) -> bool:
        """Whether every query that does not tell of faults has series."""
        queries = (query for row in ROWS for panel in row.panels for query in panel.queries)
        return all(self.labels(query, at) for query in queries if not query.fault)

    async def keep(self, moment: Moment) -> None:
        """Note the time as soon as Prometheus sees what is going on, or as soon as patience ends."""
        end = time.monotonic() + _PATIENCE_S
        while True:
            at = time.time()
            alert = TELLS.get(moment)
            seen = (
                alert in await asyncio.to_thread(self.alerts, at)
                if alert
                else await asyncio.to_thread(self.is_well, at)
            )
            if seen or time.monotonic() > end:
                self.moments[moment] = at
                return
            await asyncio.sleep(self.pace.interval_s / 2)


@contextmanager
def recorded(folder: Path, operator: str, pace: Pace | None = None) -> Iterator[Recording]:
    """Play, and keep Prometheus. `operator` is the URL of an operator's metrics."""
    with ExitStack() as stack:
        yield asyncio.run(_play(stack, folder, operator, pace or Pace()))


async def _play(stack: ExitStack, folder: Path, operator: str, pace: Pace) -> Recording:
    async with Stage(pace) as stage:
        scraped = [*stage.targets(), Target(operator, targets.operator())]
        prometheus = stack.enter_context(running(folder, scraped, pace.interval_s))
        recording = Recording(prometheus, pace, time.time())
        await stage.play(recording)
        return recording


class Stage:
    """Two prefill engines without prefix caches, two decode engines, and a router before them."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        p = self._config(engine_config("kv_producer", "fail", prefix_caching=False))
        d = self._config(engine_config("kv_consumer", "recompute"))
        self._prefill = [EngineSim(p, plugin=_PLUGIN) for _ in range(2)]
        self._decode = [EngineSim(d, plugin=_PLUGIN) for _ in range(2)]

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for engine in (*self._prefill, *self._decode):
                await stack.enter_async_context(engine)
            urls = [e.url for e in self._prefill], [e.url for e in self._decode]
            transfer = {"decoderKVBlocksTTLSeconds": self._pace.lease_s}
            limits = {"maxTurnsPerEngine": _ROOM, "maxQueuedTurns": _ROOM}
            store = {"valkey": {"url": (await stack.enter_async_context(FakeValkey())).url, "timeoutSeconds": 1}}
            settings = config(
                *urls, transfer=transfer, limits=limits, store=store, holdoutPercent=20, maxPinnedPercent=60
            )
            self._router = await stack.enter_async_context(Router(settings))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def targets(self) -> list[Target]:
        """Everything that has metrics, labelled as in a cluster."""
        engines = [
            Target(engine.url, targets.demo(role, number))
            for role, each in (("prefill", self._prefill), ("decode", self._decode))
            for number, engine in enumerate(each)
        ]
        return [Target(self._router.admin, targets.demo("router")), *engines]

    async def play(self, recording: Recording) -> None:
        """All is well, then one trouble after the other, under the demo's load."""
        pace = self._pace
        async with Client(self._router.url, "tiny") as client, _repeated(partial(self._load, client)):
            await asyncio.sleep(pace.well_s)
            await recording.keep(Moment.WELL)
            troubles = {
                Moment.LATE: _repeated(self._come_back_late),
                Moment.GUARD: self._without_guard(),
                Moment.CROWD: _repeated(self._crowd),
                Moment.HELD: _repeated(self._abandon),
                Moment.PREFILL: self._without(self._prefill),
                Moment.DECODE: self._without(self._decode),
            }
            for moment, trouble in troubles.items():
                async with trouble:
                    await asyncio.sleep(pace.trouble_s)
                    await recording.keep(moment)
                await asyncio.sleep(pace.rest_s)

    async def _load(self, client: Client, number: int) -> None:
        """The demo's conversations; those whose turns fail end."""
        workload = replace(self._pace.workload, seed=f"{number} ")
        await self._all(1, "Two of them, please.", n=2)
        with suppress(LoadError):
            await client.run(workload, on_failure=lambda _: None)

    async def _come_back_late(self, _: int) -> None:
        pause = self._pace.lease_s - MARGIN_SECONDS + 1

        async def converse(number: int) -> None:
            await asyncio.sleep(number / 10)
            first = user(f"Tale {number} of the tides of the northern sea, please. " * 10)
            status, answer = await self._router.post({"model": "tiny", "messages": [first], "max_tokens": 20})
            if status == HTTPStatus.OK:
                await asyncio.sleep(pause)
                history = [first, orjson.loads(answer)["choices"][0]["message"], user("More")]
                end = {"x-conversation-end": "true"}
                await self._router.post({"model": "tiny", "messages": history}, headers=end)

        await asyncio.gather(*map(converse, range(_LATE)))

    async def _crowd(self, _: int) -> None:
        await self._all(_CROWD, "How are you?")

    async def _abandon(self, number: int) -> None:
        """Begin conversations that hold a thirty-second part of an engine's memory each, and do not go on with them."""
        story = "Once upon a time. " * (self._pace.kv_tokens // 32 // 8)  # 8 tokens each
        await self._all(_ROOM, f"Tale {number}. {story}", max_tokens=10)

    async def _call(self, _: int) -> None:
        await self._all(2, "Is there anybody?")

    @asynccontextmanager
    async def _without_guard(self) -> AsyncIterator[None]:
        await self._restart(self._decode, 0, plugin=None)
        yield
        await self._restart(self._decode, 0)

    @asynccontextmanager
    async def _without(self, engines: list[EngineSim]) -> AsyncIterator[None]:
        for engine in engines:
            await engine.stop()
        async with _repeated(self._call):
            yield
        for number in range(len(engines)):
            await self._restart(engines, number)

    async def _all(self, turns: int, question: str, **fields: int) -> None:
        """So many first turns at once, whatever is answered."""
        base = {"model": "tiny", "max_tokens": 200, **fields}
        bodies = [{**base, "messages": [user(f"{number}. {question}")]} for number in range(turns)]
        await asyncio.gather(*map(self._router.post, bodies))

    async def _restart(
        self, engines: list[EngineSim], number: int, plugin: tuple[ModuleType, str] | None = _PLUGIN
    ) -> None:
        old = engines[number]
        await old.stop()
        engines[number] = EngineSim(replace(old.config, port=old.port), plugin=plugin)
        await self._stack.enter_async_context(engines[number])

    def _config(self, base: Config) -> Config:
        assert base.transfer
        pace = self._pace
        knobs = Knobs(speed=PRESETS["qwen3-32b"], time_scale=pace.time_scale, wire=WIRES["EFA"])
        transfer = replace(base.transfer, decoder_kv_blocks_ttl=pace.lease_s)
        blocks = pace.kv_tokens // BLOCK
        return replace(base, transfer=transfer, knobs=knobs, num_gpu_blocks=blocks, max_model_len=blocks * BLOCK)


@asynccontextmanager
async def _repeated(work: Callable[[int], Awaitable[None]]) -> AsyncIterator[None]:
    """Do something, which is told how often it was done, again and again until the body ends."""

    async def repeat() -> None:
        for number in count():
            await work(number)
            await asyncio.sleep(_BREATH_S)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
