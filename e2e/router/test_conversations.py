"""What a follow-up may look like: its answer is a cold engine's, and what is reused is what the tokens allow.

In all dialects, streaming and not, with a conversation id and, where the dialect has messages, without.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from e2e.router.harness import assistant, eventually, user
from e2e.router.sim import BLOCK, TTL_SECONDS, Fleet, expected_reuse, leases
from e2e.router.talk import DIALECTS, Chat

PROMPT = "Tell me about the tides of the northern sea. " * 14
MORE = "And what follows from that for the harbour? " * 3
SYSTEM = {"role": "system", "content": "You are a careful assistant. " * 8}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": {"place": {"type": "string"}}}}}
    for name in ("gauge", "vane")
]
NAMED = {"x-conversation-id": "c1"}


def body(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A turn, told as a chat request."""
    return {"model": "tiny", "messages": list(messages), "max_tokens": 40, **fields}


FIRST = body(user(PROMPT))


@dataclass
class Way:
    """How a conversation is held."""

    dialect: Chat
    stream: bool
    headers: dict[str, str]


WAYS = [
    pytest.param(Way(dialect, stream, headers), id=f"{dialect.name}-{'stream' if stream else 'whole'}-{name}")
    for dialect in DIALECTS
    for stream in (False, True)
    for name, headers in (("id", NAMED), ("history", {}))
    if headers or not dialect.needs_id
]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    made: Way = request.param
    return made


@pytest.fixture
def named(way: Way) -> Way:
    """With a conversation id in any case: the history alone cannot tell what this turn follows."""
    if not way.headers:
        way = Way(way.dialect, way.stream, NAMED)
    return way


class Talk:
    """A first turn, and what its follow-up reuses."""

    def __init__(self, fleet: Fleet, way: Way, first: dict[str, Any] = FIRST) -> None:
        self.fleet, self.way, self.first = fleet, way, first

    async def turn(self, turn: dict[str, Any], headers: dict[str, str] | None = None) -> dict[str, Any]:
        way = self.way
        sent = {**way.headers, **(headers or {})}
        return await self.fleet.turn(turn, dialect=way.dialect, stream=way.stream, headers=sent)

    async def begin(self, headers: dict[str, str] | None = None) -> dict[str, Any]:
        """The first turn; returns its reply."""
        reply = await self.turn(self.first, headers)
        tokens = await self.fleet.reply_tokens(self.first, self.way.dialect)
        self.held = (self.way.dialect.tokens(self.first) + tokens)[:-1]
        return reply

    async def follow(self, second: dict[str, Any], headers: dict[str, str] | None = None) -> int:
        """The next turn; returns the tokens reused, after checking that they are what the tokens allow."""
        await self.turn(second, headers)
        reused = await self.fleet.last_reuse()
        assert reused == expected_reuse(self.held, self.way.dialect.tokens(second))
        return reused

    async def misses(self) -> dict[str, int]:
        return (await self.fleet.router.reuse()).counters.misses


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


async def test_the_history_and_a_new_message(fleet: Fleet, way: Way) -> None:
    talk = Talk(fleet, way)
    reply = await talk.begin()
    assert await talk.follow(body(user(PROMPT), reply, user(MORE))) == len(talk.held)


async def test_ten_turns_reuse_nearly_all(fleet: Fleet, way: Way) -> None:
    talk, messages = Talk(fleet, way), [SYSTEM, user(PROMPT)]
    for _ in range(10):
        messages += [await talk.turn(body(*messages)), user(MORE)]
    counters = (await fleet.router.reuse()).counters
    assert (counters.follow_ups, counters.reused_turns) == (9, 9)
    assert counters.reused_tokens > 0.8 * counters.prompt_tokens


async def test_the_reply_is_rendered_differently(fleet: Fleet, way: Way) -> None:
    talk = Talk(fleet, way)
    reply = await talk.begin()
    changed = assistant(reply["content"][:-10] + "something")
    reused = await talk.follow(body(user(PROMPT), changed, user(MORE)))
    assert 0 < reused < len(talk.held)
    assert reused % BLOCK == 0


async def test_the_thinking_is_left_out(way: Way) -> None:
    async with Fleet(reasoning=True) as fleet:
        talk = Talk(fleet, way, body(user(PROMPT), max_tokens=80))
        reply = await talk.begin()
        if way.dialect.name != "completions":
            assert reply["reasoning"]
        without = assistant(reply.get("content", "")[-60:])
        assert await talk.follow(body(user(PROMPT), without, user(MORE), max_tokens=80)) > 0


