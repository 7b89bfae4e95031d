"""Streams: the order of the chunks, and where the handle is."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.contract.client import FIRST, Answer, Client
from e2e.contract.engines import Engines, Setup

MESSAGES = [
    {"role": "system", "content": "You are an agent. " * 20},
    {"role": "user", "content": "Read the file and edit one line. " * 10},
]
CHAT: tuple[str, dict[str, Any]] = ("/v1/chat/completions", {"messages": MESSAGES})
COMPLETIONS: tuple[str, dict[str, Any]] = ("/v1/completions", {"prompt": "Read the file and edit one line. " * 20})
BOTH = pytest.mark.parametrize(("path", "body"), [CHAT, COMPLETIONS], ids=["chat", "completions"])


async def legs(engines: Engines, client: Client, path: str, body: dict[str, Any], **more: Any) -> Answer:
    first = await client.post(engines.prefill, path, {**body, "max_tokens": 1, "kv_transfer_params": dict(FIRST)})
    whole = {"max_tokens": 20, "ignore_eos": True, "stream": True, **body, "kv_transfer_params": first.handle, **more}
    return await client.post(engines.decode[0], path, whole)


def chunks(answer: Answer) -> list[dict[str, Any]]:
    assert answer.events[-1] == "[DONE]"
    return [event for event in answer.events if isinstance(event, dict)]


def texts(answer: Answer) -> str:
    choices = (c["choices"][0] for c in chunks(answer) if c["choices"])
    return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)


@BOTH
async def test_the_handle_is_one_last_event_of_its_own(
    engines: Engines, client: Client, path: str, body: dict[str, Any]
) -> None:
    answer = await legs(engines, client, path, body)
    *content, last = chunks(answer)
    assert not [c for c in content if "kv_transfer_params" in c]
    assert content[-1]["choices"][0]["finish_reason"] == "length"
    assert last["choices"] == []
    assert last["kv_transfer_params"]["guard"]["n"] == last["kv_transfer_params"]["remote_num_tokens"]
    assert (last["id"], last["object"], last["model"]) == tuple(content[0][k] for k in ("id", "object", "model"))


@BOTH
@pytest.mark.parametrize("setup", [Setup(vllm_version="0.33.0")])
async def test_vllm_033_sends_the_handle_itself_from_the_finish_reason_on(
    engines: Engines, client: Client, path: str, body: dict[str, Any]
) -> None:
    answer = await legs(engines, client, path, body, stream_options={"include_usage": True})
    with_handle = [c for c in chunks(answer) if "kv_transfer_params" in c]
    assert with_handle == chunks(answer)[-2:]
    assert with_handle[0]["choices"][0]["finish_reason"] == "length"
    assert with_handle[1]["usage"]["completion_tokens"] == 20
    assert all("guard" in c["kv_transfer_params"] for c in with_handle)
    assert "remote_registration_generation" in with_handle[0]["kv_transfer_params"]


@BOTH
@pytest.mark.parametrize("setup", [Setup(guarded=False)])
async def test_without_the_plugin_no_stream_has_a_handle(
    engines: Engines, client: Client, path: str, body: dict[str, Any]
) -> None:
    answer = await legs(engines, client, path, body, stream_options={"include_usage": True}, return_token_ids=True)
    assert answer.handle is None


@BOTH
async def test_requests_without_parameters_get_no_handle_event(
    engines: Engines, client: Client, path: str, body: dict[str, Any]
) -> None:
    whole = await client.post(engines.decode[0], path, {**body, "max_tokens": 5, "stream": True})
    assert "kv_transfer_params" not in str(whole.events)


@BOTH
async def test_a_stream_says_what_the_whole_answer_says(
    engines: Engines, client: Client, path: str, body: dict[str, Any]
) -> None:
    streamed = await legs(engines, client, path, body)
    whole = await legs(engines, client, path, body, stream=False)
    choice = whole.body["choices"][0]
    assert texts(streamed) == (choice.get("text") or choice["message"]["content"])


async def test_the_order_of_a_chat_streams_chunks(engines: Engines, client: Client) -> None:
    more: dict[str, Any] = {"stream_options": {"include_usage": True}, "return_token_ids": True}
    first, *content, usage, handle = chunks(await legs(engines, client, *CHAT, **more))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(first["prompt_token_ids"]) == usage["usage"]["prompt_tokens"]
    assert all("prompt_token_ids" not in c for c in content)
    assert sum(len(c["choices"][0]["token_ids"]) for c in content) == 20 == usage["usage"]["completion_tokens"]
    assert [c["choices"][0]["finish_reason"] for c in content] == [None] * (len(content) - 1) + ["length"]
    assert usage["choices"] == []
    assert "kv_transfer_params" in handle


async def test_the_order_of_a_completion_streams_chunks(engines: Engines, client: Client) -> None:
    more: dict[str, Any] = {"stream_options": {"include_usage": True}, "return_token_ids": True}
    *content, usage, _ = chunks(await legs(engines, client, *COMPLETIONS, **more))
    prompt_ids = [c["choices"][0]["prompt_token_ids"] for c in content]
    assert len(prompt_ids[0]) == usage["usage"]["prompt_tokens"]
    assert not any(prompt_ids[1:])
    assert sum(len(c["choices"][0]["token_ids"]) for c in content) == 20


async def test_usage_in_every_chunk_if_asked(engines: Engines, client: Client) -> None:
    more: dict[str, Any] = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    content = [c for c in chunks(await legs(engines, client, *COMPLETIONS, **more)) if c["choices"]]
    counts = [c["usage"]["completion_tokens"] for c in content]
    assert counts == sorted(set(counts))  # a busy front end puts several tokens into one chunk
    assert counts[-1] == 20


async def test_a_stop_string_does_not_appear_in_a_stream(engines: Engines, client: Client) -> None:
    answer = await legs(engines, client, *COMPLETIONS, max_tokens=200, stop=["a", "e", "i", "o"])
    assert not set(texts(answer)) & set("aeio")
    last = chunks(answer)[-1]
    assert last["choices"][0]["finish_reason"] == "stop"
    assert answer.handle is None
