"""A play for Prometheus: a real router and simulated engines under the demo's load, first well, then in trouble.

Everything runs in this process. Prometheus keeps what it has read, so that it can be asked after the play.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Final, Self

import orjson

from e2e.enginesim import Config, EngineSim, Knobs
from e2e.enginesim.speed import PRESETS
from e2e.monitoring import targets
from e2e.monitoring.prometheus import Prometheus, Target
from e2e.router.fakevalkey import FakeValkey
from e2e.router.harness import Router, config, user
from e2e.router.sim import BLOCK, engine_config
from kvloop.cli.load import Client, LoadError, Workload
from kvloop.engine import guard
from kvloop.router.leases import MARGIN_SECONDS

_PLUGIN: Final = (guard, "0.1.0")
_ROOM: Final = 8
"""Turns on a decode engine, and turns that wait."""
_CROWD: Final = 60
"""Turns at once: more than there is room for."""
_LATE: Final = 25
"""Conversations that come back too late."""

_BREATH_S: Final = 0.05
"""Between two tries: the router refuses at once while no engine is left."""


class Moment(StrEnum):
    """When to look: all is well, or one trouble has gone on for a while."""

    WELL = "all is well"
    LATE = "follow-ups after the lease"
    GUARD = "a decode engine without guard"
    CROWD = "more turns than there is room for"
    HELD = "conversations that nobody goes on with"
    PREFILL = "prefill gone"
    DECODE = "decode gone, too"


@dataclass(frozen=True)
class Pace:
    """How fast and how long is played; times in seconds."""

    interval_s: float = 0.25
    """Between two reads by Prometheus."""
    well_s: float = 5
    """Before the troubles, and after them."""
    trouble_s: float = 1.5
    """Of each trouble."""
    rest_s: float = 0
    """Between two troubles."""
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
    """What was played: Prometheus, and when; in seconds since the epoch."""

    prometheus: Prometheus
    pace: Pace
    begin: float
    moments: Mapping[Moment, float]
    end: float


@contextmanager
def recorded(folder: Path, operator: str, pace: Pace | None = None) -> Iterator[Recording]:
    """Play, and keep Prometheus. `operator` is the URL of an operator's metrics."""
    with ExitStack() as stack:
        yield asyncio.run(_play(stack, folder, operator, pace or Pace()))


async def _play(stack: ExitStack, folder: Path, operator: str, pace: Pace) -> Recording:
    async with Stage(pace) as stage:
        scraped = [*stage.targets(), Target(operator, targets.operator())]
        prometheus = stack.enter_context(Prometheus(folder, scraped, pace.interval_s))
        begin = time.time()
        moments = await stage.play()
        return Recording(prometheus, pace, begin, moments, time.time())


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

    async def play(self) -> dict[Moment, float]:
        """All is well, then one trouble after the other, under the demo's load; gives when to look."""
        pace, moments = self._pace, {}
        load = asyncio.create_task(self._load())
        late = asyncio.create_task(self._come_back_late())
        await self._router.chat(user("Two of them, please."), n=2)
        await asyncio.sleep(pace.well_s)
        moments[Moment.WELL] = time.time()
        await late
        moments[Moment.LATE] = time.time()
        troubles = {
            Moment.GUARD: self._without_guard(),
            Moment.CROWD: self._crowded(),
            Moment.HELD: self._abandoned(),
            Moment.PREFILL: self._without(self._prefill),
            Moment.DECODE: self._without(self._decode),
        }
        for moment, trouble in troubles.items():
            async with trouble:
                await asyncio.sleep(pace.trouble_s)
                moments[moment] = time.time()
            await asyncio.sleep(pace.rest_s)
        load.cancel()
        await asyncio.wait([load])
        return moments

    async def _load(self) -> None:
        """The demo's conversations, or new ones in place of those that failed, until cancelled."""
        async with Client(self._router.url, "tiny") as client:
            for number in count():
                workload = replace(self._pace.workload, seed=f"{number} ")
                with suppress(LoadError):
                    await client.run(workload, on_failure=lambda _: None)
                await asyncio.sleep(_BREATH_S)

    async def _come_back_late(self) -> None:
        pause = self._pace.lease_s - MARGIN_SECONDS + 1

        async def converse(number: int) -> None:
            await asyncio.sleep(number / 10)
            question = user(f"Tale {number} of the tides of the northern sea, please. " * 10)
            answer = orjson.loads(await self._router.chat(question, max_tokens=20))
            await asyncio.sleep(pause)
            end = {"x-conversation-end": "true"}
            await self._router.chat(question, answer["choices"][0]["message"], user("More"), headers=end)

        await asyncio.gather(*map(converse, range(_LATE)))

    @asynccontextmanager
    async def _without_guard(self) -> AsyncIterator[None]:
        await self._restart(self._decode, 0, plugin=None)
        yield
        await self._restart(self._decode, 0)

    @asynccontextmanager
    async def _crowded(self, turns: int = _CROWD) -> AsyncIterator[None]:
        async def crowd() -> None:
            while True:
                await self._all(turns, "How are you?")
                await asyncio.sleep(_BREATH_S)

        task = asyncio.create_task(crowd())
        yield
        task.cancel()
        await asyncio.wait([task])

    @asynccontextmanager
    async def _abandoned(self) -> AsyncIterator[None]:
        """As many as the router lets hold decode's memory, and more."""
        begin = "Once upon a time. " * (self._pace.kv_tokens // 32 // 8)  # 8 tokens each
        for number in range(6):
            await self._all(_ROOM, f"Tale {number}. {begin}", tokens=10)
        yield

    @asynccontextmanager
    async def _without(self, engines: list[EngineSim]) -> AsyncIterator[None]:
        for engine in engines:
            await engine.stop()
        async with self._crowded(turns=_ROOM):
            yield
        for number in range(len(engines)):
            await self._restart(engines, number)

    async def _all(self, turns: int, question: str, tokens: int = 200) -> None:
        """So many first turns at once, whatever is answered."""
        base = {"model": "tiny", "max_tokens": tokens}
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
        knobs = Knobs(speed=PRESETS["qwen3-32b"], time_scale=pace.time_scale)
        transfer = replace(base.transfer, decoder_kv_blocks_ttl=pace.lease_s)
        blocks = pace.kv_tokens // BLOCK
        return replace(base, transfer=transfer, knobs=knobs, num_gpu_blocks=blocks, max_model_len=blocks * BLOCK)
