"""``/v1/completions``."""

from __future__ import annotations

import copy
import uuid
from typing import TYPE_CHECKING, Any

from e2e.enginesim import tokenizer
from e2e.enginesim.api import common
from e2e.enginesim.api.common import ApiError, Output, field_of
from e2e.enginesim.model import Style
from e2e.enginesim.request import EngineError, Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web

    from e2e.enginesim.frontend import Frontend


async def handle(http: web.Request) -> web.StreamResponse:
    frontend = http.app[common.FRONTEND]
    body = await common.read_body(http)
    call = _Call(frontend, http, body)
    if field_of(body, "stream", bool, default=False):
        return await common.stream(http, call.events())
    return common.json_response(await call.answer())


class _Call:
    def __init__(self, frontend: Frontend, http: web.Request, body: dict[str, Any]) -> None:
        self.frontend, self.body = frontend, body
        self.model, lora = common.check_model(frontend, body)
        self.id = common.response_id(http, "cmpl")
        self.created = common.now()
        self.params = field_of(body, "kv_transfer_params", dict)
        self.return_ids = field_of(body, "return_token_ids", bool, default=False)
        self.echo = field_of(body, "echo", bool, default=False)
        self.requests = []
        limit = field_of(body, "max_tokens", int, 16)
        for i, prompt in enumerate(_prompts(body.get("prompt"))):
            sampling = common.sampling(frontend, body, len(prompt), limit, Style())
            for _ in range(sampling.n):
                request = Request(
                    id=f"{self.id}-{i}-{uuid.uuid4().hex[:8]}",
                    prompt=prompt,
                    sampling=sampling,
                    kv_params=copy.deepcopy(self.params),
                    lora=lora,
                    cache_salt=field_of(body, "cache_salt", str, ""),
                )
                self.requests.append(request)

    async def answer(self) -> dict[str, Any]:
        texts = [tokenizer.decode(r.prompt) if self.echo else "" for r in self.requests]
        last: list[Output | None] = [None] * len(self.requests)
        tokens: list[list[int]] = [[] for _ in self.requests]
        params = None
        try:
            async for output in common.outputs(self.frontend, self.requests):
                texts[output.index] += output.text
                tokens[output.index] += output.tokens
                last[output.index] = output
                params = output.kv_transfer_params or params
        except EngineError as error:
            raise common.internal_error() from error
        choices = [
            {
                "index": i,
                "text": texts[i],
                "logprobs": _logprobs(self.body, tokens[i]),
                "finish_reason": output.finish_reason if output else None,
                "stop_reason": output.stop_reason if output else None,
                "token_ids": tokens[i] if self.return_ids else None,
                "prompt_logprobs": None,
                "prompt_token_ids": self.requests[i].prompt if self.return_ids else None,
            }
            for i, output in enumerate(last)
        ]
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": None,
            "usage": self._usage(sum(map(len, tokens))),
            "kv_transfer_params": params,
        }

    async def events(self) -> AsyncIterator[bytes]:
        count, params, started = 0, None, set()
        try:
            async for output in common.outputs(self.frontend, self.requests):
                count += len(output.tokens)
                params = output.kv_transfer_params or params
                first = output.index not in started
                started.add(output.index)
                chunk = self._chunk([self._choice(output, first=first)])
                if params is not None and self.frontend.features.handle_in_stream and output.finish_reason:
                    chunk["kv_transfer_params"] = params
                yield common.sse(chunk)
            if (self.body.get("stream_options") or {}).get("include_usage"):
                chunk = self._chunk([])
                chunk["usage"] = {k: v for k, v in self._usage(count).items() if v is not None}
                if params is not None and self.frontend.features.handle_in_stream:
                    chunk["kv_transfer_params"] = params
                yield common.sse(chunk)
        except EngineError:
            yield common.sse(common.internal_error().body)
        if params is not None and self.frontend.adds_stream_event:
            yield common.sse({**self._chunk([]), "kv_transfer_params": params})
        yield b"data: [DONE]\n\n"

    def _choice(self, output: Output, *, first: bool) -> dict[str, Any]:
        request = self.requests[output.index]
        return {
            "index": output.index,
            "text": tokenizer.decode(request.prompt) + output.text if self.echo and first else output.text,
            "logprobs": _logprobs(self.body, output.tokens),
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
            "prompt_token_ids": request.prompt if self.return_ids and first else None,
            "token_ids": output.tokens if self.return_ids else None,
        }

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _usage(self, completion: int) -> dict[str, Any]:
        prompts = {r.id.rsplit("-", 2)[1]: len(r.prompt) for r in self.requests}
        cached = common.cached_tokens(self.frontend, self.requests[0])
        return common.usage(sum(prompts.values()), completion, cached)


def _prompts(prompt: Any) -> list[list[int]]:
    """A text, a list of tokens, or a list of either."""
    if isinstance(prompt, str):
        return [common.check_tokens(tokenizer.encode(prompt))]
    if isinstance(prompt, list) and prompt and all(isinstance(p, (str, list)) for p in prompt):
        return [tokens for p in prompt for tokens in _prompts(p)]
    if isinstance(prompt, list):
        return [common.check_tokens(prompt)]
    raise ApiError(400, "Either prompt or prompt_embeds must be provided and non-empty.")


def _logprobs(body: dict[str, Any], tokens: list[int]) -> dict[str, Any] | None:
    """The simulated model is certain of every token."""
    if field_of(body, "logprobs", int) is None:
        return None
    texts = [tokenizer.decode([t]) for t in tokens]
    return {
        "text_offset": [0] * len(tokens),
        "token_logprobs": [0.0] * len(tokens),
        "tokens": texts,
        "top_logprobs": [{text: 0.0} for text in texts],
    }
