"""``/v1/chat/completions``."""

from __future__ import annotations

import copy
import uuid
from typing import TYPE_CHECKING, Any

from e2e.enginesim import template, tokenizer
from e2e.enginesim.api import common
from e2e.enginesim.api.call import Call, Collected
from e2e.enginesim.api.common import ApiError, Output, field_of
from e2e.enginesim.api.reply import Delta, ReplyParser
from e2e.enginesim.model import Style
from e2e.enginesim.request import Request

if TYPE_CHECKING:
    from aiohttp import web

    from e2e.enginesim.frontend import Frontend


async def handle(http: web.Request) -> web.StreamResponse:
    frontend = http.app[common.FRONTEND]
    call = ChatCall(frontend, http, await common.read_body(http))
    if field_of(call.body, "stream", bool, default=False):
        return await common.stream(http, call.events())
    return common.json_response(await call.answer())


def prompt_of(body: dict[str, Any]) -> list[int]:
    """Tokens of a chat body's messages and tools; raises ApiError."""
    if "messages" in body and body["messages"] is None:
        raise ApiError(400, "'NoneType' object is not iterable")
    messages = field_of(body, "messages", list)
    if not messages or not all(isinstance(m, dict) for m in messages):
        raise ApiError(400, "1 validation error:\n  messages: Field required", "Bad Request", "body.messages")
    options = dict(field_of(body, "chat_template_kwargs", dict, {}))
    options.setdefault("add_generation_prompt", field_of(body, "add_generation_prompt", bool, default=True))
    try:
        return tokenizer.encode(template.render(messages, field_of(body, "tools", list), options))
    except template.TemplateError as error:
        raise ApiError(400, str(error)) from error


