"""Conversations as any chat client of OpenAI's API holds them: no conversation id, no field of vLLM's or ours.

Shaped like the benchmark of the test bed whose speed the simulated engines play: each conversation has a system prompt
of its own, of one of a few lengths, and every turn sends the whole history. (vLLM's blog, October 2026, "Improve TTFT
for Multi-Turn Agentic Workloads with Bi-Directional KV Transfer in vLLM"; there a reply has 300 tokens.)
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, NamedTuple, Self

import httpx

Messages = tuple[dict[str, str], ...]

_WORDS: Final = ["".join(letters) for letters in product("bdfgklmnprstvz", "aeiou", "klmnrst")]
_SAMPLE: Final = 1000  # words whose tokens are counted, to know how many words a text of so many tokens has
TEXT: Final = ("content", "reasoning_content", "reasoning")
"""Where a stream has what the model says, or thinks: the first token may be of either."""
_TIMEOUT_S: Final = 120  # until the first byte, and between any two


class LoadError(RuntimeError):
    """A request failed; the message has the server's own."""


@dataclass(frozen=True)
class Workload:
    """What is asked.

    Attributes:
        conversations: How many there are; they take the system prompt's lengths in turn.
        turns: Requests of each conversation.
        clients: Requests under way at a time.
        system_tokens: Lengths of the system prompts, to about a percent.
        user_tokens: Length of each user message, likewise.
        reply_tokens: Limit of each reply.
        pause_s: From a reply to the conversation's next turn, in seconds.
        seed: Another one makes other texts of the same lengths, which no cache knows yet.
    """

    conversations: int = 10
    turns: int = 10
    clients: int = 2
    system_tokens: tuple[int, ...] = (2000, 8000, 12_000, 16_000, 24_000)
    user_tokens: int = 150
    reply_tokens: int = 40
    pause_s: float = 0
    seed: str = ""


@dataclass(frozen=True)
class Turn:
    """One request and what came of it."""

    conversation: int
    number: int
    """From 0; all but the first are follow-ups."""
    system_tokens: int
    """Of the system prompt, as the workload asks."""
    prompt_tokens: int
    """Of the whole prompt, as the server counts."""
    ttft_s: float
    """From the request to the first text of the reply."""
    body: dict[str, Any]
    reply: str
    total_s: float = 0
    """From the request to the end of the reply."""


class Reply(NamedTuple):
    """What a streamed request came to; times in seconds from the request."""

    text: str
    prompt_tokens: int
    ttft_s: float
    total_s: float


