"""Conversations as text on real engines, in all dialects: text drifts in tokens, and reuse ends where it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from e2e.contract.client import FIRST, Answer, Client
from e2e.contract.dialects import ASK, DIALECTS, MORE, Dialect, Talk
from e2e.contract.test_chat import TOOLS
from e2e.contract.test_histories import transfers

if TYPE_CHECKING:
    from e2e.engine.fleet import RealEngines

pytestmark = pytest.mark.engine

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "system", "content": "You are an agent that reads files. " * 20}, {"role": "user", "content": ASK}]
REPLY_TOKENS = 120  # the most that a talk's reply has


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
async def test_a_conversation_reuses_what_is_still_the_same_in_tokens(
    engines: RealEngines, client: Client, dialect: Dialect, stream: bool
) -> None:
    talk = Talk(engines, client, dialect, stream=stream)
    await talk.say(ASK)
    for _ in range(2):
        handle, before = talk.handle, await transfers(client, engines.prefill)
        assert handle is not None
        held = handle["remote_num_tokens"]
        assert handle["guard"]["n"] == held
        await talk.say(MORE)
        assert talk.report is not None
        assert talk.report["offered"] == held
        assert talk.report["reason"] in ("match", "partial")
        assert talk.report["verified"] >= (held - REPLY_TOKENS) // engines.block * engines.block
        assert await transfers(client, engines.prefill) - before == talk.report["verified"]


async def chat_turn(
    engines: RealEngines, client: Client, messages: list[dict[str, Any]], handle: Any = None, **more: Any
) -> tuple[Answer, Answer]:
    """Both legs of a streamed turn on the last decode engine, the second with `more`."""
    body = {"messages": messages, "tools": TOOLS}
    prefill = await client.post(
        engines.prefill, CHAT, {**body, "max_tokens": 1, "kv_transfer_params": handle or dict(FIRST)}
    )
    decode = {**body, "max_tokens": 60, "stream": True, "kv_transfer_params": prefill.handle, **more}
    return prefill, await client.post(engines.decode[-1], CHAT, decode)


def joined(answer: Answer, field: str) -> str:
    deltas = (e["choices"][0]["delta"] for e in answer.events if isinstance(e, dict) and e["choices"])
    return "".join(delta.get(field) or "" for delta in deltas)


async def prompt_length(engines: RealEngines, client: Client) -> int:
    answer = await client.post(engines.prefill, "/tokenize", {"messages": MESSAGES, "tools": TOOLS})
    return len(answer.body["tokens"])


async def test_a_stream_through_a_tool_parser_ends_with_the_handle(engines: RealEngines, client: Client) -> None:
    name = "read_file"
    demand = {"tool_choice": {"type": "function", "function": {"name": name}}}
    _, answer = await chat_turn(engines, client, MESSAGES, **demand)
    *content, last, done = answer.events
    assert done == "[DONE]"
    assert isinstance(last, dict)
    assert last["kv_transfer_params"]["guard"]["n"] == last["kv_transfer_params"]["remote_num_tokens"]
    calls = [
        call["function"]
        for e in content
        if isinstance(e, dict) and e["choices"]
        for call in e["choices"][0]["delta"].get("tool_calls") or []
    ]
    assert calls[0]["name"] == name
    arguments = "".join(call.get("arguments") or "" for call in calls)
    history: list[dict[str, Any]] = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
    ]
    prefill, _ = await chat_turn(engines, client, history, answer.handle)
    assert prefill.report is not None
    assert prefill.report["verified"] >= await prompt_length(engines, client) // engines.block * engines.block


async def test_thinking_that_a_parser_takes_out_costs_only_the_reply(engines: RealEngines, client: Client) -> None:
    engines.decode = [engines.fleet.engines["decode-2"].url]
    _, answer = await chat_turn(engines, client, MESSAGES)
    thought = joined(answer, "reasoning")
    assert thought
    assert not joined(answer, "content")
    cold = await client.post(engines.prefill, CHAT, {"messages": MESSAGES, "tools": TOOLS, "max_tokens": 60})
    assert thought == cold.body["choices"][0]["message"]["content"]

    history = [*MESSAGES, {"role": "assistant", "content": ""}, {"role": "user", "content": MORE}]
    prefill, _ = await chat_turn(engines, client, history, answer.handle)
    assert prefill.report is not None
    assert prefill.report["verified"] == await prompt_length(engines, client) // engines.block * engines.block
