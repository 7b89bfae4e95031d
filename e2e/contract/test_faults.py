"""Engines that die, restart, do not match or are set up wrongly."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from e2e.contract.client import FIRST, Answer, Client, Turn, eventually
from e2e.contract.engines import Engines, Setup
from kvloop.engine import guard

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

INTERNAL = {"error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}}


async def first_turn(engines: Engines, client: Client) -> tuple[list[int], dict[str, Any]]:
    """A next prompt and the handle for it."""
    first = client.tokens(300)
    one = await client.turn(engines.prefill, engines.decode[0], first)
    return first + one.tokens + client.tokens(30), one.handle


async def works(engines: Engines, client: Client) -> Turn:
    prompt, handle = await first_turn(engines, client)
    two = await client.turn(engines.prefill, engines.decode[0], prompt, handle, max_tokens=12)
    assert two.tokens == await client.cold(engines.prefill, prompt, 12)
    assert two.prefill.report is not None
    assert two.prefill.report["verified"] == 339
    return two


@pytest.mark.parametrize("known", [False, True], ids=["never read before", "read before"])
async def test_a_dead_decode_engine_fails_the_leg_and_a_retry_without_the_handle_works(
    engines: Engines, client: Client, known: bool
) -> None:
    if known:
        await works(engines, client)
    prompt, handle = await first_turn(engines, client)
    await engines.kill(engines.decode[0])
    failed = await client.complete(engines.prefill, prompt, handle)
    assert (failed.status, failed.body) == (500, INTERNAL)
    assert await client.metric(engines.prefill, "vllm:nixl_num_failed_transfers_total") == 1
    # Counted as promised; only the sources of prompt tokens tell what was really read.
    read = 339 if known else 0
    assert await client.metric(engines.prefill, "vllm:external_prefix_cache_hits_total") == read + 339
    source = await client.metric(engines.prefill, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
    assert source == read
    retried = await client.complete(engines.prefill, prompt, dict(FIRST))
    assert retried.tokens == await client.cold(engines.prefill, prompt, 1)


async def test_a_restarted_decode_engine_refuses_old_handles_and_serves_new_ones(
    engines: Engines, client: Client
) -> None:
    await works(engines, client)
    prompt, handle = await first_turn(engines, client)
    await engines.restart(engines.decode[0])
    assert (await client.complete(engines.prefill, prompt, handle)).status == 500
    again = await works(engines, client)
    assert again.handle["remote_engine_id"] != handle["remote_engine_id"]


async def test_a_restarted_prefill_engine_reads_handles_of_before(engines: Engines, client: Client) -> None:
    await works(engines, client)
    prompt, handle = await first_turn(engines, client)
    await engines.restart(engines.prefill)
    two = await client.turn(engines.prefill, engines.decode[0], prompt, handle, max_tokens=12)
    assert two.tokens == await client.cold(engines.prefill, prompt, 12)
    assert two.prefill.report is not None
    assert two.prefill.report["verified"] == 339


async def test_a_failed_prefill_leg_in_a_stream_is_one_error_event(engines: Engines, client: Client) -> None:
    prompt, handle = await first_turn(engines, client)
    await engines.kill(engines.decode[0])
    answer = await client.complete(engines.prefill, prompt, handle, stream=True)
    assert answer.events == [INTERNAL, "[DONE]"]


@pytest.mark.parametrize("setup", [Setup(decode_model="another/path/of/the/same/weights")])
async def test_engines_that_do_not_match_compute_alone_on_decode_and_fail_on_prefill(
    engines: Engines, client: Client
) -> None:
    prompt = client.tokens(300)
    turn = await client.turn(engines.prefill, engines.decode[0], prompt, max_tokens=12)
    assert turn.tokens == await client.cold(engines.decode[0], prompt, 12)
    assert await client.metric(engines.decode[0], "vllm:nixl_num_failed_transfers_total") == 1
    longer = prompt + turn.tokens + client.tokens(30)
    assert (await client.complete(engines.prefill, longer, turn.handle)).status == 500


async def hangs(
    client: Client, engine: str, leg: Coroutine[Any, Any, Answer], begun: Callable[[], Awaitable[bool]]
) -> None:
    """Send a leg that is not answered while a later request is, and at last hang up."""
    task = asyncio.create_task(leg)
    await eventually(begun, "the leg hangs")
    assert (await client.complete(engine, client.tokens(50), max_tokens=60)).status == 200
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task

    async def over() -> bool:
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        return not any([await client.metric(engine, name) for name in names])

    await eventually(over, "the engine has seen that the client hung up")


@pytest.mark.parametrize(
    ("setup", "expire"),
    [
        pytest.param(Setup(prefill_policy="recompute"), True, id="recompute on prefill, expired"),
        pytest.param(Setup(prefill_bidirectional=False), False, id="prefill without bidirectional transfer"),
    ],
)
async def test_setups_that_hang_for_ever_and_leak_blocks(
    engines: Engines, client: Client, setup: Setup, expire: bool
) -> None:
    """Observed on vLLM 0.32: the reason why the operator never sets ``recompute`` on prefill."""
    prompt, handle = await first_turn(engines, client)
    await engines.pass_time(35)
    if expire:
        await engines.pass_time(setup.ttl_s)
    held = await client.pinned(engines.prefill) + -(-len(prompt) // engines.block)

    async def begun() -> bool:
        return await client.pinned(engines.prefill) == held

    await hangs(client, engines.prefill, client.complete(engines.prefill, prompt, handle), begun)
    await engines.pass_time(100)
    assert await client.pinned(engines.prefill) == held


async def preempted(client: Client, url: str, prompt: list[int], handle: dict[str, Any], max_tokens: int) -> Answer:
    """A streamed prefill leg that loses all its KV after its first token, and has to compute it again."""
    body = {"model": client.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "seed": 0}
    more = {"stream": True, "return_token_ids": True, "ignore_eos": True, "kv_transfer_params": handle}
    answer = Answer(200, {})
    async for event in client.events(url, "/v1/completions", body | more):
        answer.events.append(event)
        if len(answer.events) == 1:
            reset = await client.request(url, "/reset_prefix_cache?reset_running_requests=true", {})
            assert reset.status_code == 200
    assert await client.metric(url, "vllm:num_preemptions_total") > 0
    return answer


async def test_what_is_preempted_after_its_read_is_computed(engines: Engines, client: Client) -> None:
    prompt, handle = await first_turn(engines, client)
    leg = await preempted(client, engines.prefill, prompt, handle, 60)
    tokens = [t for event in leg.events if isinstance(event, dict) for c in event["choices"] for t in c["token_ids"]]
    assert tokens == await client.cold(engines.prefill, prompt, 60)
    assert leg.handle is not None
    assert (await client.complete(engines.decode[0], prompt, leg.handle, 60)).tokens == tokens


@pytest.mark.parametrize("setup", [Setup(guarded=False)])
async def test_without_the_plugin_what_is_preempted_after_its_read_hangs_for_ever(
    engines: Engines, client: Client
) -> None:
    """Observed on vLLM 0.32; its blocks are lost, too."""
    prompt, handle = await first_turn(engines, client)
    before = await client.pinned(engines.prefill)

    async def begun() -> bool:
        return await client.metric(engines.prefill, "vllm:num_preemptions_total") > 0

    await hangs(client, engines.prefill, preempted(client, engines.prefill, prompt, handle, 60), begun)
    await engines.pass_time(100)
    assert await client.pinned(engines.prefill) > before


@pytest.mark.parametrize(
    "missing",
    ["remote_block_ids", "remote_engine_id", "remote_host", "remote_request_id", "remote_num_tokens", "guard"],
)
async def test_a_handle_with_a_field_missing_is_computed(engines: Engines, client: Client, missing: str) -> None:
    prompt, handle = await first_turn(engines, client)
    del handle[missing]
    answer = await client.complete(engines.prefill, prompt, handle)
    assert answer.tokens == await client.cold(engines.prefill, prompt, 1)
    assert answer.handle is not None
    assert answer.handle["remote_prefill_cached_tokens"] == 0


@pytest.mark.parametrize(
    "hostile",
    [
        {"remote_port": 1},
        {"remote_port": 70000},
        {"remote_port": "5600"},
        {"remote_host": "999.999.999.999"},
        {"remote_host": {"a": 1}},
        {"remote_block_ids": [["1"] * 11]},
        {"remote_block_ids": [list(range(1, 12)), []]},
        {"remote_block_ids": [[999_999_999] * 11]},
        {"remote_num_tokens": 10**9},
        {"remote_num_tokens": -1},
        {"remote_blocks_expiry_time": "soon"},
        {"tp_size": "8"},
        {"do_remote_prefill": True},
        {"guard": {"v": 1, "bs": 0, "stride": 0, "n": -1, "chain": [], "tail": 3}},
        {"remote_block_ids": [[1]], "guard": "of blocks of 1024 tokens"},
    ],
)
async def test_no_handle_breaks_an_engine_or_changes_an_answer(
    engines: Engines, client: Client, hostile: dict[str, Any]
) -> None:
    prompt, handle = await first_turn(engines, client)
    if hostile.get("guard") == "of blocks of 1024 tokens":
        hostile = {**hostile, "guard": guard.make(prompt, handle["remote_num_tokens"], 1024, guard.seed("", ""))}
    answer = await client.complete(engines.prefill, prompt, {**handle, **hostile})
    assert answer.status in (200, 500)
    if answer.status == 200:
        assert answer.tokens == await client.cold(engines.prefill, prompt, 1)
    assert (await client.get(engines.prefill, "/health")).status_code == 200
    await works(engines, client)


@pytest.mark.parametrize(
    "blocks",
    [lambda ids: ids[:3], lambda ids: [*ids, ids[0]], lambda _: list(range(100_000)), lambda _: [2**31 - 1] * 10],
    ids=["too few", "too many", "very many", "nowhere"],
)
async def test_no_prefills_handle_breaks_a_decode_engine_or_changes_an_answer(
    engines: Engines, client: Client, blocks: Callable[[list[int]], list[int]]
) -> None:
    prompt = client.tokens(300)
    first = await client.complete(engines.prefill, prompt, dict(FIRST))
    assert first.handle is not None
    hostile = {**first.handle, "remote_block_ids": [blocks(first.handle["remote_block_ids"][0])]}
    answer = await client.complete(engines.decode[0], prompt, hostile, 12)
    assert answer.tokens == await client.cold(engines.decode[0], prompt, 12)
    await works(engines, client)
