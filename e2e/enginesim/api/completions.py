"""``/v1/completions``."""

from __future__ import annotations

import copy
import uuid
from typing import TYPE_CHECKING, Any

from e2e.enginesim import tokenizer
from e2e.enginesim.api import common
from e2e.enginesim.api.call import Call
from e2e.enginesim.api.common import ApiError, Output, field_of
from e2e.enginesim.model import Style
from e2e.enginesim.request import Request

if TYPE_CHECKING:
    from aiohttp import web

    from e2e.enginesim.frontend import Frontend


async def handle(http: web.Request) -> web.StreamResponse:
    frontend = http.app[common.FRONTEND]
    call = CompletionCall(frontend, http, await common.read_body(http))
    if field_of(call.body, "stream", bool, default=False):
        return await common.stream(http, call.events())
    return common.json_response(await call.answer())


class CompletionCall(Call):
    chunk_object = "text_completion"
    id_prefix = "cmpl"

    def __init__(self, frontend: Frontend, http: web.Request, body: dict[str, Any]) -> None:
        super().__init__(frontend, http, body)
        self.echo = field_of(body, "echo", bool, default=False)
        limit = field_of(body, "max_tokens", int, 16)
        self.prompts = _prompts(body.get("prompt"))
        self.requests = [
            Request(
                id=f"{self.id}-{i}-{uuid.uuid4().hex[:8]}",
                prompt=prompt,
                sampling=sampling,
                kv_params=copy.deepcopy(self.params),
                lora=self.lora,
                cache_salt=field_of(body, "cache_salt", str, ""),
            )
            for i, prompt in enumerate(self.prompts)
            for sampling in common.samplings(frontend, body, len(prompt), limit, Style())
        ]
        self._texts = [""] * len(self.requests)
        self._begun: set[int] = set()

    async def answer(self) -> dict[str, Any]:
        whole = await self.collect()
        choices = [
            {
                "index": i,
                "text": self._texts[i],
                "logprobs": self._logprobs(choice.tokens),
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
                "token_ids": choice.tokens if self.return_ids else None,
                "prompt_logprobs": None,
                "prompt_token_ids": self.requests[i].prompt if self.return_ids else None,
            }
            for i, choice in enumerate(whole)
        ]
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": None,
            "usage": self.usage(),
            "kv_transfer_params": self.handle,
        }

    def take(self, output: Output) -> None:
        self._texts[output.index] += self._echoed(output, first=self._first(output)) + output.text

    def stream_choice(self, output: Output) -> dict[str, Any]:
        first = self._first(output)
        return {
            "index": output.index,
            "text": self._echoed(output, first=first) + output.text,
            "logprobs": self._logprobs(output.tokens),
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
            "prompt_token_ids": self.requests[output.index].prompt if self.return_ids and first else None,
            "token_ids": output.tokens if self.return_ids else None,
        }

    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    def _first(self, output: Output) -> bool:
        first = output.index not in self._begun
        self._begun.add(output.index)
        return first

    def _echoed(self, output: Output, *, first: bool) -> str:
        return tokenizer.decode(self.requests[output.index].prompt) if self.echo and first else ""

    def _logprobs(self, tokens: list[int]) -> dict[str, Any] | None:
        """The simulated model is certain of every token."""
        if field_of(self.body, "logprobs", int) is None:
            return None
        texts = [tokenizer.decode([t]) for t in tokens]
        return {
            "text_offset": [0] * len(tokens),
            "token_logprobs": [0.0] * len(tokens),
            "tokens": texts,
            "top_logprobs": [{text: 0.0} for text in texts],
        }


def _prompts(prompt: Any) -> list[list[int]]:
    """A text, a list of tokens, or a list of either."""
    if isinstance(prompt, str):
        return [common.check_tokens(tokenizer.encode(prompt))]
    if isinstance(prompt, list) and prompt and all(isinstance(p, (str, list)) for p in prompt):
        return [tokens for p in prompt for tokens in _prompts(p)]
    if isinstance(prompt, list):
        return [common.check_tokens(prompt)]
    raise ApiError(400, "Either prompt or prompt_embeds must be provided and non-empty.")
