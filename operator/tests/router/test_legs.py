"""The legs' bodies: one prompt, two jobs."""

from typing import Any

import orjson
import pytest

from kvloop.router import legs
from kvloop.router.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Dialect

PROMPT = {
    "model": "m",
    "messages": [1],
    "tools": [{"type": "function"}],
    "chat_template_kwargs": {"enable_thinking": False},
    "documents": [1],
    "add_generation_prompt": False,
    "continue_final_message": True,
    "reasoning_effort": "low",
    "cache_salt": "s",
    "mm_processor_kwargs": {},
    "priority": 3,
    "temperature": 0.5,
    "some_future_field": 1,
}
REPLY = {
    "max_tokens": 50,
    "max_completion_tokens": 50,
    "min_tokens": 10,
    "stream": True,
    "stream_options": {"include_usage": True},
    "response_format": {"type": "json_object"},
    "structured_outputs": {},
    "guided_json": {},
    "logprobs": True,
    "top_logprobs": 5,
    "n": 1,
    "stop": ["x"],
    "stop_token_ids": [1],
    "ignore_eos": True,
    "logit_bias": {},
    "return_token_ids": True,
}


@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
def test_prefill_keeps_what_shapes_the_prompt_and_drops_the_rest(dialect: Dialect) -> None:
    body = orjson.loads(legs.prefill(dialect, {**PROMPT, **REPLY}, legs.FRESH))
    fresh = {"do_remote_decode": True, "do_remote_prefill": False}
    assert body == {**PROMPT, dialect.max_tokens: 1, "stream": False, "kv_transfer_params": fresh}


@pytest.mark.parametrize(
    ("choice", "kept"),
    [
        ("required", False),
        ("auto", False),
        ({"type": "function"}, False),
        ("none", True),
        ({"type": "none"}, True),
        (None, True),
    ],
)
def test_a_forced_tool_call_is_not_forced_on_one_token(choice: Any, kept: bool) -> None:
    body = orjson.loads(legs.prefill(CHAT, {"tool_choice": choice}, legs.FRESH))
    assert ("tool_choice" in body) is kept


@pytest.mark.parametrize("body", [{}, {"model": "m", "stream": True}])
def test_decode_gets_the_client_s_body_and_the_parameters(body: dict[str, Any]) -> None:
    raw = orjson.dumps(body)
    assert legs.decode(raw, None) == raw
    assert orjson.loads(legs.decode(raw, b'{"a":1}')) == {**body, "kv_transfer_params": {"a": 1}}
