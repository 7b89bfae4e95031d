"""The two legs and the handle between turns, on scripted engines."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from aiohttp import web

from e2e.router.fake import FakeEngine
from e2e.router.harness import Router, assistant, config, eventually, user
from kvloop.router import keep

TURN_1 = (user("hi"),)
TURN_2 = (user("hi"), assistant("Hello world"), user("go on"))


@dataclass
class Pair:
    router: Router
    prefill: FakeEngine
    decode: FakeEngine


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with FakeEngine("prefill") as p, FakeEngine("decode") as d, Router(config([p.url], [d.url])) as router:
        yield Pair(router, p, d)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_follow_up_returns_the_handle_once(pair: Pair, stream: bool) -> None:
    await pair.router.chat(*TURN_1, stream=stream)
    await pair.router.chat(*TURN_2, stream=stream)
    first, second = pair.prefill.seen
    assert not first.handle
    assert second.handle
    assert second.kv["remote_request_id"] == f"chatcmpl-{pair.decode.port}-0"
    assert second.kv["some_future_key"] == [1]
    counters = (await pair.router.reuse()).counters
    assert (counters.turns, counters.follow_ups, counters.reused_turns) == (2, 1, 1)
    assert (counters.prompt_tokens, counters.reused_tokens, counters.recomputed_tokens) == (1000, 1000, 0)
    await pair.router.chat(*TURN_2, stream=stream)
    assert not pair.prefill.seen[2].handle
    assert (await pair.router.reuse()).counters.misses == {"used": 1}


async def test_the_stream_is_passed_on_byte_for_byte_without_the_handle(pair: Pair) -> None:
    answer = await pair.router.chat(*TURN_1, stream=True)
    assert answer == b"".join(pair.decode.events(with_handle=False))


@pytest.mark.parametrize("handle", [False, True])
async def test_a_stream_s_last_event_waits_until_the_turn_is_kept(
    pair: Pair, handle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients follow up as soon as they see it."""
    events, read, kept, release = pair.decode.events(with_handle=handle), bytearray(), asyncio.Event(), asyncio.Event()

    async def hold(*_: Any) -> None:
        kept.set()
        await release.wait()

    async def one_by_one(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(event)
            await asyncio.sleep(0)
        return response

    async def client() -> None:
        body = {"model": "tiny", "messages": TURN_1, "stream": True}
        async with pair.router.session.post(f"{pair.router.url}/v1/chat/completions", json=body) as answer:
            async for piece in answer.content.iter_any():
                read.extend(piece)

    monkeypatch.setattr(keep, "run", hold)
    pair.decode.script.append(one_by_one)
    task = asyncio.create_task(client())
    await kept.wait()
    await eventually(lambda: b" world" in read, "all content is there")
    assert b"[DONE]" not in read
    release.set()
    await task
    assert read.endswith(b"data: [DONE]\n\n")


async def test_legs_are_shaped_for_their_engines(pair: Pair) -> None:
    await pair.router.chat(
        *TURN_1, stream=True, max_completion_tokens=20, min_tokens=5, tool_choice="required", tools=[{"a": 1}], seed=3
    )
    leg = pair.prefill.seen[0].body
    assert leg == {
        "model": "tiny",
        "messages": [user("hi")],
        "tools": [{"a": 1}],
        "seed": 3,
        "max_tokens": 1,
        "stream": False,
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
    }
    leg = pair.decode.seen[0].body
    assert leg["kv_transfer_params"]["do_remote_prefill"] is True
    assert leg["max_completion_tokens"] == 20
    assert leg["tool_choice"] == "required"


async def test_a_whole_answer_loses_the_handle_and_nothing_else(pair: Pair) -> None:
    answer = orjson.loads(await pair.router.chat(*TURN_1))
    expected = pair.decode.answer("Hello world", None)
    del expected["kv_transfer_params"]
    assert answer == expected
