"""The chat template: messages, tools and reasoning to the text of a prompt, in the manner of Qwen3.

Like Qwen3's it drops the thinking of turns before the last user message, and with ``enable_thinking: false`` it puts an
empty thought in front of the reply that it does not repeat in later turns: two of the ways in which a history's tokens
differ from those that were generated.
"""

from __future__ import annotations

from typing import Any

import orjson

from e2e.enginesim.model import render_tool_call


class TemplateError(ValueError):
    """The messages cannot be rendered; HTTP 400."""


def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, options: dict[str, Any]) -> str:
    """Prompt text; `options` are ``chat_template_kwargs``, ``add_generation_prompt`` among them (default true)."""
    parts = []
    rest = messages
    if tools:
        system = text_of(messages[0]) if messages[0].get("role") == "system" else ""
        rest = messages[1:] if messages[0].get("role") == "system" else messages
        listed = "\n".join(orjson.dumps(tool).decode() for tool in tools)
        parts.append(_turn("system", f"{system}\n\n# Tools\n\n<tools>\n{listed}\n</tools>".lstrip("\n")))
    last_user = max((i for i, m in enumerate(rest) if m.get("role") == "user"), default=-1)
    keep_all = options.get("keep_thinking") is True
    for i, message in enumerate(rest):
        parts.append(_message(message, keep_thinking=keep_all or i > last_user))
    if options.get("add_generation_prompt", True):
        parts.append("<|im_start|>assistant\n")
        if options.get("enable_thinking") is False:
            parts.append("<think>\n\n</think>\n\n")
    return "".join(parts)


def text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise TemplateError("message content must be a string or a list of parts")
    return "".join(str(p.get("text", "")) if p.get("type") in ("text", "input_text") else _media(p) for p in content)


def has_media(messages: list[dict[str, Any]]) -> bool:
    return any(
        isinstance(part, dict) and part.get("type") not in ("text", "input_text", "refusal")
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
    )


def _media(part: dict[str, Any]) -> str:
    return f"<|{part.get('type', 'media')}|>"


def _message(message: dict[str, Any], *, keep_thinking: bool) -> str:
    role = message.get("role")
    if not isinstance(role, str):
        raise TemplateError("each message needs a role")
    text = text_of(message)
    if role == "tool":
        return _turn("user", f"<tool_response>\n{text}\n</tool_response>")
    if role != "assistant":
        return _turn(role, text)
    thought = message.get("reasoning") or message.get("reasoning_content") or ""
    if "</think>" in text:
        head, _, text = text.partition("</think>")
        thought, text = head.partition("<think>")[2].strip("\n"), text.lstrip("\n")
    if thought and keep_thinking:
        text = f"<think>\n{thought.strip(chr(10))}\n</think>\n\n{text.lstrip(chr(10))}"
    calls = "\n".join(_tool_call(call) for call in message.get("tool_calls") or [])
    return _turn("assistant", f"{text}\n{calls}" if text and calls else text + calls)


def _tool_call(call: dict[str, Any]) -> str:
    function = call.get("function") or {}
    arguments = function.get("arguments") or "{}"
    try:
        parsed = orjson.loads(arguments) if isinstance(arguments, str) else arguments
    except orjson.JSONDecodeError as error:
        raise TemplateError("tool call arguments are not JSON") from error
    return render_tool_call(str(function.get("name")), parsed)


def _turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"
