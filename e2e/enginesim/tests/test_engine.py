"""The engine core in this process: the model's reply, the queue, preemption, the end."""

from __future__ import annotations

import asyncio
import gc
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.enginesim import Config, EngineSim, Knobs, ManualClock, Transfer
from e2e.enginesim.speed import PRESETS, WIRES, Speed

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIG = Config("m", host="127.0.0.1", port=0, block_size=16, max_model_len=2048, knobs=Knobs(kv_tokens=4096))
PROMPT = [300 + i % 90 for i in range(200)]


class Client:
    def __init__(self, engine: EngineSim, session: aiohttp.ClientSession) -> None:
        self.engine, self.session = engine, session

    async def complete(self, prompt: list[int], max_tokens: int, **more: Any) -> list[int]:
        body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "return_token_ids": True, **more}
        async with self.session.post(self.engine.url + "/v1/completions", json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
        tokens: list[int] = answer["choices"][0]["token_ids"]
        return tokens


@pytest.fixture
async def stack() -> Any:
    async with AsyncExitStack() as open_:
        yield open_


async def start(stack: AsyncExitStack, config: Config = CONFIG, clock: ManualClock | None = None) -> Client:
    engine = await stack.enter_async_context(EngineSim(config, clock=clock or ManualClock(), plugin=None))
    return Client(engine, await stack.enter_async_context(aiohttp.ClientSession()))


async def test_a_reply_goes_on_where_it_was_cut_and_depends_on_every_token(stack: AsyncExitStack) -> None:
    client = await start(stack)
    whole = await client.complete(PROMPT, 40)
    assert await client.complete(PROMPT + whole[:15], 25) == whole[15:]
    assert await client.complete([PROMPT[0] + 1, *PROMPT[1:]], 40) != whole


async def test_engines_of_one_seed_agree_and_models_and_seeds_differ(stack: AsyncExitStack) -> None:
    replies = [
        await (await start(stack, config)).complete(PROMPT, 20)
        for config in (CONFIG, CONFIG, replace(CONFIG, model="other"), replace(CONFIG, knobs=Knobs(seed=1)))
    ]
    assert replies[0] == replies[1]
    assert len({tuple(r) for r in replies}) == 3


async def test_preempted_requests_answer_as_if_nothing_had_happened(stack: AsyncExitStack) -> None:
    client = await start(stack)
    prompts = [[p + i for p in PROMPT] for i in range(4)]
    alone = [await client.complete(p, 1200) for p in prompts]
    together = await asyncio.gather(*(client.complete(p, 1200) for p in prompts))
    assert together == alone
    async with client.session.get(client.engine.url + "/metrics") as response:
        preempted = [line for line in (await response.text()).splitlines() if "num_preemptions_total{" in line]
    assert float(preempted[0].split()[-1]) > 0
    assert client.engine.frontend.engine.pool.used == 0


async def until(holds: Callable[[], bool]) -> None:
    """Let other tasks run until a condition holds."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - the clock stands still, there is no event to wait for
            await asyncio.sleep(0.001)


SLOW = replace(CONFIG, knobs=Knobs(speed=PRESETS["qwen3-32b"], kv_tokens=4096))


async def test_requests_beyond_max_num_seqs_wait_their_turn(stack: AsyncExitStack) -> None:
    clock = ManualClock()
    client = await start(stack, replace(SLOW, max_num_seqs=1), clock)
    core = client.engine.frontend.engine
    tasks = [asyncio.create_task(client.complete(PROMPT, 1)) for _ in range(2)]
    await until(lambda: core.load == 2 and clock.pending == 1)
    clock.advance(1)
    await until(lambda: core.load == 1 and clock.pending == 1)
    clock.advance(1)
    assert len(await asyncio.gather(*tasks)) == 2


async def test_time_passes_as_the_speed_model_says(stack: AsyncExitStack) -> None:
    clock, speed = ManualClock(), SLOW.knobs.speed
    client = await start(stack, SLOW, clock)
    began = clock.now()
    task = asyncio.create_task(client.complete(PROMPT, 3))
    for seconds in (speed.prefill(200, 0), speed.decode(1), speed.decode(1)):
        await until(lambda: clock.pending == 1)
        clock.advance(seconds - 1e-6)
        assert clock.pending == 1
        clock.advance(1e-6)
    assert len(await task) == 3
    assert clock.now() - began == pytest.approx(speed.prefill(200, 0) + speed.decode(2))


PAIR = replace(
    CONFIG, transfer=Transfer(bidirectional_kv_xfer=True), side_channel_host="127.0.0.1", side_channel_port=0
)
MINUTE = Speed(60_000, 0, 0, 0, 0, 0, 0)


async def test_heartbeats_keep_prefill_blocks_while_their_reader_waits_its_turn(stack: AsyncExitStack) -> None:
    clock = ManualClock()
    p = await start(stack, PAIR, clock)
    d = await start(stack, replace(PAIR, max_num_seqs=1, knobs=Knobs(speed=MINUTE, kv_tokens=4096)), clock)
    prompt = [*PROMPT[:-1], 5]
    cold = await p.complete(prompt, 4)
    body = {"prompt": prompt, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    async with p.session.post(p.engine.url + "/v1/completions", json=body) as response:
        handle = (await response.json())["kv_transfer_params"]
    leases = p.engine.frontend.engine.connector
    assert leases is not None

    tasks = [asyncio.create_task(d.complete(PROMPT, 1))]
    await until(lambda: d.engine.frontend.engine.load == 1)
    tasks.append(asyncio.create_task(d.complete(prompt, 4, kv_transfer_params=handle)))
    await until(lambda: d.engine.frontend.engine.load == 2)
    for _ in range(11):  # the lease alone would end after 30 s
        clock.advance(5)
        await until(lambda: leases.expiry(handle["remote_request_id"]) >= clock.now() + 20 - 1e-6)
    clock.advance(5)
    await tasks[0]
    await until(lambda: leases.open_leases == 0)  # read, and let go
    clock.advance(60)
    assert await tasks[1] == cold
    async with p.session.get(p.engine.url + "/metrics") as response:
        assert 'nixl_num_kv_expired_reqs_total{engine="0",model_name="m"} 0.0' in await response.text()


def test_a_cache_smaller_than_one_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="ENGINESIM_KV_TOKENS"):
        replace(CONFIG, max_model_len=100_000)


async def test_an_engine_without_a_connector_ignores_parameters(stack: AsyncExitStack) -> None:
    client = await start(stack)
    assert await client.complete(PROMPT, 4, kv_transfer_params={"do_remote_decode": True})


async def test_side_channels_work_over_ipv6(stack: AsyncExitStack) -> None:
    config = replace(
        CONFIG, host="::1", transfer=Transfer(bidirectional_kv_xfer=True), side_channel_host="::1", side_channel_port=0
    )
    p, d = await start(stack, config), await start(stack, replace(config, block_size=16))
    async with p.session.post(
        p.engine.url + "/v1/completions",
        json={"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}},
    ) as response:
        handle = (await response.json())["kv_transfer_params"]
    assert handle["remote_host"] == "::1"
    assert await d.complete(PROMPT, 12, kv_transfer_params=handle) == await p.complete(PROMPT, 12)
    async with d.session.get(d.engine.url + "/metrics") as response:
        assert 'source="external_kv_transfer"} 200.0' in await response.text()


async def first_leg(client: Client, params: dict[str, Any]) -> Any:
    """The handle that an engine answers."""
    body = {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": params}
    async with client.session.post(client.engine.url + "/v1/completions", json=body) as response:
        return (await response.json())["kv_transfer_params"]


@pytest.mark.parametrize("name", ["EFA", "TCP"])
async def test_telemetry_may_tell_of_another_wire(stack: AsyncExitStack, name: str) -> None:
    """What a transfer over EFA, or over TCP in its place, would be counted as; nothing takes longer for it."""
    wire = WIRES[name]
    config = replace(PAIR, knobs=Knobs(kv_tokens=4096, wire=wire))
    p, d = await start(stack, config), await start(stack, config)
    await d.complete(PROMPT, 2, kv_transfer_params=await first_leg(p, {"do_remote_decode": True}))
    async with d.session.get(d.engine.url + "/metrics") as response:
        families = list(text_string_to_metric_families(await response.text()))
    told = {sample.name: sample.value for family in families for sample in family.samples if "nixl" in sample.name}
    assert told["vllm:nixl_bytes_transferred_sum"] == wire.size(200) == 200 * 32 * 1024
    assert told["vllm:nixl_xfer_time_seconds_sum"] == pytest.approx(wire.seconds(200))


async def test_decode_may_give_nothing_back(stack: AsyncExitStack) -> None:
    config = replace(PAIR, knobs=Knobs(kv_tokens=4096, one_way=True))
    p, d = await start(stack, config), await start(stack, config)
    handle = await first_leg(p, {"do_remote_decode": True})
    assert handle["do_remote_prefill"], "prefill's blocks travel as ever"
    assert await first_leg(d, handle) is None


@pytest.mark.parametrize("steps", range(1, 16))
async def test_a_start_that_is_cancelled_leaves_nothing_open(stack: AsyncExitStack, steps: int) -> None:
    """Sockets that are left open are errors, as soon as the collector finds them."""
    entering = asyncio.ensure_future(stack.enter_async_context(EngineSim(CONFIG, plugin=None)))
    for _ in range(steps):
        await asyncio.sleep(0)
    entering.cancel()
    await asyncio.gather(entering, return_exceptions=True)
    del entering
    gc.collect()
