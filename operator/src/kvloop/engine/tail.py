"""The handle of a streamed answer, for vLLM versions that leave it out of their streams.

A stream is passed on as it is: until its request has ended nothing is done per token but to hand over the next event's
awaitable. Then the handle goes out with the end: for OpenAI's APIs as an event of its own before ``[DONE]``, for
Anthropic's as a key of ``message_stop``, as newer versions do.
"""

from __future__ import annotations

import json
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable

current: ContextVar[Tail | None] = ContextVar("kvloop_tail", default=None)
"""The stream that the running task produces, for the requests that it sends to the engine."""

_DONE = "data: [DONE]\n\n"
_STOP = 'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_ENVELOPE = ("id", "object", "created", "model")


class Tail:
    """A stream of server-sent events that ends with the handle, once `handle` is set."""

    def __init__(self, events: AsyncGenerator[str, None]) -> None:
        self._events = events
        self._first: str | None = None
        self._waiting: str | None = None
        self.handle: dict[str, Any] | None = None

    def __aiter__(self) -> Tail:
        return self

    def __anext__(self) -> Awaitable[str]:
        if self._first is None:
            return self._begin()
        if self.handle is None:
            return self._events.__anext__()
        return self._end()

    async def aclose(self) -> None:
        await self._events.aclose()

    async def _begin(self) -> str:
        current.set(self)
        self._first = await self._events.__anext__()
        return self._first

    async def _end(self) -> str:
        if self._waiting is not None:
            event, self._waiting = self._waiting, None
            return event
        event = await self._events.__anext__()
        if event == _DONE and self._first is not None:
            self._waiting = event
            return _event({**_envelope(self._first), "choices": [], "kv_transfer_params": self.handle})
        if event == _STOP:
            return "event: message_stop\n" + _event({"type": "message_stop", "kv_transfer_params": self.handle})
        return event


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n"


def _envelope(event: str) -> dict[str, Any]:
    """What all chunks of an answer have in common."""
    chunk = json.loads(event.removeprefix("data: "))
    return {key: chunk[key] for key in _ENVELOPE if key in chunk}
