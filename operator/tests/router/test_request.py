"""What a client's request comes to."""

from typing import Any

import orjson
import pytest

from kvloop.router import dialects, keys, request
from kvloop.router.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Dialect
from kvloop.router.errors import RefusalError
from kvloop.router.request import TurnRequest

TENANT = keys.tenant("x")
HI = {"role": "user", "content": "hi"}
REPLY = {"role": "assistant", "content": "hello"}


def read(dialect: Dialect = CHAT, headers: dict[str, str] | None = None, **body: Any) -> TurnRequest:
    return request.read(dialect, orjson.dumps(body), headers or {}, TENANT)


def put(turn: TurnRequest) -> bytes | None:
    assert turn.keys is not None
    return turn.keys.put


def take(turn: TurnRequest) -> tuple[bytes, ...]:
    assert turn.keys is not None
    return turn.keys.take


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"3", b'"x"', b"null", b"\xff", b'{"a":NaN}'])
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(RefusalError) as refused:
        request.read(CHAT, raw, {}, TENANT)
    assert refused.value.status == 400


def test_too_deep_nesting_is_refused() -> None:
    for raw in (b'{"a":' + b"[" * 500 + b"]" * 500 + b"}", b'{"messages":[' + b"[" * 500 + b"]" * 500 + b"]}"):
        with pytest.raises(RefusalError):
            request.read(CHAT, raw, {}, TENANT)


def test_the_body_is_the_client_s_without_reserved_fields() -> None:
    turn = read(messages=[HI], kv_transfer_params={"x": 1}, conversation_id="c", request_id="r", seed=1)
    assert orjson.loads(turn.json) == {"messages": [HI], "seed": 1}


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, {"conversation_id": "c"}),
        ({"x-conversation-id": "c"}, {}),
        ({"x-session-id": "c"}, {}),
        ({"x-conversation-id": "c", "x-session-id": "other"}, {"conversation_id": 7}),
    ],
)
def test_a_conversation_can_be_named(headers: dict[str, str], body: dict[str, Any]) -> None:
    turn = read(headers=headers, messages=[HI], **body)
    assert turn.named
    assert turn.keys == keys.explicit(TENANT, "c")


@pytest.mark.parametrize("name", ["", "x" * 2000, 3, None, ["c"]])
def test_a_useless_name_is_none(name: Any) -> None:
    assert not read(messages=[HI], conversation_id=name).named


@pytest.mark.parametrize(
    ("dialect", "first", "second"),
    [
        (CHAT, {"messages": [HI]}, {"messages": [HI, REPLY, HI]}),
        (CHAT, {"messages": [HI]}, {"messages": [HI, {"role": "assistant", "tool_calls": []}, {"role": "tool"}, HI]}),
        (MESSAGES, {"system": "s", "messages": [HI]}, {"system": "s", "messages": [HI, REPLY, HI]}),
        (
            MESSAGES,
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "e"}}]}
                ]
            },
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, REPLY, HI]},
        ),
        (RESPONSES, {"input": [HI]}, {"input": [HI, {"type": "reasoning"}, {"type": "function_call"}, HI]}),
    ],
)
def test_the_history_names_the_conversation(dialect: Dialect, first: dict[str, Any], second: dict[str, Any]) -> None:
    assert put(read(dialect, **first)) in take(read(dialect, **second))
    assert put(read(dialect, **first)) not in take(read(dialect, **{**second, "model": "other"}))
    assert put(read(dialect, **first)) not in take(read(dialect, **{**second, "cache_salt": "other"}))


def test_parallel_tool_calls_are_one_reply() -> None:
    calls = [{"type": "function_call", "name": str(i)} for i in range(12)]
    turn = read(RESPONSES, input=[HI, *calls, HI])
    assert put(read(RESPONSES, input=[HI])) in take(turn)


def test_another_system_prompt_is_another_conversation() -> None:
    first = put(read(MESSAGES, system="a", messages=[HI]))
    assert first not in take(read(MESSAGES, system="b", messages=[HI, REPLY, HI]))


def test_a_text_prompt_needs_a_name() -> None:
    assert read(COMPLETIONS, prompt="Once").keys is None
    assert read(COMPLETIONS, prompt="Once", conversation_id="c").keys is not None
    assert read(RESPONSES, input="Hello").keys is None


@pytest.mark.parametrize(
    ("dialect", "body", "reason"),
    [
        (CHAT, {"n": 2}, "n"),
        (CHAT, {"n": "2"}, "n"),
        (COMPLETIONS, {"best_of": 3}, "best_of"),
        (CHAT, {"use_beam_search": True}, "use_beam_search"),
        (CHAT, {"truncate_prompt_tokens": -1}, "truncate_prompt_tokens"),
        (CHAT, {"prompt_logprobs": 0}, "prompt_logprobs"),
        (CHAT, {"echo": True}, "echo"),
        (COMPLETIONS, {"prompt_embeds": "AA"}, "prompt_embeds"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt_list"),
        (COMPLETIONS, {"prompt": [[1], [2]]}, "prompt_list"),
        (COMPLETIONS, {}, "prompt_list"),
        (RESPONSES, {"previous_response_id": "r"}, "previous_response_id"),
        (RESPONSES, {"background": True}, "background"),
        (RESPONSES, {"tools": [{"type": "web_search"}]}, "builtin_tools"),
    ],
)
def test_some_requests_are_decode_s_alone(dialect: Dialect, body: dict[str, Any], reason: str) -> None:
    assert dialects.unfit(dialect, body) == dialects.Unfit(reason, decode_only=True)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {}},
        {"type": "input_audio"},
        {"type": "tool_result", "content": [{"type": "image"}]},
        {"type": "something_new"},
        {"type": ["unhashable"]},
    ],
)
def test_media_are_split_but_not_reused(part: dict[str, Any]) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "x"}, part]}
    assert dialects.unfit(CHAT, {"messages": [HI, message]}) == dialects.Unfit("multimodal", decode_only=False)
    assert dialects.unfit(RESPONSES, {"input": [{"type": "function_call_output", "output": [part]}]}) is not None


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (CHAT, {"messages": [HI], "n": 1, "echo": False, "best_of": None}),
        (CHAT, {"messages": "nonsense"}),
        (CHAT, {"messages": [3, {"content": [7, {"text": "x"}, {"type": "text"}]}]}),
        (COMPLETIONS, {"prompt": "x"}),
        (COMPLETIONS, {"prompt": [1, 2]}),
        (RESPONSES, {"input": "x", "tools": [{"type": "function"}]}),
        (MESSAGES, {"messages": [{"content": [{"type": "tool_result", "content": [{"type": "text"}]}]}]}),
    ],
)
def test_the_others_may_reuse(dialect: Dialect, body: dict[str, Any]) -> None:
    assert dialects.unfit(dialect, body) is None