class Client:
    """``async with Client(url, model) as client``: sends the requests of a workload to one server."""

    def __init__(
        self,
        url: str,
        model: str,
        clock: Callable[[], float] = time.perf_counter,
        transport: httpx.AsyncBaseTransport | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._model = model
        self._clock = clock
        # Straight to the server: a proxy that the environment names would be in the way and in the measurement.
        self._http = httpx.AsyncClient(
            base_url=url, timeout=_TIMEOUT_S, trust_env=False, transport=transport, headers=headers
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def models(self) -> list[str]:
        """Names of the models that are served."""
        response = await self._send("GET", "/v1/models")
        return [each["id"] for each in response.json()["data"]]

    async def run(
        self,
        workload: Workload,
        on_turn: Callable[[], None] = lambda: None,
        on_failure: Callable[[LoadError], None] | None = None,
    ) -> list[Turn]:
        """Hold all conversations; `on_turn` is called after each turn, `on_failure` where a conversation has to end.

        Raises:
            LoadError: a request failed, and there is no `on_failure`; the others have been given up.
        """
        words_per_token = _SAMPLE / await self._count(" ".join(_words("sample", _SAMPLE)))
        clients = asyncio.Semaphore(workload.clients)
        turns: list[Turn] = []

        async def hold(number: int) -> None:
            try:
                async for turn in self._converse(workload, number, words_per_token, clients):
                    turns.append(turn)
                    on_turn()
            except LoadError as failure:
                if on_failure is None:
                    raise
                on_failure(failure)

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(workload.conversations):
                    group.create_task(hold(number))
        except ExceptionGroup as failures:
            raise LoadError(f"a turn failed: {failures.exceptions[0]}") from failures
        return turns

    async def _converse(
        self, workload: Workload, conversation: int, words_per_token: float, clients: asyncio.Semaphore
    ) -> AsyncIterator[Turn]:
        system_tokens = workload.system_tokens[conversation % len(workload.system_tokens)]
        seed = f"{workload.seed}{conversation}"
        messages: Messages = ({"role": "system", "content": prose(f"system {seed}", system_tokens * words_per_token)},)
        for number in range(workload.turns):
            if number and workload.pause_s:
                await asyncio.sleep(workload.pause_s)
            question = prose(f"user {seed} {number}", workload.user_tokens * words_per_token)
            messages += ({"role": "user", "content": question},)
            body = self.body(messages, workload.reply_tokens)
            async with clients:
                reply = await self.stream(body)
            yield Turn(
                conversation, number, system_tokens, reply.prompt_tokens, reply.ttft_s, body, reply.text, reply.total_s
            )
            messages += ({"role": "assistant", "content": reply.text},)

    async def answer(self, body: dict[str, Any]) -> str:
        """The reply to one request, not streamed."""
        response = await self._send("POST", "/v1/chat/completions", body)
        reply: str = response.json()["choices"][0]["message"]["content"]
        return reply

    async def stream(self, body: dict[str, Any]) -> Reply:
        """The reply to one request, streamed."""
        reply, prompt_tokens, ttft_s = "", 0, None
        streaming = body | {"stream": True, "stream_options": {"include_usage": True}}
        begin = self._clock()
        async with self._events(streaming) as events:
            async for event in events:
                if usage := event.get("usage"):
                    prompt_tokens = usage["prompt_tokens"]
                for choice in event["choices"]:
                    if ttft_s is None and any(choice["delta"].get(field) for field in TEXT):
                        ttft_s = self._clock() - begin
                    reply += choice["delta"].get("content") or ""
        return Reply(reply, prompt_tokens, ttft_s or 0.0, self._clock() - begin)

    async def _count(self, text: str) -> int:
        """Tokens of a text. Where the server has no tokenizer for clients, those of a prompt with little else."""
        response = await self._http.post("/tokenize", json={"model": self._model, "prompt": text})
        if response.is_success:
            return int(response.json()["count"])
        body = self.body(({"role": "user", "content": text},), 1)
        return int((await self._send("POST", "/v1/chat/completions", body)).json()["usage"]["prompt_tokens"])

    def body(self, messages: Messages, reply_tokens: int) -> dict[str, Any]:
        """A request."""
        return {"model": self._model, "messages": list(messages), "max_tokens": reply_tokens, "temperature": 0}

    async def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        try:
            response = await self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise LoadError(_unreachable(error)) from error
        _check(response)
        return response

    @asynccontextmanager
    async def _events(self, body: dict[str, Any]) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        try:
            async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.is_error:
                    await response.aread()
                    _check(response)
                yield _parse(response.aiter_lines())
        except httpx.HTTPError as error:
            raise LoadError(_unreachable(error)) from error


async def _parse(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, Any]]:
    async for line in lines:
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            return
        if data:
            event = json.loads(data)
            if "error" in event:
                raise LoadError(f"the stream broke off: {event['error']}")
            yield event
    raise LoadError("the stream ended before its end: the connection was cut")


def _unreachable(error: httpx.HTTPError) -> str:
    return f"{error.request.url.copy_with(path='/')} does not answer: {str(error) or type(error).__name__}"


def _check(response: httpx.Response) -> None:
    if response.is_error:
        raise LoadError(f"{response.request.url.path} answered {response.status_code}: {response.text[:500]}")


def prose(seed: str, words: float) -> str:
    """A text of so many words, the same for the same seed."""
    return " ".join(_words(seed, max(1, round(words)))) + "."


def _words(seed: str, count: int) -> list[str]:
    return random.Random(seed).choices(_WORDS, k=count)  # noqa: S311 - the same words in each run, no secret
