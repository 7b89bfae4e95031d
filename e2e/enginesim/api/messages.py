"""``/v1/messages``, the Anthropic dialect: chat in other words, in and out, as vLLM does it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import orjson

from e2e.enginesim.api import common
from e2e.enginesim.api.chat import ChatCall
from e2e.enginesim.api.common import ApiError, field_of
from e2e.enginesim.api.reply import ParseError
from e2e.enginesim.request import EngineError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web

    from e2e.enginesim.api.reply import Delta

_STOPS = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_KEPT = (
    "model",
    "temperature",
    "seed",
    "ignore_eos",
    "cache_salt",
    "chat_template_kwargs",
    "kv_transfer_params",
    "stream",
)


async def handle(http: web.Request) -> web.StreamResponse:
    try:
        body = await common.read_body(http)
        call = MessagesCall(http.app[common.FRONTEND], http, chat_body(body))
        if field_of(body, "stream", bool, default=False):
            return await common.stream(http, call.events())
        return common.json_response(await call.answer())
    except ApiError as error:
        inner = error.body["error"]
        if inner["type"] == "Bad Request":
            raise  # fields of a wrong type are found before the API's own code runs, and told in OpenAI's shape
        return common.json_response(
            {"type": "error", "error": {"type": inner["type"], "message": inner["message"]}}, error.status
        )


async def count_tokens(http: web.Request) -> web.Response:
    body = await common.read_body(http)
    call = MessagesCall(http.app[common.FRONTEND], http, chat_body({**body, "max_tokens": 1}))
    return common.json_response({"input_tokens": call.prompt_tokens()})


def chat_body(body: dict[str, Any]) -> dict[str, Any]:
    """The chat request that an Anthropic one stands for; raises ApiError."""
    if not field_of(body, "max_tokens", int):
        raise ApiError(400, "1 validation error:\n  max_tokens: Field required", "Bad Request", "body.max_tokens")
    messages: list[dict[str, Any]] = []
    system = field_of(body, "system", (str, list))
    if system:
        text = system if isinstance(system, str) else "".join(str(block.get("text", "")) for block in system)
        messages.append({"role": "system", "content": text})
    for message in field_of(body, "messages", list, []):
        messages += _chat_messages(message)
    chat = {name: body[name] for name in _KEPT if name in body}
    chat.update(messages=messages, max_tokens=body["max_tokens"], stop=body.get("stop_sequences"))
    tools = field_of(body, "tools", list, [])
    if tools:
        chat["tools"] = [
            {"type": "function", "function": {"name": t["name"], "parameters": t.get("input_schema", {})}}
            for t in tools
        ]
        choice = field_of(body, "tool_choice", dict, {"type": "auto"})
        named = {"type": "function", "function": {"name": choice.get("name")}}
        chat["tool_choice"] = named if choice.get("type") == "tool" else _CHOICES.get(str(choice.get("type")), "auto")
    return chat


def _chat_messages(message: dict[str, Any]) -> list[dict[str, Any]]:
    """One message may hold tool results, each of which is a chat message of its own, before the rest."""
    content = message.get("content")
    if not isinstance(content, list):
        return [{"role": message.get("role"), "content": content}]
    results, parts, calls, thoughts = [], [], [], []
    for block in content:
        match block.get("type"):
            case "tool_result":
                results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _text(block)})
            case "tool_use":
                function = {"name": block.get("name"), "arguments": orjson.dumps(block.get("input") or {}).decode()}
                calls.append({"id": block.get("id"), "type": "function", "function": function})
            case "thinking":
                thoughts.append(str(block.get("thinking", "")))
            case "text":
                parts.append(block)
            case "image":
                parts.append({"type": "image_url", "image_url": {}})
    whole: dict[str, Any] = {"role": message.get("role"), "content": parts or None}
    if calls:
        whole["tool_calls"] = calls
    if thoughts:
        whole["reasoning"] = "".join(thoughts)
    return results + ([whole] if parts or calls or thoughts else [])


def _text(block: dict[str, Any]) -> str:
    content = block.get("content") or ""
    return content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)


class MessagesCall(ChatCall):
    async def answer(self) -> dict[str, Any]:
        (choice,) = await self.collect()
        parts = self.parts(0)
        content: list[dict[str, Any]] = []
        if parts.reasoning:
            content.append({"type": "thinking", "thinking": parts.reasoning, "signature": uuid.uuid4().hex})
        if parts.content or not (parts.reasoning or parts.tool_calls):
            content.append({"type": "text", "text": parts.content})
        for call in parts.tool_calls:
            arguments = orjson.loads(call["function"]["arguments"])
            content.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": arguments})
        answer = {
            **self._message(content),
            **self._stop(choice.finish_reason, choice.stop_reason, called=bool(parts.tool_calls)),
            "usage": self._usage(),
        }
        if self.handle is not None:
            answer["kv_transfer_params"] = self.handle
        return answer

    async def events(self) -> AsyncIterator[bytes]:
        """There is no ``[DONE]`` here: vLLM 0.33, and kvloop's plugin before, put the handle into ``message_stop``."""
        blocks = _Blocks()
        called = False
        finish: str | None = None
        stop: int | str | None = None
        try:
            started = False
            async for output in self._outputs():
                if not started:
                    started = True
                    start = {**self._message([]), "stop_reason": None, "stop_sequence": None, "usage": self._usage(0)}
                    yield _event({"type": "message_start", "message": start})
                finish, stop = output.finish_reason, output.stop_reason
                delta = self._parse(output)
                called = called or bool(delta.tool_calls)
                for event in blocks.push(delta):
                    yield _event(event)
            for event in blocks.close():
                yield _event(event)
        except (EngineError, ParseError):
            yield _event({"type": "error", "error": {"type": "internal_error", "message": "Internal server error"}})
            return
        end = {"type": "message_delta", "delta": self._stop(finish, stop, called=called), "usage": self._usage()}
        yield _event(end)
        stop_event: dict[str, Any] = {"type": "message_stop"}
        if self.handle is not None and (self.frontend.features.handle_in_stream or self.frontend.adds_stream_event):
            stop_event["kv_transfer_params"] = self.handle
        yield _event(stop_event)

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "content": content, "model": self.model}

    def _stop(self, finish: str | None, stop: int | str | None, *, called: bool) -> dict[str, Any]:
        if finish == "stop" and called:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if finish == "stop" and isinstance(stop, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        return {"stop_reason": _STOPS.get(finish or ""), "stop_sequence": None}

    def _usage(self, output: int | None = None) -> dict[str, Any]:
        usage = {"input_tokens": self.prompt_tokens(), "output_tokens": self.count if output is None else output}
        cached = common.cached_tokens(self.frontend, self.requests[0])
        if cached is not None:
            usage["input_tokens"] -= cached
            usage["cache_read_input_tokens"] = cached
        return usage


class _Blocks:
    """Content blocks of a stream: at most one is open, and each kind of delta has its own."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None

    def push(self, delta: Delta) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        if delta.reasoning:
            events += self._need("thinking", {"type": "thinking", "thinking": ""})
            events.append(self._delta({"type": "thinking_delta", "thinking": delta.reasoning}))
        if delta.content:
            events += self._need("text", {"type": "text", "text": ""})
            events.append(self._delta({"type": "text_delta", "text": delta.content}))
        for call in delta.tool_calls:
            block = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": {}}
            events += self._need(call["id"], block)
            events.append(self._delta({"type": "input_json_delta", "partial_json": call["function"]["arguments"]}))
        return events

    def close(self) -> list[dict[str, Any]]:
        if self._open is None:
            return []
        events = []
        if self._open == "thinking":
            events.append(self._delta({"type": "signature_delta", "signature": uuid.uuid4().hex}))
        self._open = None
        return [*events, {"type": "content_block_stop", "index": self._index}]

    def _need(self, kind: str, block: dict[str, Any]) -> list[dict[str, Any]]:
        if self._open == kind:
            return []
        events = self.close()
        self._index, self._open = self._index + 1, kind
        return [*events, {"type": "content_block_start", "index": self._index, "content_block": block}]

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def _event(event: dict[str, Any]) -> bytes:
    return b"event: " + str(event["type"]).encode() + b"\n" + common.sse(event)
