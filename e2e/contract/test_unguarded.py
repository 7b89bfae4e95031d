"""What engines do without the guard: the reason for it. HTTP 200 every time, and another text."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.contract.client import FIRST, Client
from e2e.contract.engines import Engines, Setup
from e2e.contract.test_histories import HISTORIES

UNGUARDED = Setup(guarded=False)
HARMLESS = {"extended", "extended by one token", "as long as what is held", "rewound below the threshold"}


async def first_turn(engines: Engines, client: Client, reply: int = 40) -> tuple[list[int], list[int], dict[str, Any]]:
    first = client.tokens(300)
    one = await client.turn(engines.prefill, engines.decode[0], first, max_tokens=reply)
    return first, one.tokens, one.handle


@pytest.mark.parametrize("setup", [UNGUARDED])
@pytest.mark.parametrize("name", HISTORIES)
async def test_edited_histories_are_answered_wrongly(engines: Engines, client: Client, name: str) -> None:
    first, reply, handle = await first_turn(engines, client)
    prompt = HISTORIES[name].edit(first, reply, client.tokens)
    two = await client.turn(engines.prefill, engines.decode[0], prompt, handle, max_tokens=24)
    right = two.tokens == await client.cold(engines.prefill, prompt, 24)
    assert right is (name in HARMLESS - {"rewound below the threshold"})
    assert two.prefill.report is None


@pytest.mark.parametrize("setup", [Setup(guarded=False, prefill_cache=True)])
async def test_a_wrong_read_poisons_both_prefix_caches_for_requests_without_any_handle(
    engines: Engines, client: Client
) -> None:
    _, _, handle = await first_turn(engines, client)
    prompt = client.tokens(340)
    await client.turn(engines.prefill, engines.decode[0], prompt, handle, max_tokens=12)
    truth = await client.cold(engines.prefill, prompt, 12)
    for url in (engines.prefill, engines.decode[0]):
        assert (await client.complete(url, prompt, None, 12)).tokens != truth


@pytest.mark.parametrize("setup", [UNGUARDED])
async def test_a_second_use_reads_whatever_the_blocks_hold_by_then(engines: Engines, client: Client) -> None:
    first, reply, handle = await first_turn(engines, client)
    prompt = first + reply + client.tokens(30)
    truth = await client.cold(engines.prefill, prompt, 1)
    assert (await client.complete(engines.prefill, prompt, handle)).tokens == truth
    # As many blocks as the whole pool has go through other hands.
    for _ in range(22):
        await client.complete(engines.decode[0], client.tokens(3000), None)
    again = await client.complete(engines.prefill, prompt, handle)
    assert again.status == 200
    assert again.tokens != truth
    assert await client.metric(engines.decode[0], "vllm:nixl_num_notifications_after_expiry_total") == 1


@pytest.mark.parametrize("setup", [UNGUARDED])
async def test_without_its_expiry_a_handle_outlives_its_lease(engines: Engines, client: Client, setup: Setup) -> None:
    first, reply, handle = await first_turn(engines, client)
    del handle["remote_blocks_expiry_time"]
    await engines.pass_time(setup.ttl_s + 1)
    for _ in range(22):
        await client.complete(engines.decode[0], client.tokens(3000), None)
    prompt = first + reply + client.tokens(30)
    answer = await client.complete(engines.prefill, prompt, handle)
    assert answer.status == 200
    assert answer.tokens != await client.cold(engines.prefill, prompt, 1)


@pytest.mark.parametrize("setup", [UNGUARDED])
async def test_a_prefill_leg_of_several_tokens_that_crosses_a_block_is_read_shifted(
    engines: Engines, client: Client
) -> None:
    prompt = client.tokens(125)
    first = await client.complete(engines.prefill, prompt, dict(FIRST), 5)
    second = await client.complete(engines.decode[0], prompt, first.handle, 5)
    assert second.status == 200
    assert second.tokens != await client.cold(engines.prefill, prompt, 5)


@pytest.mark.parametrize("setup", [UNGUARDED])
async def test_prefill_blocks_that_nobody_came_for_in_time_are_read_all_the_same(
    engines: Engines, client: Client
) -> None:
    prompt = client.tokens(300)
    first = await client.complete(engines.prefill, prompt, dict(FIRST))
    await engines.pass_time(31)
    for _ in range(22):
        await client.complete(engines.prefill, client.tokens(3000), None)
    second = await client.complete(engines.decode[0], prompt, first.handle, 12)
    assert second.status == 200
    assert second.tokens != await client.cold(engines.prefill, prompt, 12)


@pytest.mark.parametrize("setup", [UNGUARDED])
async def test_too_few_blocks_take_the_engine_down(engines: Engines, client: Client) -> None:
    first, reply, handle = await first_turn(engines, client)
    handle["remote_block_ids"] = [handle["remote_block_ids"][0][:3]]
    answer = await client.complete(engines.prefill, first + reply + client.tokens(30), handle)
    assert answer.status == 500
    assert (await client.get(engines.prefill, "/health")).status_code == 503


@pytest.mark.parametrize("setup", [UNGUARDED])
async def test_a_decode_engine_never_frees_blocks_pinned_for_neither_direction(
    engines: Engines, client: Client, setup: Setup
) -> None:
    """Read in vLLM 0.32's worker: it watches only the leases of requests that asked for a direction."""
    await client.complete(engines.decode[0], client.tokens(100), {"do_remote_prefill": False}, 8)
    await engines.pass_time(setup.ttl_s + 1)
    assert await client.pinned(engines.decode[0]) == 4


@pytest.mark.parametrize("setup", [Setup(guarded=False, decodes=2)])
async def test_what_is_computed_on_top_of_wrong_blocks_is_wrong_by_itself(engines: Engines, client: Client) -> None:
    """The second decode engine has the right blocks before, and reads only the ones that prefill computed."""
    first = client.tokens(281)
    one = await client.turn(engines.prefill, engines.decode[0], first)
    assert one.handle["remote_num_tokens"] == 320  # whole blocks
    prompt = [first[0] + 1, *first[1:], *one.tokens, *client.tokens(50)]
    await client.complete(engines.decode[1], prompt[:321])
    second = await client.turn(engines.prefill, engines.decode[1], prompt, one.handle, max_tokens=12)
    assert second.tokens != await client.cold(engines.prefill, prompt, 12)
