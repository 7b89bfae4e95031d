"""OpenAI's and Anthropic's own Python clients hold a conversation with tools through the router, and notice nothing."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from e2e.router.sim import Fleet
from e2e.router.talk import Chat, Messages, essence

PROMPT = "Tell me about the tides of the northern sea. " * 14
QUESTIONS = (f"{PROMPT} Read the vane.", "What does the vane say now?", "Thank you. What follows?")
TOOL = {"type": "object", "properties": {"place": {"type": "string"}}}


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


async def reused_all_but_the_first(fleet: Fleet, turns: int) -> None:
    counters = (await fleet.router.reuse()).counters
    assert (counters.follow_ups, counters.reused_turns) == (turns - 1, turns - 1)


async def _chat(client: AsyncOpenAI, ask: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    """A reply as a message; fails if the client got anything of ours."""
    if not stream:
        completion = await client.chat.completions.create(**ask)
        assert not completion.model_extra or "kv_transfer_params" not in completion.model_extra
        return Chat().whole(completion.model_dump(exclude_none=True))
    chunks = [chunk async for chunk in await client.chat.completions.create(**ask, stream=True)]
    assert not any(chunk.model_extra and "kv_transfer_params" in chunk.model_extra for chunk in chunks)
    return Chat().stream(b"".join(b"data: %b\n\n" % chunk.model_dump_json().encode() for chunk in chunks))


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_s_client(fleet: Fleet, stream: bool) -> None:
    client = AsyncOpenAI(base_url=fleet.router.url + "/v1", api_key="k", max_retries=0)
    tools: Any = [{"type": "function", "function": {"name": "vane", "parameters": TOOL}}]
    messages: list[Any] = []
    turns = 0
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        while True:
            ask: dict[str, Any] = {"model": "tiny", "messages": messages, "tools": tools, "max_tokens": 60}
            reply = await _chat(client, ask, stream=stream)
            turns += 1
            assert essence(reply) == essence(Chat().whole(await fleet.cold(ask)))
            calls = reply.get("tool_calls", ())
            results = [{"role": "tool", "tool_call_id": call["id"], "content": "12 knots"} for call in calls]
            messages += [reply, *results]
            if not calls:
                break
    assert turns > len(QUESTIONS)
    await reused_all_but_the_first(fleet, turns)
    await client.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_s_client(fleet: Fleet, stream: bool) -> None:
    client = AsyncAnthropic(base_url=fleet.router.url, api_key="k", max_retries=0)
    tools: Any = [{"name": "vane", "input_schema": TOOL}]
    messages: list[Any] = []
    turns = 0
    for question in QUESTIONS:
        content = [{"type": "text", "text": question, "cache_control": {"type": "ephemeral"}}]
        messages.append({"role": "user", "content": content})
        while True:
            ask: dict[str, Any] = {"model": "tiny", "messages": messages, "tools": tools, "max_tokens": 60}
            if stream:
                async with client.messages.stream(**ask) as events:
                    message = await events.get_final_message()
            else:
                message = await client.messages.create(**ask)
            turns += 1
            blocks = [block.model_dump(exclude_none=True, exclude={"parsed_output"}) for block in message.content]
            cold = await fleet.cold(ask, Messages.path)
            assert essence(Messages().whole({"content": blocks})) == essence(Messages().whole(cold))
            content[0].pop("cache_control", None)  # clients move their cache marker on with each turn
            messages.append({"role": "assistant", "content": blocks})
            calls = [block for block in blocks if block["type"] == "tool_use"]
            if not calls:
                break
            results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "12 knots"} for call in calls]
            messages.append({"role": "user", "content": results})
    assert turns > len(QUESTIONS)
    await reused_all_but_the_first(fleet, turns)
    await client.close()


async def test_openai_s_client_reads_our_errors(fleet: Fleet) -> None:
    client = AsyncOpenAI(base_url=fleet.router.url + "/v1", api_key="k", max_retries=0)
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="unknown", messages=[{"role": "user", "content": "hi"}])
    assert "unknown" in missing.value.message
    fleet.router.app.pool.update([])
    with pytest.raises(openai.InternalServerError) as down:
        await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])
    assert down.value.status_code == 503
    assert int(down.value.response.headers["retry-after"]) > 0
    await client.close()


async def test_the_responses_client(fleet: Fleet) -> None:
    client = AsyncOpenAI(base_url=fleet.router.url + "/v1", api_key="k", max_retries=0)
    items: list[Any] = [{"role": "user", "content": PROMPT}]
    for i in range(3):
        async with client.responses.stream(model="tiny", input=items, max_output_tokens=30) as events:
            async for _ in events:
                pass
            response = await events.get_final_response()
        assert not (response.model_extra or {}).get("kv_transfer_params")
        items += [{"role": "assistant", "content": response.output_text}, {"role": "user", "content": f"And {i}?"}]
    await reused_all_but_the_first(fleet, 3)
    await client.close()