class ChatCall(Call):
    chunk_object = "chat.completion.chunk"
    id_prefix = "chatcmpl"

    def __init__(self, frontend: Frontend, http: web.Request, body: dict[str, Any]) -> None:
        super().__init__(frontend, http, body)
        self.style, self.form, self.tool_name = self._reply_kind()
        prompt = prompt_of(body)
        replaced = (self.params or {}).get("prompt_token_ids")
        if replaced is not None and frontend.features.prompt_token_ids:
            prompt = common.check_tokens(replaced)
        limit = field_of(body, "max_completion_tokens", int, field_of(body, "max_tokens", int))
        self.requests = [
            Request(
                id=f"{self.id}-{uuid.uuid4().hex[:8]}",
                prompt=prompt,
                sampling=sampling,
                kv_params=copy.deepcopy(self.params),
                lora=self.lora,
                cache_salt=field_of(body, "cache_salt", str, ""),
                text_only=not template.has_media(body["messages"]),
            )
            for sampling in common.samplings(frontend, body, len(prompt), limit, self.style)
        ]
        self.reasons = frontend.engine.config.reasoning_parser is not None
        self.parsers = [ReplyParser(reasoning=self.reasons, form=self.form, name=self.tool_name) for _ in self.requests]
        self._parts = [Delta() for _ in self.requests]

    async def answer(self) -> dict[str, Any]:
        whole = await self.collect()
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [self._whole_choice(i, choice) for i, choice in enumerate(whole)],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": self.usage(),
            "prompt_logprobs": None,
            "prompt_token_ids": self.requests[0].prompt if self.return_ids else None,
            "kv_transfer_params": self.handle,
        }

    def take(self, output: Output) -> None:
        new, whole = self._parse(output), self._parts[output.index]
        whole.reasoning += new.reasoning
        whole.content += new.content
        whole.tool_calls += new.tool_calls

    def first_chunks(self) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        chunks = []
        for i, request in enumerate(self.requests):
            chunk = self.chunk([{"index": i, "delta": delta, "logprobs": None, "finish_reason": None}])
            chunk["prompt_token_ids"] = request.prompt if self.return_ids else None
            chunks.append(chunk)
        return chunks

    def stream_choice(self, output: Output) -> dict[str, Any] | None:
        """None where vLLM's parsers hold the text back and so send no chunk."""
        delta = self._parse(output)
        parsed = self.form is not None or self.reasons
        if parsed and not delta and output.finish_reason is None and not self.return_ids:
            return None
        part: dict[str, Any] = {}
        if delta.reasoning:
            part["reasoning"] = delta.reasoning
        if delta.content or not parsed:
            part["content"] = delta.content
        if delta.tool_calls:
            part["tool_calls"] = delta.tool_calls
        choice = {
            "index": output.index,
            "delta": part,
            "logprobs": self._logprobs(output.tokens),
            "finish_reason": self._finish_reason(output.index, output.finish_reason),
            "token_ids": output.tokens if self.return_ids else None,
        }
        if output.finish_reason is not None:
            choice["stop_reason"] = output.stop_reason
        return choice

    def _reply_kind(self) -> tuple[Style, str | None, str]:
        """How the model is to answer, how its tool calls are written, and the one function's name if it is named."""
        config = self.frontend.engine.config
        options = field_of(self.body, "chat_template_kwargs", dict, {})
        thinks = options.get("enable_thinking", config.reasoning_parser is not None) is True
        tools = [t["function"] for t in field_of(self.body, "tools", list, []) if isinstance(t.get("function"), dict)]
        choice = self.body.get("tool_choice", "auto" if tools else "none")
        if isinstance(choice, dict):
            name = (choice.get("function") or {}).get("name")
            named = tuple(t for t in tools if t.get("name") == name)
            if not named:
                raise ApiError(400, "The tool specified in `tool_choice` does not match any of the tools.")
            form = "native" if config.tool_call_parser else "named"
            return Style(thinks, named, form), form, str(name)
        if choice == "required":
            if not tools:
                raise ApiError(400, "When using `tool_choice`, `tools` must be set.")
            form = "native" if config.tool_call_parser else "list"
            return Style(thinks, tuple(self._mentioned(tools) or tools[:1]), form), form, ""
        if choice == "auto" and tools:
            if not (config.auto_tool_choice and config.tool_call_parser):
                if self.body.get("tool_choice") == "auto":
                    raise ApiError(
                        400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
                    )
                return Style(thinks), None, ""
            return Style(thinks, tuple(self._mentioned(tools)), "native"), "native", ""
        return Style(thinks), None, ""

    def _mentioned(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The simulated model calls the tools that the last message names, if that comes from the user."""
        last = self.body["messages"][-1] if self.body.get("messages") else {}
        text = template.text_of(last) if last.get("role") == "user" else ""
        return [t for t in tools if str(t.get("name")) in text]

    def parts(self, index: int) -> Delta:
        """All parts of a choice's message, once it is complete."""
        return self._parts[index]

    def _parse(self, output: Output) -> Delta:
        return self.parsers[output.index].push(output.text, final=output.finish_reason is not None)

    def _finish_reason(self, index: int, reason: str | None) -> str | None:
        called = self.parsers[index].calls and not self.tool_name
        return "tool_calls" if called and reason == "stop" else reason

    def _whole_choice(self, i: int, choice: Collected) -> dict[str, Any]:
        parts = self._parts[i]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": parts.content or (None if parts.tool_calls or parts.reasoning else ""),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": parts.reasoning or None,
        }
        if parts.tool_calls:
            message["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in parts.tool_calls]
        return {
            "index": i,
            "message": message,
            "logprobs": self._logprobs(choice.tokens),
            "finish_reason": self._finish_reason(i, choice.finish_reason),
            "stop_reason": choice.stop_reason,
            "token_ids": choice.tokens if self.return_ids else None,
        }

    def _logprobs(self, tokens: list[int]) -> dict[str, Any] | None:
        """The simulated model is certain of every token."""
        if not field_of(self.body, "logprobs", bool, default=False):
            return None
        texts = [tokenizer.decode([t]) for t in tokens]
        return {
            "content": [
                {"token": text, "logprob": 0.0, "bytes": list(text.encode()), "top_logprobs": []} for text in texts
            ]
        }
