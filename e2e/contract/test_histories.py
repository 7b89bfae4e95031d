"""What a follow-up may look like, exact in tokens: what is read, and that the answer is a cold computation's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from e2e.contract.client import FIRST, Client, Turn, eventually
from e2e.contract.engines import ADAPTER, BLOCK, THRESHOLD, Engines, Setup

if TYPE_CHECKING:
    from collections.abc import Callable

PROMPT, NEW = 300, 50


@dataclass(frozen=True)
class History:
    """Prompt `a` and reply `r` to the next prompt, and how many tokens that shares with them, of `held` ones."""

    edit: Callable[[list[int], list[int], Callable[[int], list[int]]], list[int]]
    shared: Callable[[int], int]


# fmt: off
HISTORIES = {
    "extended": History(lambda a, r, new: a + r + new(NEW), lambda held: held),
    "extended by one token": History(lambda a, r, _: a + r, lambda held: held),
    "as long as what is held": History(lambda a, r, _: (a + r)[:-1], lambda held: held - 1),
    "reply rendered otherwise": History(lambda a, r, new: a + r[:-5] + other(r[-5:]) + new(NEW), lambda held: held - 4),
    "thinking left out": History(lambda a, r, new: a + r[30:] + new(NEW), lambda _: PROMPT),
    "time of day in the system prompt": History(lambda a, r, _: a[:70] + other(a[70:75]) + a[75:] + r, lambda _: 70),
    "first token changed": History(lambda a, r, new: other(a[:1]) + a[1:] + r + new(NEW), lambda _: 0),
    "a token put in front": History(lambda a, r, new: [9, *a, *r, *new(NEW)], lambda _: 0),
    "compacted": History(lambda _, r, new: new(120) + r + new(NEW), lambda _: 0),
    "regenerated": History(lambda a, *_: a, lambda _: PROMPT - 1),
    "rewound": History(lambda a, *_: a[: PROMPT // 2], lambda _: PROMPT // 2 - 1),
    "rewound below the threshold": History(lambda a, _, new: a[:40] + new(100), lambda _: 40),
    "other tools in the middle": History(lambda a, r, new: a[:200] + new(100) + r, lambda _: 200),
}
# fmt: on


def other(tokens: list[int]) -> list[int]:
    return [t + 1 for t in tokens]


def link_floor(shared: int, held: int) -> int:
    return held if shared >= held else shared // BLOCK * BLOCK


@pytest.mark.parametrize("reply", [40, 150])
@pytest.mark.parametrize("setup", [Setup(), Setup(prefill_cache=True)], ids=["prefill cache off", "prefill cache on"])
@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
async def test_reads_what_is_shared_and_answers_as_a_cold_engine(
    engines: Engines, client: Client, setup: Setup, history: History, reply: int
) -> None:
    decode = engines.decode[0]
    first = client.tokens(PROMPT)
    held = PROMPT + reply - 1
    one = await client.turn(engines.prefill, decode, first, max_tokens=reply)
    assert one.handle["remote_num_tokens"] == held
    assert one.tokens == await client.cold(engines.prefill, first, reply)

    prompt = history.edit(first, one.tokens, client.tokens)
    before = await transfers(client, engines.prefill)
    two = await client.turn(engines.prefill, decode, prompt, one.handle, max_tokens=24)
    verified = link_floor(history.shared(held), held)
    assert two.prefill.report is not None
    assert (two.prefill.report["offered"], two.prefill.report["verified"]) == (held, verified)
    assert two.tokens == await client.cold(engines.prefill, prompt, 24)

    local = 0
    if setup.prefill_cache:
        # Turn 1 left its prompt in the cache; turn 2 shares so much of that.
        local = min(history.shared(held), PROMPT, len(prompt) - 1) // BLOCK * BLOCK
    pulled = verified - local if verified - local >= THRESHOLD else 0
    assert await transfers(client, engines.prefill) - before == pulled
    await only_pinned(client, decode, two)


@pytest.mark.parametrize("setup", [Setup(prefill_cache=True)])
async def test_a_prefill_cache_that_is_warmer_than_the_verified_prefix_needs_no_read(
    engines: Engines, client: Client
) -> None:
    first = client.tokens(PROMPT)
    one = await client.turn(engines.prefill, engines.decode[0], first)
    prompt = first + one.tokens[:-8] + client.tokens(NEW)
    await client.complete(engines.prefill, prompt)
    before = await transfers(client, engines.prefill)
    two = await client.turn(engines.prefill, engines.decode[0], prompt, one.handle, max_tokens=24)
    assert await transfers(client, engines.prefill) == before
    assert two.tokens == await client.cold(engines.prefill, prompt, 24)
    await only_pinned(client, engines.decode[0], two)


@pytest.mark.parametrize("remainder", range(0, BLOCK, 5))
async def test_every_alignment_of_what_is_held(engines: Engines, client: Client, remainder: int) -> None:
    first = client.tokens(200 + remainder)
    one = await client.turn(engines.prefill, engines.decode[0], first)
    prompt = first + one.tokens + client.tokens(20)
    two = await client.turn(engines.prefill, engines.decode[0], prompt, one.handle, max_tokens=12)
    assert two.prefill.report == {"offered": 239 + remainder, "verified": 239 + remainder, "reason": "match"}
    assert two.tokens == await client.cold(engines.prefill, prompt, 12)


@pytest.mark.parametrize("held", [THRESHOLD - 1, THRESHOLD])
async def test_the_threshold_decides_whether_to_read_and_the_lease_ends_either_way(
    engines: Engines, client: Client, held: int
) -> None:
    first = client.tokens(held - 9)
    one = await client.turn(engines.prefill, engines.decode[0], first, max_tokens=10)
    prompt = first + one.tokens + client.tokens(30)
    before = await transfers(client, engines.prefill)
    two = await client.turn(engines.prefill, engines.decode[0], prompt, one.handle, max_tokens=12)
    assert await transfers(client, engines.prefill) - before == (held if held >= THRESHOLD else 0)
    assert two.tokens == await client.cold(engines.prefill, prompt, 12)
    await only_pinned(client, engines.decode[0], two)


@pytest.mark.parametrize("setup", [Setup(decodes=2)])
async def test_five_turns_over_two_decode_engines(engines: Engines, client: Client) -> None:
    prompt, handle = client.tokens(PROMPT), None
    for decode in (0, 1, 1, 0, 1):
        turn = await client.turn(engines.prefill, engines.decode[decode], prompt, handle)
        assert turn.tokens == await client.cold(engines.prefill, prompt, 40)
        if handle is not None:
            assert turn.prefill.report == {
                "offered": len(prompt) - NEW - 1,
                "verified": len(prompt) - NEW - 1,
                "reason": "match",
            }
        prompt, handle = prompt + turn.tokens + client.tokens(NEW), turn.handle


@pytest.mark.parametrize("change", [{"model": ADAPTER}, {"cache_salt": "other"}])
async def test_the_same_tokens_under_another_adapter_or_salt_share_nothing(
    engines: Engines, client: Client, change: dict[str, Any]
) -> None:
    first = client.tokens(PROMPT)
    one = await client.turn(engines.prefill, engines.decode[0], first)
    prompt = first + one.tokens + client.tokens(NEW)
    two = await client.turn(engines.prefill, engines.decode[0], prompt, one.handle, max_tokens=24, **change)
    assert two.prefill.report == {"offered": 339, "verified": 0, "reason": "mismatch"}
    assert two.tokens == await client.cold(engines.prefill, prompt, 24, **change)


@pytest.mark.parametrize("same", [{"model": ADAPTER}, {"cache_salt": "mine"}])
async def test_an_adapter_or_salt_that_stays_keeps_its_reuse(
    engines: Engines, client: Client, same: dict[str, Any]
) -> None:
    first = client.tokens(PROMPT)
    one = await client.turn(engines.prefill, engines.decode[0], first, **same)
    prompt = first + one.tokens + client.tokens(NEW)
    two = await client.turn(engines.prefill, engines.decode[0], prompt, one.handle, max_tokens=24, **same)
    assert two.prefill.report == {"offered": 339, "verified": 339, "reason": "match"}
    assert two.tokens == await client.cold(engines.prefill, prompt, 24, **same)


async def transfers(client: Client, url: str) -> float:
    """Tokens that an engine has read from others; moves only on real, successful reads."""
    return await client.metric(url, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer")


async def only_pinned(client: Client, decode: str, turn: Turn) -> None:
    """Of all turns only this one's blocks are still pinned."""
    wanted = len(turn.handle["remote_block_ids"][0])

    async def settled() -> bool:
        return await client.pinned(decode) == wanted

    await eventually(settled, f"{wanted} blocks pinned")


