"""Nothing reserved crosses the router, and nothing else is touched."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvloop.router import strip

PARAMS = {"do_remote_decode": True, "remote_host": "10.0.0.1", "prompt_token_ids": [1]}


@pytest.mark.parametrize(
    "extra",
    [
        {"kv_transfer_params": PARAMS},
        {"kv_transfer_params": None},
        {"vllm_xargs": {"kv_transfer_params": PARAMS}},
        {"extra_args": {"kv_transfer_params": PARAMS}},
        {"sampling_params": {"extra_args": {"a": [{"kv_transfer_params": PARAMS}]}}},
        {"extra_body": {"kv_transfer_params": PARAMS}},
        {"ec_transfer_params": {}},
        {"request_id": "mine"},
    ],
)
def test_requests_lose_every_form(extra: dict[str, Any]) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "kv_transfer_params"}], **extra}
    strip.request(body)
    rest = orjson.dumps({name: value for name, value in body.items() if name != "messages"})
    assert b"transfer_params" not in rest
    assert b"request_id" not in rest
    assert body["messages"] == [{"role": "user", "content": "kv_transfer_params"}]


def test_the_user_s_own_words_are_left_alone() -> None:
    tool = {"function": {"name": "f", "parameters": {"properties": {"kv_transfer_params": {}}}}}
    body = {"tools": [tool], "messages": [{"role": "assistant", "tool_calls": [{"kv_transfer_params": 1}]}]}
    before = orjson.dumps(body)
    strip.request(body)
    assert orjson.dumps(body) == before


@pytest.mark.parametrize("where", [(), ("response",), ("message",)])
def test_answers_lose_the_handle(where: tuple[str, ...]) -> None:
    body: dict[str, Any] = {"id": "x"}
    inner = body
    for name in where:
        inner[name] = {"usage": {}}
        inner = inner[name]
    inner["kv_transfer_params"] = PARAMS
    taken = strip.answer(body, token_ids=True)
    assert taken == (PARAMS, True)
    assert b"transfer" not in orjson.dumps(body)


def test_an_empty_handle_is_none() -> None:
    nothings: tuple[Any, ...] = (None, {}, 3)
    for nothing in nothings:
        assert strip.answer({"kv_transfer_params": nothing}, token_ids=True) == (None, True)


def test_token_ids_go_unless_asked_for() -> None:
    def body() -> dict[str, Any]:
        return {"prompt_token_ids": [1], "choices": [{"prompt_token_ids": [1], "token_ids": [2]}]}

    whole = body()
    assert not strip.answer(whole, token_ids=True).changed
    assert whole == body()
    assert strip.answer(whole, token_ids=False).changed
    assert whole == {"choices": [{"token_ids": [2]}]}


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["choices", "response", "message", "a"]), inner),
    max_leaves=12,
)


@given(json)
def test_any_json_can_be_looked_at(body: Any) -> None:
    before = repr(body)
    assert strip.answer(body, token_ids=False) == (None, False)
    assert repr(body) == before
