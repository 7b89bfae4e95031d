"""From generated text to the parts of a message: reasoning, content, tool calls; what vLLM's parsers do."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

import orjson

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class ParseError(ValueError):
    """The text is not the tool call that the request demanded; vLLM answers 500."""


@dataclass
class Delta:
    reasoning: str = ""
    content: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.tool_calls)


@dataclass
class ReplyParser:
    """Takes text as it is generated, gives parts of the message as soon as they are certain.

    `form` is how tool calls are written: ``native`` in tags, as a tool parser reads them, ``list`` as a JSON list
    (required), ``named`` as the bare arguments of the function `name`, or None if there are none to look for.
    """

    reasoning: bool = False
    form: str | None = None
    name: str = ""
    calls: int = 0
    _state: str = "start"
    _buffer: str = ""

    def push(self, text: str, *, final: bool) -> Delta:
        """Raises ParseError at the end of a reply that should have been a tool call."""
        self._buffer += text
        delta = Delta()
        if self._state == "start":
            if self.reasoning and "<think>".startswith(self._buffer) and not final:
                return delta
            thinks = self.reasoning and self._buffer.startswith("<think>")
            self._state = "reasoning" if thinks else "content"
            self._buffer = self._buffer.removeprefix("<think>") if thinks else self._buffer
        if self._state == "reasoning":
            self._take_reasoning(delta, final=final)
        if self._state == "content":
            self._take_content(delta, final=final)
        return delta

    def _take_reasoning(self, delta: Delta, *, final: bool) -> None:
        thought, close, rest = self._buffer.partition("</think>")
        if close:
            delta.reasoning, self._buffer, self._state = thought, rest, "content"
        else:
            delta.reasoning, self._buffer = _hold_back(self._buffer, "</think>", final=final)

    def _take_content(self, delta: Delta, *, final: bool) -> None:
        if self.form in ("list", "named"):
            if final:
                delta.tool_calls = self._whole_calls()
            return
        while self.form == "native" and _OPEN in self._buffer:
            before, _, rest = self._buffer.partition(_OPEN)
            call, close, after = rest.partition(_CLOSE)
            delta.content += before.strip("\n") if self.calls else before
            if not close:
                if final:
                    delta.content += _OPEN + rest
                    self._buffer = ""
                else:
                    self._buffer = _OPEN + rest
                return
            parsed = orjson.loads(call)
            delta.tool_calls.append(self._call(parsed["name"], parsed["arguments"]))
            self._buffer = after.lstrip("\n")
        text, self._buffer = _hold_back(self._buffer, _OPEN if self.form == "native" else "", final=final)
        delta.content += text

    def _whole_calls(self) -> list[dict[str, Any]]:
        try:
            parsed = orjson.loads(self._buffer.strip())
        except orjson.JSONDecodeError as error:
            raise ParseError("the reply is not the demanded tool call") from error
        if self.form == "named":
            return [self._call(self.name, parsed)]
        return [self._call(call["name"], call["parameters"]) for call in parsed]

    def _call(self, name: str, arguments: Any) -> dict[str, Any]:
        self.calls += 1
        return {
            "id": f"chatcmpl-tool-{uuid.uuid4().hex[:16]}",
            "type": "function",
            "index": self.calls - 1,
            "function": {"name": name, "arguments": orjson.dumps(arguments).decode()},
        }


def _hold_back(text: str, tag: str, *, final: bool) -> tuple[str, str]:
    """Split text so that the second part is what may be the start of `tag`."""
    if not final:
        for length in range(min(len(tag) - 1, len(text)), 0, -1):
            if tag.startswith(text[-length:]):
                return text[:-length], text[-length:]
    return text, ""
