"""One call of an OpenAI-style endpoint: its requests, and the chunks or the collected choices that come of them."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from e2e.enginesim.api import common
from e2e.enginesim.api.common import Output, field_of
from e2e.enginesim.api.reply import ParseError
from e2e.enginesim.request import EngineError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web

    from e2e.enginesim.frontend import Frontend
    from e2e.enginesim.request import Request


@dataclass
class Collected:
    """What one choice has produced in all."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class Call(ABC):
    """Dialects differ in the kind of their chunks and ids, and in what they make of an output."""

    chunk_object = ""
    requests: list[Request]

    id_prefix = ""

    def __init__(self, frontend: Frontend, http: web.Request, body: dict[str, Any]) -> None:
        self.frontend, self.body = frontend, body
        self.model, self.lora = common.check_model(frontend, body)
        self.id = self.new_id(http)
        self.created = common.now()
        self.params = field_of(body, "kv_transfer_params", dict)
        self.return_ids = field_of(body, "return_token_ids", bool, default=False)
        self.count = 0
        self.handle: dict[str, Any] | None = None

    def new_id(self, http: web.Request) -> str:
        return f"{self.id_prefix}-{http.headers.get('X-Request-Id') or uuid.uuid4().hex[:16]}"

    def first_chunks(self) -> list[dict[str, Any]]:
        """Chunks to send before the first token."""
        return []

    @abstractmethod
    def take(self, output: Output) -> None:
        """Keep an output's text for a whole answer."""

    @abstractmethod
    def stream_choice(self, output: Output) -> dict[str, Any] | None:
        """An output as a chunk's choice, or None if no chunk is sent for it."""

    async def collect(self) -> list[Collected]:
        """Run to the end; raises ApiError in vLLM's shape if the engine fails."""
        whole = [Collected() for _ in self.requests]
        try:
            async for output in self._outputs():
                self.take(output)
                choice = whole[output.index]
                choice.tokens += output.tokens
                choice.finish_reason, choice.stop_reason = output.finish_reason, output.stop_reason
        except (EngineError, ParseError) as error:
            raise common.internal_error() from error
        return whole

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events as vLLM orders them; errors after the first byte become an event of their own."""
        options = field_of(self.body, "stream_options", dict, {})
        started = False
        try:
            async for output in self._outputs():
                if not started:
                    started = True
                    for chunk in self.first_chunks():
                        yield common.sse(chunk)
                choice = self.stream_choice(output)
                if choice is not None:
                    usage = self.usage() if options.get("continuous_usage_stats") else None
                    yield common.sse(self.chunk([choice], usage, last=output.finish_reason is not None))
            if options.get("include_usage"):
                usage = {k: v for k, v in self.usage().items() if v is not None}
                yield common.sse(self.chunk([], usage, last=True))
        except (EngineError, ParseError):
            yield common.sse(common.internal_error().body)
        if self.handle is not None and self.frontend.adds_stream_event:
            yield common.sse({**self.chunk([]), "kv_transfer_params": self.handle})
        yield b"data: [DONE]\n\n"

    def chunk(
        self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None, *, last: bool = False
    ) -> dict[str, Any]:
        """A chunk; from the one with the finish reason on it carries the handle, if this vLLM sends it itself."""
        chunk: dict[str, Any] = {
            "id": self.id,
            "object": self.chunk_object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        if usage is not None:
            chunk["usage"] = usage
        if last and self.handle is not None and self.frontend.features.handle_in_stream:
            chunk["kv_transfer_params"] = self.handle
        return chunk

    def prompt_tokens(self) -> int:
        return len(self.requests[0].prompt)

    def usage(self) -> dict[str, Any]:
        cached = common.cached_tokens(self.frontend, self.requests[0])
        return common.usage(self.prompt_tokens(), self.count, cached)

    async def _outputs(self) -> AsyncIterator[Output]:
        async for output in common.outputs(self.frontend, self.requests):
            self.count += len(output.tokens)
            self.handle = output.kv_transfer_params or self.handle
            yield output
