"""``/v1/chat/completions``."""

from __future__ import annotations

import copy
import uuid
from typing import TYPE_CHECKING, Any

from e2e.enginesim import template, tokenizer
from e2e.enginesim.api import common
from e2e.enginesim.api.common import ApiError, Output, field_of
from e2e.enginesim.api.reply import Delta, ParseError, ReplyParser
from e2e.enginesim.model import Style
from e2e.enginesim.request import EngineError, Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web

    from e2e.enginesim.frontend import Frontend


async def handle(http: web.Request) -> web.StreamResponse:
    frontend = http.app[common.FRONTEND]
    call = ChatCall(frontend, await common.read_body(http), common.response_id(http, "chatcmpl"))
    if field_of(call.body, "stream", bool, default=False):
        return await common.stream(http, call.events())
    return common.json_response(await call.answer())


def prompt_of(body: dict[str, Any]) -> list[int]:
    """Tokens of a chat body's messages and tools; raises ApiError."""
    messages = field_of(body, "messages", list)
    if not messages or not all(isinstance(m, dict) for m in messages):
        raise ApiError(400, "1 validation error:\n  messages: Field required", "Bad Request", "body.messages")
    options = dict(field_of(body, "chat_template_kwargs", dict, {}))
    options.setdefault("add_generation_prompt", field_of(body, "add_generation_prompt", bool, default=True))
    try:
        return tokenizer.encode(template.render(messages, field_of(body, "tools", list), options))
    except template.TemplateError as error:
        raise ApiError(400, str(error)) from error


class ChatCall:
    def __init__(self, frontend: Frontend, body: dict[str, Any], identifier: str) -> None:
        self.frontend, self.body, self.id = frontend, body, identifier
        self.model, lora = common.check_model(frontend, body)
        self.created = common.now()
        self.params = field_of(body, "kv_transfer_params", dict)
        self.return_ids = field_of(body, "return_token_ids", bool, default=False)
        self.style, self.form, self.tool_name = self._reply_kind()
        prompt = prompt_of(body)
        replaced = (self.params or {}).get("prompt_token_ids")
        if replaced is not None and frontend.features.prompt_token_ids:
            prompt = common.check_tokens(replaced)
        limit = field_of(body, "max_completion_tokens", int, field_of(body, "max_tokens", int))
        sampling = common.sampling(frontend, body, len(prompt), limit, self.style)
        self.requests = [
            Request(
                id=f"{self.id}-{uuid.uuid4().hex[:8]}",
                prompt=prompt,
                sampling=sampling,
                kv_params=copy.deepcopy(self.params),
                lora=lora,
                cache_salt=field_of(body, "cache_salt", str, ""),
                text_only=not template.has_media(body["messages"]),
            )
            for _ in range(sampling.n)
        ]
        self.parsers = [self._parser() for _ in self.requests]

    async def answer(self) -> dict[str, Any]:
        deltas = [Delta() for _ in self.requests]
        last: list[Output | None] = [None] * len(self.requests)
        tokens: list[list[int]] = [[] for _ in self.requests]
        params = None
        try:
            async for output in common.outputs(self.frontend, self.requests):
                new = self._parse(output)
                whole = deltas[output.index]
                whole.reasoning += new.reasoning
                whole.content += new.content
                whole.tool_calls += new.tool_calls
                tokens[output.index] += output.tokens
                last[output.index] = output
                params = output.kv_transfer_params or params
        except (EngineError, ParseError) as error:
            raise common.internal_error() from error
        choices = [self._whole_choice(i, deltas[i], output, tokens[i]) for i, output in enumerate(last)]
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": None,
            "usage": self._usage(sum(map(len, tokens))),
            "prompt_logprobs": None,
            "prompt_token_ids": self.requests[0].prompt if self.return_ids else None,
            "kv_transfer_params": params,
        }

    async def events(self) -> AsyncIterator[bytes]:
        options = self.body.get("stream_options") or {}
        in_stream = self.frontend.features.handle_in_stream
        count, params, started = 0, None, False
        try:
            async for output in common.outputs(self.frontend, self.requests):
                if not started:
                    started = True
                    for event in self._first_events():
                        yield event
                count += len(output.tokens)
                params = output.kv_transfer_params or params
                choice = self._choice(output)
                if choice is None:
                    continue
                chunk = self._chunk([choice])
                if options.get("continuous_usage_stats"):
                    chunk["usage"] = self._usage(count)
                if params is not None and in_stream and output.finish_reason:
                    chunk["kv_transfer_params"] = params
                yield common.sse(chunk)
            if options.get("include_usage"):
                chunk = self._chunk([])
                chunk["usage"] = {k: v for k, v in self._usage(count).items() if v is not None}
                if params is not None and in_stream:
                    chunk["kv_transfer_params"] = params
                yield common.sse(chunk)
        except (EngineError, ParseError):
            yield common.sse(common.internal_error().body)
        if params is not None and self.frontend.adds_stream_event:
            yield common.sse({**self._chunk([]), "kv_transfer_params": params})
        yield b"data: [DONE]\n\n"

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
            return Style(thinks, named, "named"), "named", str(name)
        if choice == "required":
            if not tools:
                raise ApiError(400, "When using `tool_choice`, `tools` must be set.")
            return Style(thinks, tuple(self._mentioned(tools) or tools[:1]), "list"), "list", ""
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

    def _parser(self) -> ReplyParser:
        reasoning = self.frontend.engine.config.reasoning_parser is not None
        return ReplyParser(reasoning=reasoning, form=self.form, name=self.tool_name)

    def _parse(self, output: Output) -> Delta:
        parser = self.parsers[output.index]
        return parser.push(output.text, final=output.finish_reason is not None)

    def _finish_reason(self, output: Output) -> str | None:
        called = self.parsers[output.index].calls
        return (
            "tool_calls" if called and self.form != "named" and output.finish_reason == "stop" else output.finish_reason
        )

    def _whole_choice(self, i: int, delta: Delta, output: Output | None, tokens: list[int]) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": delta.content or (None if delta.tool_calls or delta.reasoning else ""),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": delta.reasoning or None,
        }
        if delta.tool_calls:
            message["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in delta.tool_calls]
        return {
            "index": i,
            "message": message,
            "logprobs": self._logprobs(tokens),
            "finish_reason": self._finish_reason(output) if output else None,
            "stop_reason": output.stop_reason if output else None,
            "token_ids": tokens if self.return_ids else None,
        }

    def _first_events(self) -> list[bytes]:
        events = []
        for i in range(len(self.requests)):
            delta = {"role": "assistant", "content": ""}
            chunk = self._chunk([{"index": i, "delta": delta, "logprobs": None, "finish_reason": None}])
            chunk["prompt_token_ids"] = self.requests[0].prompt if self.return_ids else None
            events.append(common.sse(chunk))
        return events

    def _choice(self, output: Output) -> dict[str, Any] | None:
        """A chunk's choice, or None where vLLM's parsers hold the text back and so send no chunk."""
        delta = self._parse(output)
        parsed = self.form is not None or self.frontend.engine.config.reasoning_parser is not None
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
            "finish_reason": self._finish_reason(output),
            "token_ids": output.tokens if self.return_ids else None,
        }
        if output.finish_reason is not None:
            choice["stop_reason"] = output.stop_reason
        return choice

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _usage(self, completion: int) -> dict[str, Any]:
        request = self.requests[0]
        return common.usage(len(request.prompt), completion, common.cached_tokens(self.frontend, request))

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
