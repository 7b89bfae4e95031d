"""What all dialects share: errors, sampling parameters, running a request's choices."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from e2e.enginesim import tokenizer
from e2e.enginesim.request import Request, Sampling, Step

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from e2e.enginesim.frontend import Frontend
    from e2e.enginesim.model import Style

MAX_STOPS = 4
FRONTEND: web.AppKey[Frontend] = web.AppKey("frontend", object)  # type: ignore[arg-type]  # avoids an import cycle


class ApiError(Exception):
    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def internal_error() -> ApiError:
    return ApiError(500, "Internal server error", "InternalServerError")


def json_response(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


def sse(body: Any) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


async def read_body(http: web.Request) -> dict[str, Any]:
    try:
        body = orjson.loads(await http.read())
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"[{{'type': 'json_invalid', 'msg': '{error}'}}]", "Bad Request") from error
    if not isinstance(body, dict):
        raise ApiError(400, "1 validation error: the body should be an object", "Bad Request")
    return body


def field_of(body: dict[str, Any], name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    """A body field of the right type, or `default` if it is absent or null; raises ApiError as pydantic would."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind in (int, float, (int, float))):
        wanted = kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)
        raise ApiError(400, f"1 validation error:\n  Input should be a valid {wanted}", "Bad Request", f"body.{name}")
    return value


def check_model(frontend: Frontend, body: dict[str, Any]) -> tuple[str, str]:
    """Name to answer with, and the LoRA adapter's name or an empty string."""
    config = frontend.engine.config
    model = field_of(body, "model", str, config.names[0])
    if model in config.lora_modules:
        return model, model
    if model not in config.names:
        raise ApiError(404, f"The model `{model}` does not exist.", "NotFoundError", "model")
    return model, ""


def samplings(
    frontend: Frontend, body: dict[str, Any], prompt_tokens: int, limit: int | None, style: Style
) -> list[Sampling]:
    """Sampling parameters of each of a body's ``n`` choices; `limit` is its token limit, if any."""
    room = frontend.engine.config.max_model_len - prompt_tokens
    if room < 1 or (limit is not None and limit > room):
        frontend.reject(body.get("kv_transfer_params"))
        raise ApiError(
            400,
            f"This model's maximum context length is {frontend.engine.config.max_model_len} tokens. However, you "
            f"requested {limit or 1} output tokens and your prompt contains at least {prompt_tokens} input tokens.",
            param="input_tokens",
        )
    max_tokens = room if limit is None else limit
    min_tokens = field_of(body, "min_tokens", int, 0)
    if max_tokens < 1:
        raise ApiError(400, f"max_tokens must be at least 1, got {max_tokens}.", param="max_tokens")
    if min_tokens > max_tokens:
        raise ApiError(400, f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.")
    stop = field_of(body, "stop", (str, list), [])
    n = field_of(body, "n", int, 1)
    if n < 1:
        raise ApiError(400, f"n must be at least 1, got {n}.")
    if n > 1 and field_of(body, "temperature", (int, float), 1) == 0:
        raise ApiError(400, f"n must be 1 when using greedy sampling, got {n}.")
    if isinstance(stop, list) and len(stop) > MAX_STOPS:
        message = f"List should have at most {MAX_STOPS} items after validation, not {len(stop)}"
        raise ApiError(400, message, "Bad Request", "body.stop")
    one = Sampling(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=field_of(body, "ignore_eos", bool, default=False),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=frozenset(field_of(body, "stop_token_ids", list, [])),
        include_stop=field_of(body, "include_stop_str_in_output", bool, default=False),
        style=style,
    )
    return [one] * n


def check_tokens(tokens: list[Any]) -> list[int]:
    if not tokens:
        raise ApiError(400, "The prompt is empty.")
    for token in tokens:
        if type(token) is not int or not 0 <= token < tokenizer.VOCAB_SIZE:
            raise ApiError(400, f"Token id {token} is out of vocabulary")
    return tokens


@dataclass
class Output:
    """What one choice has produced since the last one."""

    index: int
    text: str
    tokens: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    kv_transfer_params: dict[str, Any] | None = None


@dataclass
class _Text:
    """Text of a choice as it grows, with vLLM's stop strings, which are found outside the engine core."""

    sampling: Sampling
    detokenizer: tokenizer.Detokenizer = field(default_factory=tokenizer.Detokenizer)
    whole: str = ""
    sent: int = 0
    count: int = 0

    def push(self, index: int, step: Step) -> Output:
        self.count += len(step.tokens)
        searched = len(self.whole)
        self.whole += self.detokenizer.push(step.tokens, final=step.finish_reason is not None)
        if self.count > self.sampling.min_tokens:
            for stop in self.sampling.stop:
                at = self.whole.find(stop, max(0, searched - len(stop) + 1))
                if at >= 0:
                    end = at + len(stop) if self.sampling.include_stop else at
                    return self._take(index, step.tokens, end, "stop", stop)
        held = 0
        if step.finish_reason is None and not self.sampling.include_stop:
            held = max((len(stop) - 1 for stop in self.sampling.stop), default=0)
        end = max(self.sent, len(self.whole) - held)
        output = self._take(index, step.tokens, end, step.finish_reason, step.stop_reason)
        output.kv_transfer_params = step.kv_transfer_params
        return output

    def _take(self, index: int, tokens: list[int], end: int, finish: str | None, reason: int | str | None) -> Output:
        text, self.sent = self.whole[self.sent : end], end
        return Output(index, text, tokens, finish, reason)


async def outputs(frontend: Frontend, requests: list[Request]) -> AsyncIterator[Output]:
    """Outputs of several requests as they come; closing the iterator aborts them all. Raises EngineError."""
    if len(requests) == 1:
        async for output in _outputs_of(frontend, 0, requests[0]):
            yield output
        return
    queue: asyncio.Queue[Output | BaseException | None] = asyncio.Queue()

    async def feed(index: int, request: Request) -> None:
        try:
            async for output in _outputs_of(frontend, index, request):
                queue.put_nowait(output)
            queue.put_nowait(None)
        except Exception as error:  # noqa: BLE001 - raised again by the reader below
            queue.put_nowait(error)

    tasks = [asyncio.create_task(feed(i, request)) for i, request in enumerate(requests)]
    try:
        left = len(tasks)
        while left:
            item = await queue.get()
            if item is None:
                left -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _outputs_of(frontend: Frontend, index: int, request: Request) -> AsyncIterator[Output]:
    text = _Text(request.sampling)
    steps = frontend.generate(request)
    try:
        async for step in steps:
            output = text.push(index, step)
            yield output
            if output.finish_reason is not None:
                return
    finally:
        await steps.aclose()


async def stream(http: web.Request, events: AsyncIterator[bytes]) -> web.StreamResponse:
    """Send events as they come, one write each. The first is awaited before the status line, as in vLLM."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    started = False
    try:
        async for event in events:
            if not started:
                await response.prepare(http)
                started = True
            await response.write(event)
    finally:
        await events.aclose()  # type: ignore[attr-defined]  # an async generator
    await response.write_eof()
    return response


def now() -> int:
    return int(time.time())


def usage(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    details = None if cached is None else {"cached_tokens": cached}
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": details,
    }


def cached_tokens(frontend: Frontend, request: Request) -> int | None:
    """Cached tokens for the usage, if the engine was told to report them; a decode leg reports the prefill's figure."""
    if not frontend.engine.config.prompt_tokens_details:
        return None
    reported = (request.kv_params or {}).get("remote_prefill_cached_tokens")
    return reported if isinstance(reported, int) else request.cached_tokens