async def test_the_time_of_day_is_in_the_system_prompt(fleet: Fleet, named: Way) -> None:
    def system(time: str) -> dict[str, Any]:
        return {**SYSTEM, "content": f"{SYSTEM['content']} {SYSTEM['content']} It is {time}."}

    talk = Talk(fleet, named, body(system("12:01"), user(PROMPT)))
    reply = await talk.begin()
    assert await talk.follow(body(system("12:02"), user(PROMPT), reply, user(MORE))) > 0


async def test_the_history_is_compacted(fleet: Fleet, named: Way) -> None:
    talk = Talk(fleet, named)
    await talk.begin()
    assert leases(fleet.decode[0]) == 1
    assert await talk.follow(body(user("Summary: tides. " * 30), user(MORE))) == 0
    await eventually(lambda: leases(fleet.decode[0]) == 1, "only the new lease is left")


async def test_the_answer_is_asked_for_again(fleet: Fleet, named: Way) -> None:
    talk = Talk(fleet, named)
    await talk.begin()
    assert await talk.follow(FIRST) > 0


async def test_the_history_is_rewound(fleet: Fleet, named: Way) -> None:
    talk = Talk(fleet, named)
    await talk.begin()
    assert await talk.follow(body(user(PROMPT[: len(PROMPT) // 2]))) > 0


async def test_other_tools(fleet: Fleet, way: Way) -> None:
    talk = Talk(fleet, way, body(SYSTEM, user(PROMPT), tools=TOOLS[:1], tool_choice="none"))
    reply = await talk.begin()
    await talk.follow(body(SYSTEM, user(PROMPT), reply, user(MORE), tools=TOOLS, tool_choice="none"))


@pytest.mark.parametrize("other", [{"model": "adapter"}, {"cache_salt": "s"}], ids=["lora", "salt"])
async def test_another_adapter_or_salt(fleet: Fleet, way: Way, other: dict[str, Any]) -> None:
    talk = Talk(fleet, way)
    reply = await talk.begin()
    await talk.turn(body(user(PROMPT), reply, user(MORE), **other))
    assert await fleet.last_reuse() == 0


async def test_an_image_in_the_history(fleet: Fleet, way: Way) -> None:
    if way.dialect.name == "completions":
        return  # has no images
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}
    talk = Talk(fleet, way)
    reply = await talk.begin()
    await talk.turn(body(user(PROMPT), reply, picture, user(MORE)))
    assert (await fleet.router.reuse()).counters.not_eligible == {"multimodal": 1}
    assert await fleet.last_reuse() == 0


@pytest.mark.parametrize("second", [MORE, MORE + "Or not?"], ids=["retry", "branch"])
async def test_two_follow_ups_at_once(fleet: Fleet, way: Way, second: str) -> None:
    talk = Talk(fleet, way)
    reply = await talk.begin()
    await asyncio.gather(*(talk.turn(body(user(PROMPT), reply, user(text))) for text in (MORE, second)))
    counters = (await fleet.router.reuse()).counters
    assert (counters.follow_ups, counters.reused_turns, counters.misses) == (2, 1, {"used": 1})


@pytest.mark.parametrize("seconds", [TTL_SECONDS + 1, TTL_SECONDS - 9])
async def test_after_the_lease_or_close_to_its_end(fleet: Fleet, way: Way, seconds: float) -> None:
    talk = Talk(fleet, way)
    reply = await talk.begin()
    fleet.clock.advance(seconds)
    await talk.turn(body(user(PROMPT), reply, user(MORE)))
    counters = (await fleet.router.reuse()).counters
    assert (counters.reused_tokens, counters.misses, counters.expired_handles) == (0, {"expired": 1}, 1)


async def test_shortly_before_that(fleet: Fleet, way: Way) -> None:
    talk = Talk(fleet, way)
    reply = await talk.begin()
    fleet.clock.advance(TTL_SECONDS - 11)
    assert await talk.follow(body(user(PROMPT), reply, user(MORE))) > 0


async def test_after_a_restart_of_decode(fleet: Fleet, way: Way) -> None:
    talk = Talk(fleet, way)
    reply = await talk.begin()
    await fleet.restart(fleet.decode)
    await talk.turn(body(user(PROMPT), reply, user(MORE)))
    assert await talk.misses() == {"engine_restarted": 1}


async def test_after_a_restart_of_decode_that_nobody_noticed(fleet: Fleet, way: Way) -> None:
    """The handle reaches prefill, which fails; the turn is served without it."""
    talk = Talk(fleet, way)
    reply = await talk.begin()
    before = fleet.router.app.pool.all()
    infos = [engine.info for engine in before]
    await fleet.restart(fleet.decode)
    for engine, info in zip(before, infos, strict=True):
        engine.info = info
    await talk.turn(body(user(PROMPT), reply, user(MORE)))
    assert await talk.misses() == {"transfer_failed": 1}


async def test_after_a_restart_of_prefill(fleet: Fleet, way: Way) -> None:
    talk = Talk(fleet, way)
    reply = await talk.begin()
    await fleet.restart(fleet.prefill)
    assert await talk.follow(body(user(PROMPT), reply, user(MORE))) > 0


async def test_after_decode_has_left(way: Way) -> None:
    async with Fleet(decodes=2) as fleet:
        talk = Talk(fleet, way)
        reply = await talk.begin()
        pool = fleet.router.app.pool
        holder = max(fleet.decode, key=leases)
        pool.update([e.endpoint for e in pool.all() if not holder.url.endswith(e.address)])
        await holder.stop()
        await talk.turn(body(user(PROMPT), reply, user(MORE)))
        assert await talk.misses() == {"engine_gone": 1}


async def test_another_tenant(fleet: Fleet, way: Way) -> None:
    alice, bob = ({"authorization": f"Bearer {name}"} for name in ("alice", "bob"))
    talk = Talk(fleet, way)
    reply = await talk.begin(alice)
    await talk.turn(body(user(PROMPT), reply, user(MORE)), bob)
    assert await fleet.last_reuse() == 0
    assert await talk.follow(body(user(PROMPT), reply, user(MORE)), alice) == len(talk.held)


async def test_tool_calls_without_content(fleet: Fleet, way: Way) -> None:
    if way.dialect.name == "completions":
        return  # has no tools
    ask = {"tools": TOOLS, "max_tokens": 200}
    question = user(PROMPT + "Read the vane.")
    talk = Talk(fleet, way, body(SYSTEM, question, **ask))
    reply = await talk.begin()
    assert "content" not in reply
    call = reply["tool_calls"][0]["id"]
    results = [{"role": "tool", "tool_call_id": call, "content": text} for text in ("12 knots", "from the north")]
    second = body(SYSTEM, question, {"content": None, **reply}, *results, **ask)
    assert await talk.follow(second) == len(talk.held)


async def test_stopped_by_a_stop_string(fleet: Fleet, way: Way) -> None:
    if way.dialect.name == "responses":
        return  # knows no stop strings
    stop = (await Talk(fleet, way).begin())["content"][20:24]
    async with Fleet() as other:
        talk = Talk(other, way, body(user(PROMPT), stop=[stop]))
        reply = await talk.turn(talk.first)
        await talk.turn(body(user(PROMPT), reply, user(MORE)))
        assert await talk.misses() == {"no_handle": 1}


@pytest.mark.parametrize(
    "fields", [{"n": 2}, {"truncate_prompt_tokens": 1000}, {"echo": True}], ids=lambda f: next(iter(f))
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_requests_that_cannot_reuse(fleet: Fleet, stream: bool, fields: dict[str, Any]) -> None:
    for dialect in DIALECTS[:2]:
        status, raw = await fleet.router.post({**dialect.encode(FIRST), **fields, "stream": stream}, path=dialect.path)
        assert status == 200, raw
    assert (await fleet.router.reuse()).counters.not_eligible == {next(iter(fields)): 2}
    assert leases(fleet.prefill[0]) == leases(fleet.decode[0]) == 0


async def test_a_list_of_prompts(fleet: Fleet) -> None:
    sent = {"model": "tiny", "prompt": ["One day", "Two days"], "max_tokens": 5}
    status, raw = await fleet.router.post(sent, path="/v1/completions")
    assert status == 200, raw
    assert (await fleet.router.reuse()).counters.not_eligible == {"prompt_list": 1}


async def test_a_body_without_a_limit_of_tokens(fleet: Fleet) -> None:
    """Row 12."""
    unlimited = {key: value for key, value in body(user(PROMPT)).items() if key != "max_tokens"}
    status, raw = await fleet.router.post(unlimited)
    assert status == 200, raw
