"""Conversations through messages: templates, tools, thinking, and what of it is reused."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.contract.client import FIRST, Answer, Client
from e2e.contract.engines import Engines, Setup

PATH = "/v1/chat/completions"
SYSTEM = {"role": "system", "content": "You are an agent that reads files and edits lines. " * 12}
ASK = {"role": "user", "content": "Read the file and edit one line. " * 4}
MORE = {"role": "user", "content": "Now run the tests again. " * 4}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
    for name, properties in (
        ("read_file", {"path": {"type": "string"}, "lines": {"type": "integer"}}),
        ("run_tests", {"suite": {"enum": ["unit", "all"]}}),
    )
]


class Conversation:
    """Turns of one conversation, each checked against a cold computation."""

    def __init__(self, engines: Engines, client: Client, **fields: Any) -> None:
        self.engines, self.client, self.fields = engines, client, fields
        self.messages: list[dict[str, Any]] = [SYSTEM, ASK]
        self.handle: dict[str, Any] | None = None
        self.report: dict[str, Any] | None = None
        self.shared_limit = 0

    async def turn(self, *, stream: bool = False, **more: Any) -> dict[str, Any]:
        """The reply's message; `report` is what prefill made of the last turn's handle."""
        body = {"messages": self.messages, "max_tokens": 60, **self.fields, **more}
        leg = {**body, "max_tokens": 1, "kv_transfer_params": self.handle or dict(FIRST)}
        leg.pop("tool_choice", None)
        first = await self.client.post(self.engines.prefill, PATH, leg)
        assert first.status == 200, first.body
        self.report = first.report
        second = await self.client.post(
            self.engines.decode[0], PATH, {**body, "stream": stream, "kv_transfer_params": first.handle}
        )
        assert second.status == 200, second.body
        self.handle = second.handle
        cold = await self.client.post(self.engines.prefill, PATH, {**body, "cache_salt": "cold"})
        message = whole(second) if stream else second.body["choices"][0]["message"]
        expected: dict[str, Any] = cold.body["choices"][0]["message"]
        assert essence(message) == essence(expected)
        return message

    def say(self, *messages: dict[str, Any]) -> None:
        self.messages = [*self.messages, *messages]

    def reused(self) -> int:
        assert self.report is not None
        verified: int = self.report["verified"]
        return verified

    def offered(self) -> int:
        assert self.report is not None
        offered: int = self.report["offered"]
        return offered


def whole(answer: Answer) -> dict[str, Any]:
    """A message put together from a stream."""
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning": "", "tool_calls": []}
    for event in answer.events:
        if isinstance(event, dict) and event.get("choices"):
            delta = event["choices"][0]["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning") or ""
            message["tool_calls"] += delta.get("tool_calls") or []
    return message


def essence(message: dict[str, Any]) -> tuple[str, str, list[tuple[str, str]]]:
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []]
    return message.get("content") or "", message.get("reasoning") or "", calls


@pytest.mark.parametrize("stream", [False, True])
async def test_a_plain_conversation_is_reused_whole(engines: Engines, client: Client, stream: bool) -> None:
    talk = Conversation(engines, client)
    for _ in range(4):
        reply = await talk.turn(stream=stream)
        if talk.report is not None:
            assert talk.report["reason"] == "match"
        talk.say({"role": "assistant", "content": reply["content"]}, MORE)
    assert talk.report is not None


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_of_tool_calls_and_two_results_is_reused_whole(
    engines: Engines, client: Client, stream: bool
) -> None:
    talk = Conversation(engines, client, tools=TOOLS)
    talk.messages = [SYSTEM, {"role": "user", "content": "Use read_file, and run_tests at the same time."}]
    reply = await talk.turn(stream=stream, max_tokens=200)
    assert [c["function"]["name"] for c in reply["tool_calls"]] == ["read_file", "run_tests"]
    talk.say({"role": "assistant", "content": None, "tool_calls": reply["tool_calls"]})
    talk.say(*({"role": "tool", "tool_call_id": c["id"], "content": "ok " * 20} for c in reply["tool_calls"]))
    await talk.turn(stream=stream)
    assert talk.report is not None
    assert talk.report["reason"] == "match"


async def test_a_demanded_tool_call_is_reused_whole(engines: Engines, client: Client) -> None:
    """With a tool parser, guided decoding writes calls as the parser reads them and the template writes them."""
    talk = Conversation(engines, client, tools=TOOLS)
    reply = await talk.turn(tool_choice="required", max_tokens=200)
    assert reply["tool_calls"][0]["function"]["name"] == "read_file"
    talk.say({"role": "assistant", "content": None, "tool_calls": reply["tool_calls"]}, MORE)
    await talk.turn()
    assert talk.report is not None
    assert talk.report["reason"] == "match"


@pytest.mark.parametrize("setup", [Setup(reasoning=True)])
@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_that_is_left_out_costs_only_the_reply(engines: Engines, client: Client, stream: bool) -> None:
    talk = Conversation(engines, client)
    reply = await talk.turn(stream=stream, max_tokens=120)
    assert reply["reasoning"]
    assert "think>" not in reply["content"]
    prompt = await prompt_tokens(client, engines, talk)
    talk.say({"role": "assistant", "content": reply["content"]}, MORE)
    await talk.turn(stream=stream)
    assert talk.reused() == prompt // engines.block * engines.block


@pytest.mark.parametrize("setup", [Setup(reasoning=True)])
async def test_thinking_that_is_kept_is_reused(engines: Engines, client: Client) -> None:
    talk = Conversation(engines, client, chat_template_kwargs={"keep_thinking": True})
    reply = await talk.turn(max_tokens=120)
    talk.say({"role": "assistant", "content": reply["content"], "reasoning": reply["reasoning"]}, MORE)
    await talk.turn()
    assert talk.reused() == talk.offered()


@pytest.mark.parametrize(
    "changed",
    [
        {"tools": TOOLS[:1]},
        {"tools": None},
        {"messages": [{**SYSTEM, "content": "It is 12:01. " + str(SYSTEM["content"])}, ASK, MORE]},
    ],
    ids=["other tools", "no tools", "time of day first"],
)
async def test_another_rendering_shares_what_comes_before_the_change(
    engines: Engines, client: Client, changed: dict[str, Any]
) -> None:
    talk = Conversation(engines, client, tools=TOOLS)
    await talk.turn()
    old = await render(client, engines, {"messages": talk.messages, "tools": TOOLS})
    new = await render(client, engines, {"messages": talk.messages, "tools": TOOLS, **changed})
    shared = next(i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
    await talk.turn(**changed)
    assert talk.reused() == shared // engines.block * engines.block


async def test_an_image_in_the_history_is_not_reused(engines: Engines, client: Client) -> None:
    talk = Conversation(engines, client)
    reply = await talk.turn()
    image = {"role": "user", "content": [{"type": "text", "text": "See."}, {"type": "image_url", "image_url": {}}]}
    talk.say({"role": "assistant", "content": reply["content"]}, image)
    await talk.turn()
    assert talk.report == {"offered": talk.offered(), "verified": 0, "reason": "multimodal"}


async def test_prompt_token_ids_replace_the_rendered_prompt(engines: Engines, client: Client) -> None:
    ids = client.tokens(200)
    body = {"messages": [ASK], "max_tokens": 1, "return_token_ids": True}
    params = {**FIRST, "prompt_token_ids": ids}
    answer = await client.post(engines.prefill, PATH, {**body, "kv_transfer_params": params})
    assert answer.body["prompt_token_ids"] == ids
    assert answer.handle is not None
    assert answer.handle["remote_num_tokens"] == 200


async def render(client: Client, engines: Engines, body: dict[str, Any]) -> list[int]:
    answer = await client.post(engines.prefill, "/tokenize", {k: v for k, v in body.items() if v is not None})
    tokens: list[int] = answer.body["tokens"]
    return tokens


async def prompt_tokens(client: Client, engines: Engines, talk: Conversation) -> int:
    return len(await render(client, engines, {"messages": talk.messages, "tools": talk.fields.get("tools")}))
