"""The four dialects: how each writes a conversation and where it puts a reply."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from e2e.contract.client import FIRST, Answer, Client

if TYPE_CHECKING:
    from collections.abc import Callable

    from e2e.contract.engines import Engines

SYSTEM = "You are an agent that reads files and edits lines. " * 12
ASK = "Use read_file, and then say more. " * 4
MORE = "Now go on without it, please. " * 4
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}}


@dataclass(frozen=True)
class Dialect:
    """How a conversation is written: a list of user texts and assistant replies as this dialect gave them."""

    path: str
    limit: str
    write: Callable[[list[Any]], dict[str, Any]]
    tools: list[dict[str, Any]]
    reply: Callable[[Answer], Any]
    """What of an answer goes into the history."""
    result: Callable[[Any], Any]
    """A tool's result for that reply."""


def chat_message(answer: Answer) -> dict[str, Any]:
    if not answer.events:
        return {k: v for k, v in answer.body["choices"][0]["message"].items() if v}
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning": "", "tool_calls": []}
    for event in answer.events:
        if isinstance(event, dict) and event.get("choices"):
            delta = event["choices"][0]["delta"]
            for key in ("content", "reasoning", "tool_calls"):
                message[key] += delta.get(key) or type(message[key])()
    return {k: v for k, v in message.items() if v}


def completion_text(answer: Answer) -> str:
    if not answer.events:
        text: str = answer.body["choices"][0]["text"]
        return text
    return "".join(e["choices"][0]["text"] for e in answer.events if isinstance(e, dict) and e["choices"])


def anthropic_content(answer: Answer) -> list[dict[str, Any]]:
    if not answer.events:
        whole: list[dict[str, Any]] = answer.body["content"]
        return whole
    blocks: list[dict[str, Any]] = []
    for event in answer.events:
        assert isinstance(event, dict)
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            for source, target in (("text", "text"), ("thinking", "thinking"), ("partial_json", "json")):
                if source in delta:
                    blocks[-1][target] += delta[source]
    return [_parsed(block) for block in blocks]


def _parsed(block: dict[str, Any]) -> dict[str, Any]:
    text = block.pop("json")
    return {**block, "input": json.loads(text)} if block["type"] == "tool_use" else block


def response_items(answer: Answer) -> list[dict[str, Any]]:
    items: list[dict[str, Any]]
    if not answer.events:
        items = answer.body["output"]
        return items
    assert isinstance(answer.events[-1], dict)
    items = answer.events[-1]["response"]["output"]
    done = [e["item"] for e in answer.events if isinstance(e, dict) and e["type"] == "response.output_item.done"]
    assert items == done
    return items


def chat_history(turns: list[Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": t} if isinstance(t, str) else t for t in turns]
    return {"messages": [{"role": "system", "content": SYSTEM}, *messages]}


def anthropic_history(turns: list[Any]) -> dict[str, Any]:
    def message(turn: Any) -> dict[str, Any]:
        if isinstance(turn, list):
            return {"role": "user" if turn[0]["type"] == "tool_result" else "assistant", "content": turn}
        return {"role": "user", "content": turn}

    return {"system": SYSTEM, "messages": [message(t) for t in turns]}


def response_history(turns: list[Any]) -> dict[str, Any]:
    items: list[Any] = []
    for turn in turns:
        items += turn if isinstance(turn, list) else [{"role": "user", "content": turn}]
    return {"instructions": SYSTEM, "input": items}


def completion_history(turns: list[Any]) -> dict[str, Any]:
    return {"prompt": SYSTEM + "".join(turns)}


DIALECTS = {
    "chat": Dialect(
        "/v1/chat/completions", "max_tokens", chat_history,
        [{"type": "function", "function": {"name": "read_file", "parameters": SCHEMA}}], chat_message,
        lambda reply: {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "ok"},
    ),
    "completions": Dialect(
        "/v1/completions", "max_tokens", completion_history, [], completion_text, lambda _: "ok"
    ),
    "messages": Dialect(
        "/v1/messages", "max_tokens", anthropic_history, [{"name": "read_file", "input_schema": SCHEMA}],
        anthropic_content,
        lambda reply: [{"type": "tool_result", "tool_use_id": reply[-1]["id"], "content": "ok"}],
    ),
    "responses": Dialect(
        "/v1/responses", "max_output_tokens", response_history,
        [{"type": "function", "name": "read_file", "parameters": SCHEMA}], response_items,
        lambda reply: [{"type": "function_call_output", "call_id": reply[-1]["call_id"], "output": "ok"}],
    ),
}  # fmt: skip


class Talk:
    def __init__(self, engines: Engines, client: Client, dialect: Dialect, *, stream: bool, **fields: Any) -> None:
        self.engines, self.client, self.dialect = engines, client, dialect
        self._stream, self._fields = stream, fields
        self.turns: list[Any] = []
        self.handle: dict[str, Any] | None = None
        self.report: dict[str, Any] | None = None
        self.answer = Answer(0, {})

    async def say(self, turn: Any) -> Any:
        """One turn with a new user text or tool result; returns the reply, having compared it with a cold one."""
        self.turns.append(turn)
        path, limit = self.dialect.path, self.dialect.limit
        body = {**self.dialect.write(self.turns), **self._fields}
        leg = {**body, limit: 1, "kv_transfer_params": self.handle or dict(FIRST)}
        first = await self.client.post(self.engines.prefill, path, leg)
        assert first.status == 200, first.body
        self.report = first.report
        whole = {**body, limit: 120, "stream": self._stream, "kv_transfer_params": first.handle}
        self.answer = await self.client.post(self.engines.decode[0], path, whole)
        assert self.answer.status == 200, self.answer.body
        self.handle = self.answer.handle
        cold = await self.client.post(self.engines.prefill, path, {**body, limit: 120, "cache_salt": "cold"})
        reply = self.dialect.reply(self.answer)
        assert without_ids(reply) == without_ids(self.dialect.reply(cold))
        self.turns.append(reply)
        return reply


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_ids(v) for k, v in value.items() if k not in ("id", "call_id", "index", "signature")}
    return [without_ids(v) for v in value] if isinstance(value, list) else value
