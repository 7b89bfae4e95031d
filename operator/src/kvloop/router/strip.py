"""What must not cross the router: KV handles and token ids, in either direction.

A handle that comes from a client reads foreign KV blocks, poisons caches and makes an engine connect anywhere; a handle
that reaches a client tells the engines' addresses.
"""

from typing import Any, NamedTuple

KV = "kv_transfer_params"
_RESERVED = (KV, "ec_transfer_params", "request_id")
# Where else vLLM's APIs read engine arguments from.
_CONTAINERS = ("vllm_xargs", "extra_args", "sampling_params", "extra_body")


def request(body: dict[str, Any]) -> None:
    """Take reserved fields out of a client's request, in place, wherever an engine would read them."""
    for name in _RESERVED:
        body.pop(name, None)
    for name in _CONTAINERS:
        if name in body:
            _deep(body[name])


def concerns(raw: bytes) -> bool:
    """Whether an engine's answer may hold anything of it."""
    return KV.encode() in raw or b"prompt_token_ids" in raw


class Taken(NamedTuple):
    """What `answer` took."""

    handle: dict[str, Any] | None
    changed: bool


def answer(body: Any, *, token_ids: bool) -> Taken:
    """Take the handle out of an engine's answer, or an event of it, in place.

    `token_ids`: the client asked for them, so they stay. Only the places where engines put these fields are touched:
    the same words in a tool's arguments are the user's own.
    """
    handle: dict[str, Any] | None = None
    changed = False
    if not isinstance(body, dict):
        return Taken(handle, changed)
    for part in (body, body.get("response"), body.get("message")):
        if not isinstance(part, dict):
            continue
        if KV in part:
            changed = True
            found = part.pop(KV)
            if isinstance(found, dict) and found:
                handle = found
        if not token_ids:
            changed |= _drop_token_ids(part)
    return Taken(handle, changed)


def _drop_token_ids(part: dict[str, Any]) -> bool:
    choices, dropped = part.get("choices"), False
    for holder in (part, *(choices if isinstance(choices, list) else ())):
        if isinstance(holder, dict) and holder.get("prompt_token_ids") is not None:
            del holder["prompt_token_ids"]
            dropped = True
    return dropped


def _deep(value: Any) -> None:
    waiting = [value]  # JSON may be nested deeper than calls may be
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, dict):
            for name in _RESERVED:
                inner.pop(name, None)
            waiting += inner.values()
        elif isinstance(inner, list):
            waiting += inner
