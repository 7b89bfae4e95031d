"""What a follow-up may look like: its answer is a cold engine's, and what is reused is what the tokens allow."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from e2e.enginesim.api.chat import prompt_of
from e2e.router.harness import assistant, eventually, user
from e2e.router.sim import BLOCK, TTL_SECONDS, Fleet, expected_reuse, leases

PROMPT = "Tell me about the tides of the northern sea. " * 14
MORE = "And what follows from that for the harbour? " * 3
SYSTEM = {"role": "system", "content": "It is 12:01. " + "You are a careful assistant. " * 8}
ADAPTER = {"model": "adapter"}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": {"place": {"type": "string"}}}}}
    for name in ("gauge", "vane")
]


def body(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": list(messages), "max_tokens": 40, **fields}


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=[False, True], ids=["history", "id"])
def ids(request: pytest.FixtureRequest) -> dict[str, str]:
    """Headers: with an explicit conversation id, or none."""
    return {"x-conversation-id": "c1"} if request.param else {}


NAMED = {"x-conversation-id": "c1"}


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


class Talk:
    """A first turn, and what its follow-up reuses."""

    def __init__(self, fleet: Fleet, first: dict[str, Any], headers: dict[str, str], *, stream: bool) -> None:
        self.fleet, self.first, self.headers, self.stream = fleet, first, headers, stream

    async def begin(self) -> dict[str, Any]:
        self.reply = await self.fleet.turn(self.first, stream=self.stream, headers=self.headers)
        whole = await self.fleet.cold({**self.first, "return_token_ids": True})
        self.tokens: list[int] = whole["choices"][0]["token_ids"]
        return self.reply

    async def follow(self, second: dict[str, Any]) -> int:
        """Check the answer; returns the tokens reused, after checking that they are what the tokens allow."""
        await self.fleet.turn(second, stream=self.stream, headers=self.headers)
        reused = await self.fleet.last_reuse()
        assert reused == expected_reuse(self.first, self.tokens, second)
        return reused


async def test_the_history_and_a_new_message(fleet: Fleet, stream: bool, ids: dict[str, str]) -> None:
    talk = Talk(fleet, body(user(PROMPT)), ids, stream=stream)
    reply = await talk.begin()
    held = len(talk.tokens) - 1
    assert await talk.follow(body(user(PROMPT), reply, user(MORE))) > held


async def test_ten_turns_reuse_nearly_all(fleet: Fleet, stream: bool) -> None:
    messages = [user(PROMPT)]
    for _ in range(10):
        messages += [await fleet.turn(body(*messages), stream=stream), user(MORE)]
    counters = (await fleet.router.reuse()).counters
    assert (counters.follow_ups, counters.reused_turns) == (9, 9)
    assert counters.reused_tokens > 0.8 * counters.prompt_tokens


async def test_the_reply_is_rendered_differently(fleet: Fleet, stream: bool, ids: dict[str, str]) -> None:
    talk = Talk(fleet, body(user(PROMPT)), ids, stream=stream)
    reply = await talk.begin()
    changed = assistant(reply["content"][:-10] + "something")
    reused = await talk.follow(body(user(PROMPT), changed, user(MORE)))
    assert reused
    assert reused % BLOCK == 0


async def test_the_thinking_is_left_out(stream: bool, ids: dict[str, str]) -> None:
    async with Fleet(reasoning=True) as fleet:
        talk = Talk(fleet, body(user(PROMPT), max_tokens=80), ids, stream=stream)
        reply = await talk.begin()
        assert reply["reasoning"]
        assert await talk.follow(body(user(PROMPT), assistant(reply["content"]), user(MORE), max_tokens=80)) > 0


async def test_the_time_of_day_is_in_the_system_prompt(fleet: Fleet, stream: bool) -> None:
    talk = Talk(fleet, body(user(PROMPT[:200]), SYSTEM, user(PROMPT)), NAMED, stream=stream)
    reply = await talk.begin()
    later = {**SYSTEM, "content": SYSTEM["content"].replace("12:01", "12:02")}
    assert await talk.follow(body(user(PROMPT[:200]), later, user(PROMPT), reply, user(MORE)))


async def test_the_history_is_compacted(fleet: Fleet, stream: bool) -> None:
    talk = Talk(fleet, body(user(PROMPT)), NAMED, stream=stream)
    await talk.begin()
    assert leases(fleet.decode[0]) == 1
    assert await talk.follow(body(user("Summary: tides. " * 30), user(MORE))) == 0
    await eventually(lambda: leases(fleet.decode[0]) == 1, "only the new lease is left")


async def test_the_answer_is_asked_for_again(fleet: Fleet, stream: bool) -> None:
    talk = Talk(fleet, body(user(PROMPT)), NAMED, stream=stream)
    await talk.begin()
    assert await talk.follow(body(user(PROMPT))) > 0


async def test_the_history_is_rewound(fleet: Fleet, stream: bool) -> None:
    talk = Talk(fleet, body(user(PROMPT)), NAMED, stream=stream)
    await talk.begin()
    assert await talk.follow(body(user(PROMPT[: len(PROMPT) // 2]))) > 0


async def test_other_tools(fleet: Fleet, stream: bool, ids: dict[str, str]) -> None:
    talk = Talk(fleet, body(SYSTEM, user(PROMPT), tools=TOOLS[:1], tool_choice="none"), ids, stream=stream)
    reply = await talk.begin()
    second = body(SYSTEM, user(PROMPT), reply, user(MORE), tools=TOOLS, tool_choice="none")
    assert await talk.follow(second) % BLOCK == 0


@pytest.mark.parametrize("other", [{"model": "adapter"}, {"cache_salt": "s"}], ids=["lora", "salt"])
async def test_another_adapter_or_salt(fleet: Fleet, stream: bool, ids: dict[str, str], other: dict[str, Any]) -> None:
    reply = await fleet.turn(body(user(PROMPT)), stream=stream, headers=ids)
    await fleet.turn(body(user(PROMPT), reply, user(MORE), **other), stream=stream, headers=ids)
    assert await fleet.last_reuse() == 0


async def test_an_image_in_the_history(fleet: Fleet, stream: bool, ids: dict[str, str]) -> None:
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}
    reply = await fleet.turn(body(user(PROMPT)), stream=stream, headers=ids)
    await fleet.turn(body(user(PROMPT), reply, picture, user(MORE)), stream=stream, headers=ids)
    assert (await fleet.router.reuse()).counters.not_eligible == {"multimodal": 1}
    assert await fleet.last_reuse() == 0


@pytest.mark.parametrize("second", [MORE, MORE + "Or not?"], ids=["same", "branch"])
async def test_two_follow_ups_at_once(fleet: Fleet, stream: bool, ids: dict[str, str], second: str) -> None:
    reply = await fleet.turn(body(user(PROMPT)), stream=stream, headers=ids)
    turns = [body(user(PROMPT), reply, user(text)) for text in (MORE, second)]
    await asyncio.gather(*(fleet.turn(turn, stream=stream, headers=ids) for turn in turns))
    counters = (await fleet.router.reuse()).counters
    assert (counters.follow_ups, counters.reused_turns, counters.misses) == (2, 1, {"used": 1})


@pytest.mark.parametrize(("seconds", "reason"), [(TTL_SECONDS + 1, "expired"), (TTL_SECONDS - 9, "expired")])
async def test_after_the_lease_or_close_to_its_end(
    fleet: Fleet, stream: bool, ids: dict[str, str], seconds: float, reason: str
) -> None:
    reply = await fleet.turn(body(user(PROMPT)), stream=stream, headers=ids)
    fleet.clock.advance(seconds)
    await fleet.turn(body(user(PROMPT), reply, user(MORE)), stream=stream, headers=ids)
    counters = (await fleet.router.reuse()).counters
    assert (counters.reused_tokens, counters.misses, counters.expired_handles) == (0, {reason: 1}, 1)


async def test_shortly_before_that(fleet: Fleet, stream: bool) -> None:
    talk = Talk(fleet, body(user(PROMPT)), {}, stream=stream)
    reply = await talk.begin()
    fleet.clock.advance(TTL_SECONDS - 11)
    assert await talk.follow(body(user(PROMPT), reply, user(MORE))) > 0


async def test_after_a_restart_of_decode(fleet: Fleet, stream: bool, ids: dict[str, str]) -> None:
    reply = await fleet.turn(body(user(PROMPT)), stream=stream, headers=ids)
    await fleet.restart(fleet.decode)
    await fleet.turn(body(user(PROMPT), reply, user(MORE)), stream=stream, headers=ids)
    assert (await fleet.router.reuse()).counters.misses == {"engine_restarted": 1}


async def test_after_a_restart_of_prefill(fleet: Fleet, stream: bool, ids: dict[str, str]) -> None:
    talk = Talk(fleet, body(user(PROMPT)), ids, stream=stream)
    reply = await talk.begin()
    await fleet.restart(fleet.prefill)
    assert await talk.follow(body(user(PROMPT), reply, user(MORE))) > 0


async def test_after_decode_has_left(stream: bool, ids: dict[str, str]) -> None:
    async with Fleet(decodes=2) as fleet:
        reply = await fleet.turn(body(user(PROMPT)), stream=stream, headers=ids)
        pool = fleet.router.app.pool
        holder = max(fleet.decode, key=leases)
        pool.update([e.endpoint for e in pool.all() if not holder.url.endswith(e.address)])
        await holder.stop()
        await fleet.turn(body(user(PROMPT), reply, user(MORE)), stream=stream, headers=ids)
        assert (await fleet.router.reuse()).counters.misses == {"engine_gone": 1}


async def test_another_tenant(fleet: Fleet, stream: bool, ids: dict[str, str]) -> None:
    alice, bob = ({**ids, "authorization": f"Bearer {name}"} for name in ("alice", "bob"))
    reply = await fleet.turn(body(user(PROMPT)), stream=stream, headers=alice)
    await fleet.turn(body(user(PROMPT), reply, user(MORE)), stream=stream, headers=bob)
    assert await fleet.last_reuse() == 0
    await fleet.turn(body(user(PROMPT), reply, user(MORE)), stream=stream, headers=alice)
    assert await fleet.last_reuse() > 0


async def test_tool_calls_without_content(fleet: Fleet, stream: bool, ids: dict[str, str]) -> None:
    ask = {"tools": TOOLS, "max_tokens": 200}
    question = user(PROMPT + "Read the vane.")
    talk = Talk(fleet, body(SYSTEM, question, **ask), ids, stream=stream)
    reply = await talk.begin()
    assert "content" not in reply
    call = reply["tool_calls"][0]["id"]
    results = [{"role": "tool", "tool_call_id": call, "content": text} for text in ("12 knots", "from the north")]
    second = body(SYSTEM, question, {"content": None, **reply}, *results, **ask)
    assert await talk.follow(second) == len(prompt_of(talk.first) + talk.tokens) - 1


async def test_stopped_by_a_stop_string(fleet: Fleet, stream: bool, ids: dict[str, str]) -> None:
    first = await fleet.cold(body(user(PROMPT)))
    stop = first["choices"][0]["message"]["content"][20:24]
    reply = await fleet.turn(body(user(PROMPT), stop=[stop]), stream=stream, headers=ids)
    await fleet.turn(body(user(PROMPT), reply, user(MORE)), stream=stream, headers=ids)
    assert (await fleet.router.reuse()).counters.misses == {"no_handle": 1}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"n": 2}, "n"), ({"truncate_prompt_tokens": 1000}, "truncate_prompt_tokens"), ({"echo": True}, "echo")],
)
async def test_requests_that_cannot_reuse(fleet: Fleet, stream: bool, fields: dict[str, Any], reason: str) -> None:
    status, raw = await fleet.router.post({**body(user(PROMPT)), **fields, "stream": stream})
    assert status == 200, raw
    assert (await fleet.router.reuse()).counters.not_eligible == {reason: 1}
    assert leases(fleet.prefill[0]) == leases(fleet.decode[0]) == 0


async def test_a_list_of_prompts(fleet: Fleet) -> None:
    sent = {"model": "tiny", "prompt": ["One day", "Two days"], "max_tokens": 5}
    status, raw = await fleet.router.post(sent, path="/v1/completions")
    assert status == 200, raw
    assert (await fleet.router.reuse()).counters.not_eligible == {"prompt_list": 1}
