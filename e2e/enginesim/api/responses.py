"""``/v1/responses``: chat as a list of items, in and out, as vLLM does it without stored responses."""

from __future__ import annotations

import itertools
import uuid
from typing import TYPE_CHECKING, Any

from e2e.enginesim.api import common
from e2e.enginesim.api.chat import ChatCall
from e2e.enginesim.api.common import ApiError, field_of
from e2e.enginesim.api.reply import ParseError
from e2e.enginesim.request import EngineError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web

    from e2e.enginesim.api.reply import Delta
    from e2e.enginesim.frontend import Frontend

_KEPT = (
    "model", "temperature", "seed", "ignore_eos", "stop", "stop_token_ids", "cache_salt", "chat_template_kwargs",
    "kv_transfer_params", "tool_choice", "stream",
)  # fmt: skip


async def handle(http: web.Request) -> web.StreamResponse:
    body = await common.read_body(http)
    call = ResponsesCall(http.app[common.FRONTEND], http, body)
    if field_of(body, "stream", bool, default=False):
        return await common.stream(http, call.events())
    return common.json_response(await call.answer())


def chat_body(body: dict[str, Any]) -> dict[str, Any]:
    """The chat request that a Responses one stands for; raises ApiError."""
    if body.get("previous_response_id"):
        raise ApiError(404, f"Response with id '{body['previous_response_id']}' not found.", "NotFoundError")
    given = field_of(body, "input", (str, list))
    if given is None:
        raise ApiError(400, "1 validation error:\n  input: Field required", "Bad Request", "body.input")
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else _chat_messages(given)
    if field_of(body, "instructions", str):
        messages.insert(0, {"role": "system", "content": body["instructions"]})
    chat = {name: body[name] for name in _KEPT if name in body}
    chat.update(messages=messages, max_tokens=body.get("max_output_tokens"))
    tools = [t for t in field_of(body, "tools", list, []) if t.get("type") == "function"]
    if tools:
        chat["tools"] = [
            {"type": "function", "function": {"name": t.get("name"), "parameters": t.get("parameters") or {}}}
            for t in tools
        ]
        choice = body.get("tool_choice", "auto")
        if isinstance(choice, dict):
            chat["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    return chat


def _chat_messages(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Reasoning and calls come as items of their own and belong to the assistant message beside them."""
    messages: list[dict[str, Any]] = []
    for item in items:
        match item.get("type", "message"):
            case "function_call_output":
                messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
            case "function_call":
                function = {"name": item.get("name"), "arguments": item.get("arguments")}
                call = {"id": item.get("call_id"), "type": "function", "function": function}
                _assistant(messages).setdefault("tool_calls", []).append(call)
            case "reasoning":
                thought = "".join(str(part.get("text", "")) for part in item.get("content") or [])
                messages.append({"role": "assistant", "content": None, "reasoning": thought})
            case _ if item.get("role") == "assistant":
                _assistant(messages)["content"] = _content(item)
            case _:
                messages.append({"role": item.get("role"), "content": _content(item)})
    return messages


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant message that is being put together, or a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _content(item: dict[str, Any]) -> Any:
    content = item.get("content")
    if not isinstance(content, list):
        return content
    return [{**part, "type": "text"} if part.get("type") in ("input_text", "output_text") else part for part in content]


class ResponsesCall(ChatCall):
    def __init__(self, frontend: Frontend, http: web.Request, body: dict[str, Any]) -> None:
        self.original = body
        super().__init__(frontend, http, chat_body(body))

    def new_id(self, http: web.Request) -> str:  # noqa: ARG002 - vLLM takes no header here
        return str(self.original.get("request_id") or f"resp_{uuid.uuid4().hex[:16]}")

    async def answer(self) -> dict[str, Any]:
        (choice,) = await self.collect()
        return self._response(_Items(self.parts(0)).whole, finish=choice.finish_reason)

    async def events(self) -> AsyncIterator[bytes]:
        numbers = itertools.count()

        def event(kind: str, **fields: Any) -> bytes:
            body = {"type": kind, "sequence_number": next(numbers), **fields}
            return b"event: " + kind.encode() + b"\n" + common.sse(body)

        finish: str | None = None
        items = _Items()
        try:
            started = False
            async for output in self._outputs():
                if not started:
                    started = True
                    for kind in ("response.created", "response.in_progress"):
                        yield event(kind, response=self._response([], finish=None))
                finish = output.finish_reason
                for kind, fields in items.push(self._parse(output)):
                    yield event(kind, **fields)
            for kind, fields in items.close():
                yield event(kind, **fields)
        except (EngineError, ParseError):
            yield event("error", **common.internal_error().body["error"])
            return
        yield event("response.completed", response=self._response(items.whole, finish=finish))

    def _response(self, output: list[dict[str, Any]], *, finish: str | None) -> dict[str, Any]:
        status = {None: "in_progress", "length": "incomplete"}.get(finish, "completed")
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "model": self.model,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": self.original.get("instructions"),
            "output": output,
            "tools": self.original.get("tools", []),
            "tool_choice": self.original.get("tool_choice", "auto"),
            "max_output_tokens": self.requests[0].sampling.max_tokens,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "usage": None if finish is None else self._usage(),
            "kv_transfer_params": self.handle if finish is not None else None,
        }

    def _usage(self) -> dict[str, Any]:
        prompt, cached = self.prompt_tokens(), common.cached_tokens(self.frontend, self.requests[0])
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached or 0},
            "output_tokens": self.count,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + self.count,
        }


def _empty(kind: str, part_kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A new message or reasoning item, and its one part."""
    part: dict[str, Any] = {"type": part_kind, "text": ""}
    item = {"id": f"{kind[:3]}_{uuid.uuid4().hex[:16]}", "type": kind, "status": "in_progress", "content": [part]}
    if kind == "message":
        item["role"] = "assistant"
        part["annotations"] = []
    else:
        item["summary"] = []
    return item, part


class _Items:
    """Output items as they grow, with the events that tell of it."""

    def __init__(self, parts: Delta | None = None) -> None:
        self.whole: list[dict[str, Any]] = []
        self._open: str | None = None
        if parts is not None:
            self.push(parts)
            self.close()

    def push(self, delta: Delta) -> list[tuple[str, dict[str, Any]]]:
        events: list[tuple[str, dict[str, Any]]] = []
        if delta.reasoning:
            events += self._text("reasoning", "reasoning_text", delta.reasoning)
        if delta.content:
            events += self._text("message", "output_text", delta.content)
        for call in delta.tool_calls:
            events += self._call(call)
        return events

    def close(self) -> list[tuple[str, dict[str, Any]]]:
        if self._open is None:
            return []
        item, where = self.whole[-1], self._where()
        part = item["content"][0]
        kind, self._open, item["status"] = self._open, None, "completed"
        return [
            (f"response.{kind}.done", {**where, "content_index": 0, "text": part["text"]}),
            ("response.content_part.done", {**where, "content_index": 0, "part": part}),
            ("response.output_item.done", {"output_index": where["output_index"], "item": item}),
        ]

    def _text(self, kind: str, part_kind: str, text: str) -> list[tuple[str, dict[str, Any]]]:
        events = []
        if self._open != part_kind:
            events += self.close()
            item, part = _empty(kind, part_kind)
            self.whole.append(item)
            self._open = part_kind
            where = self._where()
            added = {**item, "content": []}
            events.append(("response.output_item.added", {"output_index": where["output_index"], "item": added}))
            events.append(("response.content_part.added", {**where, "content_index": 0, "part": dict(part)}))
        self.whole[-1]["content"][0]["text"] += text
        events.append((f"response.{part_kind}.delta", {**self._where(), "content_index": 0, "delta": text}))
        return events

    def _call(self, call: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        events = self.close()
        function = call["function"]
        item = {
            "id": f"fc_{uuid.uuid4().hex[:16]}",
            "type": "function_call",
            "status": "completed",
            "call_id": call["id"].replace("chatcmpl-tool", "call"),
            "name": function["name"],
            "arguments": function["arguments"],
        }
        self.whole.append(item)
        where = self._where()
        started = {**item, "status": "in_progress", "arguments": ""}
        return [
            *events,
            ("response.output_item.added", {"output_index": where["output_index"], "item": started}),
            ("response.function_call_arguments.delta", {**where, "delta": function["arguments"]}),
            ("response.function_call_arguments.done", {**where, "arguments": function["arguments"]}),
            ("response.output_item.done", {"output_index": where["output_index"], "item": item}),
        ]

    def _where(self) -> dict[str, Any]:
        return {"output_index": len(self.whole) - 1, "item_id": self.whole[-1]["id"]}