async def test_a_decode_engine_reads_only_the_kv_of_its_own_prompt(engines: Engines, client: Client) -> None:
    """A field that one leg lacks may shape the prompt: then decode computes, where vLLM alone would answer wrongly."""
    computed = client.tokens(300)
    rendered = [*computed[:10], *client.tokens(1), *computed[11:]]
    first = await client.complete(engines.prefill, computed, dict(FIRST))
    answer = await client.complete(engines.decode[0], rendered, first.handle, 24)
    assert answer.tokens == await client.cold(engines.decode[0], rendered, 24)
    assert answer.handle is None


@pytest.mark.parametrize("max_tokens", [2, 5])
async def test_a_prefill_leg_that_goes_on_into_another_block_hands_over_its_prompt(
    engines: Engines, client: Client, max_tokens: int
) -> None:
    """Decode takes the last blocks of a list, so it would read shifted ones."""
    prompt = client.tokens(127)
    first = await client.complete(engines.prefill, prompt, dict(FIRST), max_tokens)
    before = await transfers(client, engines.decode[0])
    answer = await client.complete(engines.decode[0], prompt, first.handle, 12)
    assert answer.tokens == await client.cold(engines.decode[0], prompt, 12)
    assert await transfers(client, engines.decode[0]) - before == len(prompt)
