"""The bodies of a turn's two legs, made from the client's request."""

from typing import Any, Final

import orjson

from kvloop.router.dialects import Dialect
from kvloop.router.strip import KV

FRESH: Final = b'{"do_remote_decode":true,"do_remote_prefill":false}'
"""Prefill's parameters where no handle is offered: compute, and keep the KV for decode."""

# What shapes the reply only. On a leg of one token it would cost time, or fail: a forced tool call that cannot be
# complete (vllm issue 38911), min_tokens over max_tokens (vllm PR 16705), several sequences (vllm issue 43509).
# Everything else shapes the prompt, or harmlessly the sampling, and stays: both legs must render the same prompt.
_REPLY_ONLY: Final = frozenset(
    {
        "max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "stream", "stream_options",
        "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
        "guided_decoding_backend", "guided_whitespace_pattern", "structural_tag", "text",
        "n", "best_of", "stop", "stop_sequences", "stop_token_ids", "include_stop_str_in_output", "ignore_eos",
        "logprobs", "top_logprobs", "prompt_logprobs", "echo", "logit_bias", "bad_words", "allowed_token_ids",
        "return_token_ids", "return_tokens_as_token_ids", "include", "store", "background", "max_tool_calls",
    }
)  # fmt: skip


# Choices that stay: they may keep the tools out of the prompt.
_NO_TOOLS: Final = (None, "none", {"type": "none"})


def prefill(dialect: Dialect, body: dict[str, Any], params: bytes) -> bytes:
    """Body of the prefill leg: the same prompt, not streaming, one token: a second one would shift the blocks."""
    leg = {name: value for name, value in body.items() if name not in _REPLY_ONLY}
    if leg.get("tool_choice") not in _NO_TOOLS:
        del leg["tool_choice"]
    leg[dialect.max_tokens] = 1
    leg["stream"] = False
    leg[KV] = orjson.Fragment(params)
    return orjson.dumps(leg)


def decode(json: bytes, params: bytes | None) -> bytes:
    """Body of the decode leg: the client's own request (a JSON object), with prefill's parameters."""
    if params is None:
        return json
    return b'%b%b"%b":%b}' % (json[:-1], b"," if len(json) > 2 else b"", KV.encode(), params)
