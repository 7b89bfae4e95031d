"""The four APIs that carry conversations: where each keeps its history, and what makes a request unfit for reuse."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API of vLLM."""

    name: str
    path: str
    history: str
    """Field that holds the turns so far, oldest first."""
    preface: tuple[str, ...]
    """Fields that come before the history in the prompt."""
    max_tokens: str
    """Field that bounds the generated tokens."""


CHAT = Dialect("chat", "/v1/chat/completions", "messages", (), "max_tokens")
COMPLETIONS = Dialect("completions", "/v1/completions", "prompt", (), "max_tokens")
RESPONSES = Dialect("responses", "/v1/responses", "input", ("instructions",), "max_output_tokens")
MESSAGES = Dialect("messages", "/v1/messages", "messages", ("system",), "max_tokens")

BY_PATH = {dialect.path: dialect for dialect in (CHAT, COMPLETIONS, RESPONSES, MESSAGES)}


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a request takes no part in reuse, and whether prefill can take part at all."""

    reason: str
    decode_only: bool


# Content that is all in the tokens. Whatever else a message may hold comes from elsewhere: images, audio, video, files.
_TEXT = frozenset(
    {
        "text", "refusal", "thinking", "redacted_thinking", "reasoning", "tool_use", "tool_result", "tool_reference",
        "input_text", "output_text", "summary_text", "reasoning_text",
    }
)  # fmt: skip
# Responses items that the model made; a run of them is one reply.
_MADE = frozenset({"reasoning", "function_call", "custom_tool_call"})


def unfit(dialect: Dialect, body: dict[str, Any]) -> Unfit | None:
    """Why this request cannot reuse, if so.

    Several sequences for one request, and prompts that the engine cuts, echoes or scores itself, have no single KV that
    could travel (vllm issues 19902 and 43509): decode serves them alone.
    """
    reason = _indivisible(body)
    if reason is None and dialect is COMPLETIONS and not _is_one_prompt(body.get("prompt")):
        reason = "prompt_list"
    if reason is None and dialect is RESPONSES and not _only_functions(body.get("tools")):
        reason = "builtin_tools"  # the engine then runs several requests for one response
    if reason is not None:
        return Unfit(reason, decode_only=True)
    if _holds_media(body.get(dialect.history)):
        return Unfit("multimodal", decode_only=False)
    return None


def _indivisible(body: dict[str, Any]) -> str | None:
    for name in ("n", "best_of"):
        if body.get(name) not in (None, 1):
            return name
    for name in ("truncate_prompt_tokens", "prompt_logprobs", "prompt_embeds", "previous_response_id"):
        if body.get(name) is not None:
            return name
    for name in ("echo", "background", "use_beam_search"):
        if body.get(name):
            return name
    return None


def boundaries(dialect: Dialect, history: list[Any]) -> list[int]:
    """Where an earlier request may have ended: the positions of replies, oldest first."""
    if dialect is RESPONSES:
        made = [_is_made(item) for item in history]
        return [i for i, here in enumerate(made) if here and i and not made[i - 1]]
    return [i for i, message in enumerate(history) if i and _role(message) == "assistant"]


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _is_made(item: Any) -> bool:
    return _role(item) == "assistant" or (isinstance(item, dict) and str(item.get("type")) in _MADE)


def _is_one_prompt(prompt: Any) -> bool:
    return isinstance(prompt, str) or (isinstance(prompt, list) and all(type(token) is int for token in prompt))


def _only_functions(tools: Any) -> bool:
    return not isinstance(tools, list) or all(
        isinstance(tool, dict) and tool.get("type") in ("function", "custom") for tool in tools
    )


def _holds_media(history: Any) -> bool:
    if not isinstance(history, list):
        return False
    return any(
        _is_media(part)
        for message in history
        if isinstance(message, dict)
        for key in ("content", "output")
        if isinstance(message.get(key), list)
        for part in _flat(message[key])
    )


def _flat(parts: Iterable[Any]) -> Iterable[Any]:
    for part in parts:
        yield part
        if isinstance(part, dict) and isinstance(part.get("content"), list):  # Anthropic's tool_result
            yield from part["content"]


def _is_media(part: Any) -> bool:
    return isinstance(part, dict) and str(part.get("type", "text")) not in _TEXT
