"""The same conversation in all four dialects, streaming and not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from e2e.contract.dialects import ASK, DIALECTS, MORE, Dialect, Talk
from e2e.contract.engines import Engines, Setup

if TYPE_CHECKING:
    from e2e.contract.client import Client

ALL = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
OF_MESSAGES = {name: dialect for name, dialect in DIALECTS.items() if dialect.tools}
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@ALL
@STREAM
async def test_a_follow_up_reuses_the_whole_history(
    engines: Engines, client: Client, dialect: Dialect, stream: bool
) -> None:
    talk = Talk(engines, client, dialect, stream=stream)
    await talk.say(ASK)
    for _ in range(2):
        assert talk.handle is not None, talk.answer
        held = talk.handle["remote_num_tokens"]
        await talk.say(MORE)
        assert talk.report == {"offered": held, "verified": held, "reason": "match"}


@pytest.mark.parametrize(
    "dialect", [d for d in DIALECTS.values() if d.tools], ids=[n for n, d in DIALECTS.items() if d.tools]
)
@STREAM
async def test_a_tool_call_and_its_result_are_reused(
    engines: Engines, client: Client, dialect: Dialect, stream: bool
) -> None:
    talk = Talk(engines, client, dialect, stream=stream, tools=dialect.tools)
    reply = await talk.say(ASK)
    await talk.say(dialect.result(reply))
    assert talk.report is not None
    assert talk.report["reason"] == "match"


@pytest.mark.parametrize("setup", [Setup(reasoning=True)])
@pytest.mark.parametrize(
    "dialect", [d for d in DIALECTS.values() if d.tools], ids=[n for n, d in DIALECTS.items() if d.tools]
)
@STREAM
async def test_thinking_is_told_from_the_reply(
    engines: Engines, client: Client, dialect: Dialect, stream: bool
) -> None:
    talk = Talk(engines, client, dialect, stream=stream)
    reply = await talk.say(MORE)
    text = str(reply)
    assert "thinking" in text or "reasoning" in text
    assert "<think>" not in text
    await talk.say(MORE)
    assert talk.report is not None
    assert talk.report["reason"] == "partial"


async def test_the_handle_of_an_anthropic_stream_is_in_its_last_event(engines: Engines, client: Client) -> None:
    talk = Talk(engines, client, DIALECTS["messages"], stream=True)
    await talk.say(MORE)
    kinds = [e["type"] for e in talk.answer.events if isinstance(e, dict)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    last = talk.answer.events[-1]
    assert isinstance(last, dict)
    assert set(last) == {"type", "kv_transfer_params"}


@pytest.mark.parametrize("setup", [Setup(guarded=False)])
async def test_without_the_plugin_only_responses_streams_have_the_handle(engines: Engines, client: Client) -> None:
    for name, dialect in DIALECTS.items():
        talk = Talk(engines, client, dialect, stream=True)
        await talk.say(MORE)
        assert (talk.handle is not None) is (name == "responses"), name


@pytest.mark.parametrize("setup", [Setup(vllm_version="0.33.0")])
async def test_vllm_033_sends_it_itself_in_all(engines: Engines, client: Client) -> None:
    for dialect in DIALECTS.values():
        talk = Talk(engines, client, dialect, stream=True)
        await talk.say(MORE)
        events = [e for e in talk.answer.events if isinstance(e, dict)]
        assert talk.handle is not None
        assert talk.handle["guard"]["n"] == talk.handle["remote_num_tokens"]
        assert not [e for e in events if e.get("choices") == []]


async def test_responses_tell_why_they_ended(engines: Engines, client: Client) -> None:
    body = {"input": MORE, "max_output_tokens": 5, "ignore_eos": True}
    answer = await client.post(engines.decode[0], "/v1/responses", body)
    assert (answer.body["status"], answer.body["incomplete_details"]) == (
        "incomplete", {"reason": "max_output_tokens"},
    )  # fmt: skip
    assert answer.body["usage"]["output_tokens"] == 5


@pytest.mark.parametrize(
    ("path", "body", "status", "own_shape"),
    [
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}]}, 400, False),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "model": "nope"}, 404, True),
        ("/v1/responses", {}, 400, False),
        ("/v1/responses", {"input": "x", "previous_response_id": "resp_1"}, 404, False),
    ],
)
async def test_errors_of_the_other_dialects(
    engines: Engines, client: Client, path: str, body: dict[str, Any], status: int, own_shape: bool
) -> None:
    answer = await client.post(engines.prefill, path, body)
    assert answer.status == status
    assert answer.body["error"]["message"]
    assert ("type" in answer.body) is own_shape


async def test_anthropic_tokens_can_be_counted(engines: Engines, client: Client) -> None:
    body = {"messages": [{"role": "user", "content": MORE}]}
    counted = await client.post(engines.prefill, "/v1/messages/count_tokens", body)
    answer = await client.post(engines.prefill, "/v1/messages", {**body, "max_tokens": 1})
    usage = answer.body["usage"]
    assert counted.body["input_tokens"] == usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
