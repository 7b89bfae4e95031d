"""A client's request, read once: body without reserved fields, keys, and fitness for reuse."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from kvloop.router import dialects, keys, strip
from kvloop.router.dialects import Dialect, Unfit
from kvloop.router.errors import RefusalError
from kvloop.router.keys import Keys

END_HEADER = "x-conversation-end"
_ID_HEADERS = ("x-conversation-id", "x-session-id")
_MAX_ID_CHARS = 1024
_CACHE_CONTROL = b'"cache_control"'


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What the legs are made from."""

    dialect: Dialect
    body: dict[str, Any]
    """Without reserved fields; the history is JSON already, so that both legs share it."""
    json: bytes
    """The same as JSON."""
    stream: bool
    token_ids: bool
    """The client asked for prompt_token_ids."""
    keys: Keys | None
    """None where neither the history nor the client names a conversation."""
    named: bool
    """The client named the conversation."""
    ends: bool
    """The client says that no turn will follow."""
    unfit: Unfit | None


def read(dialect: Dialect, raw: bytes, headers: Mapping[str, str], whose: bytes) -> TurnRequest:
    """Read a request of tenant `whose`; raises `RefusalError` where it is not JSON that an engine could take."""
    body = load(raw)
    named = _conversation_id(body, headers)
    unfit = dialects.unfit(dialect, body)
    try:
        found = _keys(dialect, body, named, whose)
        json = orjson.dumps(body)
    except TypeError as error:
        raise _too_deep() from error
    return TurnRequest(
        dialect,
        body,
        json,
        stream=bool(body.get("stream")),
        token_ids=bool(body.get("return_token_ids")),
        keys=found,
        named=named is not None,
        ends=headers.get(END_HEADER, "").lower() in ("1", "true"),
        unfit=unfit,
    )


def load(raw: bytes) -> dict[str, Any]:
    """The JSON object in a body, without reserved fields; raises `RefusalError`."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RefusalError.bad_request(f"The request body is no valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise RefusalError.bad_request("The request body must be a JSON object.")
    strip.request(body)
    return body


def clean(raw: bytes) -> bytes:
    """The JSON object in a body, without reserved fields, as JSON; raises `RefusalError`."""
    try:
        return orjson.dumps(load(raw))
    except TypeError as error:
        raise _too_deep() from error


def _too_deep() -> RefusalError:
    return RefusalError.bad_request("The request body is nested too deeply.")


def _conversation_id(body: dict[str, Any], headers: Mapping[str, str]) -> str | None:
    named = body.pop("conversation_id", None)  # ours alone: vLLM knows no such field
    for candidate in (named, *(headers.get(name) for name in _ID_HEADERS)):
        if isinstance(candidate, str) and 0 < len(candidate) <= _MAX_ID_CHARS:
            return candidate
    return None


def _keys(dialect: Dialect, body: dict[str, Any], named: str | None, whose: bytes) -> Keys | None:
    """Keys of the turn; on the way the body's history becomes JSON, once for both legs and the digests."""
    history = body.get(dialect.history)
    if dialect is dialects.COMPLETIONS or not isinstance(history, list) or not history:
        return keys.explicit(whose, named) if named is not None else None
    parts = [orjson.dumps(message) for message in history]
    body[dialect.history] = orjson.Fragment(b"[%b]" % b",".join(parts))
    if named is not None:
        return keys.explicit(whose, named)
    scope = [orjson.dumps([body.get(name) for name in ("model", "cache_salt", *dialect.preface)])]
    digested = [_without_cache_control(p, m) if _CACHE_CONTROL in p else p for p, m in zip(parts, history, strict=True)]
    return keys.derived(whose, scope, digested, dialects.boundaries(dialect, history))


def _without_cache_control(part: bytes, message: Any) -> bytes:
    """The message without Anthropic's cache markers: they move on with every turn, and shape no prompt."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return part
    cleaned = [
        {name: value for name, value in block.items() if name != "cache_control"} if isinstance(block, dict) else block
        for block in content
    ]
    return orjson.dumps({**message, "content": cleaned})
