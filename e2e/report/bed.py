"""One run on the simulated test bed: a prefill engine, a decode engine, the router, and clients, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from e2e.demo import cold
from e2e.enginesim import Config, EngineSim, Knobs, Transfer
from e2e.enginesim.speed import PRESETS
from e2e.report import virtual
from e2e.router.harness import Router, config
from kvloop.advice.published import MODELS
from kvloop.api.contract import ReuseCounters
from kvloop.cli.load import Client, Turn, Workload
from kvloop.engine import guard
from kvloop.router.outcome import Outcome

BLOCK: Final = 16
MAX_LENGTH: Final = 32_768
TTL_SECONDS: Final = 480
SAMPLE_SECONDS: Final = 0.25
_PLUGIN: Final = (guard, "0.1.0")


Talk = Callable[[Client], Awaitable[list[Turn]]]


@dataclass(frozen=True)
class Setup:
    """What runs. `model` is one of `PRESETS`, and has its memory too where no capacity, in tokens, is given."""

    model: str = "qwen3-32b"
    bidirectional: bool = True
    prefill_cache: bool = False
    ttl_seconds: int = TTL_SECONDS
    holdout_percent: int = 0
    max_pinned_percent: int = 100
    prefill_capacity: int = 0

    @property
    def capacity(self) -> int:
        """Of a decode engine, in tokens."""
        return MODELS[self.model].capacity_tokens


@dataclass
class Run:
    """What came of it. `pinned` samples the tokens that decode held for later turns, every `SAMPLE_SECONDS`."""

    setup: Setup
    turns: list[Turn]
    outcomes: list[Outcome]
    counters: ReuseCounters
    wrong: int
    pinned: list[int]

    @property
    def follow_ups(self) -> list[Turn]:
        """All turns but first ones."""
        return [turn for turn in self.turns if turn.number]

    @property
    def hit_percent(self) -> float:
        """Reused tokens per prompt token of what the router took for follow-ups."""
        return 100 * self.counters.reused_tokens / max(1, self.counters.prompt_tokens)


def run(setup: Setup, workload: Workload | Talk) -> Run:
    """Hold the conversations, and compute each answer once more from nothing."""

    async def talk(client: Client) -> list[Turn]:
        return await (client.run(workload) if isinstance(workload, Workload) else workload(client))

    return virtual.run(_run(setup, talk))


async def _run(setup: Setup, talk: Talk) -> Run:
    async with _engines(setup) as (prefill, decode, other), _router(setup, prefill, decode) as router:
        loop = asyncio.get_running_loop()
        pinned: list[int] = []
        outcomes = _outcomes(router)
        watching = asyncio.ensure_future(_watch(router, pinned))
        async with Client(router.url, setup.model, loop.time) as client:
            turns = await talk(client)
        watching.cancel()
        counters = (await router.reuse()).counters
        async with Client(other.url, setup.model, loop.time) as engine:
            wrong = await cold.differences(engine, turns)
    return Run(setup, turns, outcomes, counters, len(wrong), pinned)


@asynccontextmanager
async def _engines(setup: Setup) -> AsyncIterator[tuple[EngineSim, EngineSim, EngineSim]]:
    """Prefill, decode, and a third that computes all by itself in no time."""
    base = Config(
        model=setup.model,
        host="127.0.0.1",
        port=0,
        block_size=BLOCK,
        num_gpu_blocks=setup.capacity // BLOCK,
        max_model_len=MAX_LENGTH,
        side_channel_host="127.0.0.1",
        side_channel_port=0,
        knobs=Knobs(speed=PRESETS[setup.model]),
    )
    transfer = Transfer(
        bidirectional_kv_xfer=setup.bidirectional, decoder_kv_blocks_ttl=setup.ttl_seconds, kv_recompute_threshold=64
    )
    p = replace(transfer, kv_role="kv_producer", kv_load_failure_policy="fail")
    d = replace(transfer, kv_role="kv_consumer", kv_load_failure_policy="recompute")
    configs = (
        replace(
            base,
            transfer=p,
            prefix_caching=setup.prefill_cache,
            num_gpu_blocks=(setup.prefill_capacity or setup.capacity) // BLOCK,
        ),
        replace(base, transfer=d),
        replace(base, knobs=Knobs()),
    )
    async with AsyncExitStack() as stack:
        engines = [EngineSim(each, clock=virtual.LoopClock(), plugin=_PLUGIN) for each in configs]
        for engine in engines:
            await stack.enter_async_context(engine)
        yield engines[0], engines[1], engines[2]


@asynccontextmanager
async def _router(setup: Setup, prefill: EngineSim, decode: EngineSim) -> AsyncIterator[Router]:
    settings = config(
        [prefill.url],
        [decode.url],
        transfer={"bidirectional": setup.bidirectional, "decoderKVBlocksTTLSeconds": setup.ttl_seconds},
        probeSeconds=5,
        holdoutPercent=setup.holdout_percent,
        maxPinnedPercent=setup.max_pinned_percent,
    )
    async with Router(settings, asyncio.get_running_loop().time) as router:
        yield router


def _outcomes(router: Router) -> list[Outcome]:
    """What the router records of each turn, from now on."""
    seen: list[Outcome] = []
    core = router.app.core
    record = core.record

    def both(outcome: Outcome) -> None:
        seen.append(outcome)
        record(outcome)

    core.record = both
    return seen


async def _watch(router: Router, pinned: list[int]) -> None:
    core = router.app.core
    while True:
        pinned.append(sum(core.leases.pinned(engine.address) for engine in core.pool.all()))
        await asyncio.sleep(SAMPLE_SECONDS)
