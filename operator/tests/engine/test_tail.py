"""The end of a stream: where the handle goes, and what passes untouched."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from kvloop.engine.tail import Tail, current

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

HANDLE = {"do_remote_decode": True, "remote_host": "10.0.0.1"}
FIRST = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [{"index": 0}]}
DONE = "data: [DONE]\n\n"


def sse(data: Any) -> str:
    return f"data: {json.dumps(data)}\n\n"


async def played(events: list[str], handle_before: int | None) -> list[str]:
    """What comes out, if the request ends while event number `handle_before` is waited for."""

    async def stream() -> AsyncGenerator[str, None]:
        for number, event in enumerate(events):
            if number == handle_before:
                tail = current.get()
                assert tail is not None
                tail.handle = HANDLE
            yield event

    return [event async for event in Tail(stream())]


async def test_an_openai_stream_gets_one_event_before_its_end() -> None:
    events = [sse(FIRST), sse({**FIRST, "choices": [{"finish_reason": "stop"}]}), sse({"usage": {}}), DONE]
    for ends_at in range(3):  # the event with the finish reason comes after the request's end
        out = await played(events, ends_at)
        assert out[:3] + out[4:] == events
        assert json.loads(out[3].removeprefix("data: ")) == {**FIRST, "choices": [], "kv_transfer_params": HANDLE}


async def test_an_anthropic_stream_has_it_in_its_last_event() -> None:
    stop = 'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    *events, last = await played(["event: message_start\ndata: {}\n\n", "event: ping\ndata: {}\n\n", stop], 1)
    assert events == ["event: message_start\ndata: {}\n\n", "event: ping\ndata: {}\n\n"]
    event, data = last.rstrip("\n").split("\n")
    assert event == "event: message_stop"
    assert json.loads(data.removeprefix("data: ")) == {"type": "message_stop", "kv_transfer_params": HANDLE}


async def test_a_stream_without_a_handle_passes_as_it_is() -> None:
    events = [sse(FIRST), sse({"error": {"code": 500}}), DONE]
    assert await played(events, None) == events


async def test_the_words_in_a_text_are_not_the_end() -> None:
    events = [sse(FIRST), sse({**FIRST, "choices": [{"delta": {"content": "data: [DONE]\n\n"}}]}), DONE]
    out = await played(events, 0)
    assert len(out) == 4
    assert out[1] == events[1]


async def test_closing_closes_what_is_inside() -> None:
    closed = asyncio.Event()

    async def stream() -> AsyncGenerator[str, None]:
        try:
            yield sse(FIRST)
            yield DONE
        finally:
            closed.set()

    tail = Tail(stream())
    await anext(tail)
    await tail.aclose()
    assert closed.is_set()
    assert current.get() is tail
