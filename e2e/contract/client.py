"""The two legs of a turn as a router sends them, against base URLs."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncGenerator, Awaitable, Callable

    import httpx

FIRST = {"do_remote_decode": True, "do_remote_prefill": False}
DEADLINE_S = 20.0


@dataclass
class Answer:
    """One answer of a leg, streamed or not."""

    status: int
    body: dict[str, Any]
    events: list[dict[str, Any] | str] = field(default_factory=list)

    @property
    def handle(self) -> dict[str, Any] | None:
        """The handle, at the top level of the body or of any event."""
        found = self.body.get("kv_transfer_params")
        for event in self.events:
            if isinstance(event, dict):
                found = event.get("kv_transfer_params") or event.get("response", {}).get("kv_transfer_params") or found
        return found

    @property
    def report(self) -> dict[str, Any] | None:
        return (self.handle or {}).get("guard")

    @property
    def tokens(self) -> list[int]:
        tokens: list[int] = self.body["choices"][0]["token_ids"]
        return tokens


@dataclass
class Turn:
    prefill: Answer
    decode: Answer

    @property
    def tokens(self) -> list[int]:
        return self.decode.tokens

    @property
    def handle(self) -> dict[str, Any]:
        assert self.decode.handle is not None
        return self.decode.handle


class Client:
    def __init__(self, http: httpx.AsyncClient, model: str, rng: random.Random, vocabulary: int) -> None:
        self._http, self.model, self._rng, self._vocabulary = http, model, rng, vocabulary
        self.leases: dict[str, dict[str, Any]] = {}
        """Handles that came and were not sent on as they are, by request id."""

    def tokens(self, n: int) -> list[int]:
        """Random ids that every model under test has."""
        return [self._rng.randrange(10, self._vocabulary) for _ in range(n)]

    async def post(self, url: str, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> Answer:
        whole = {"model": self.model, "temperature": 0, "seed": 0, **body}
        params = whole.get("kv_transfer_params") or {}
        if params and params == self.leases.get(params.get("remote_request_id", "")):
            del self.leases[params["remote_request_id"]]
        if whole.get("stream"):
            answer = Answer(200, {}, [event async for event in self.events(url, path, whole)])
        else:
            response = await self._http.post(url + path, json=whole, headers=headers)
            answer = Answer(response.status_code, response.json())
        if answer.handle:
            self.leases[answer.handle["remote_request_id"]] = copy.deepcopy(answer.handle)
        return answer

    async def events(self, url: str, path: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any] | str, None]:
        async with self._http.stream("POST", url + path, json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    data = line.removeprefix("data: ")
                    yield json.loads(data) if data.startswith("{") else data

    async def request(self, url: str, path: str, body: dict[str, Any]) -> httpx.Response:
        return await self._http.post(url + path, json=body)

    async def get(self, url: str, path: str) -> httpx.Response:
        return await self._http.get(url + path)

    async def complete(
        self, url: str, prompt: list[int], params: dict[str, Any] | None = None, max_tokens: int = 1, **more: Any
    ) -> Answer:
        """A leg through ``/v1/completions``, exact in tokens."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "return_token_ids": True, "ignore_eos": True, **more}
        if params is not None:
            body["kv_transfer_params"] = params
        return await self.post(url, "/v1/completions", body)

    async def turn(
        self, prefill: str, decode: str, prompt: list[int], handle: dict[str, Any] | None = None,
        max_tokens: int = 40, **more: Any,
    ) -> Turn:  # fmt: skip
        first = await self.complete(prefill, prompt, dict(handle or FIRST), **more)
        assert first.status == 200, first.body
        assert first.handle is not None
        second = await self.complete(decode, prompt, first.handle, max_tokens, **more)
        assert second.status == 200, second.body
        return Turn(first, second)

    async def cold(self, url: str, prompt: list[int], max_tokens: int, **more: Any) -> list[int]:
        """What a computation from nothing gives: a salt of its own keeps it off every cache."""
        answer = await self.complete(url, prompt, None, max_tokens, **{**more, "cache_salt": uuid.uuid4().hex})
        assert answer.status == 200, answer.body
        return answer.tokens

    async def metric(self, url: str, name: str, **labels: str) -> float:
        """Sum of a sample's values over all label sets that include `labels`; 0 if there is none."""
        total = 0.0
        for line in (await self.get(url, "/metrics")).text.splitlines():
            match = re.fullmatch(re.escape(name) + r"(?:\{(.*)\})? (\S+)", line)
            if match and all(f'{k}="{v}"' in (match[1] or "") for k, v in labels.items()):
                total += float(match[2])
        return total

    async def pinned(self, url: str) -> int:
        """Blocks in use."""
        share = await self.metric(url, "vllm:kv_cache_usage_perc")
        text = (await self.get(url, "/metrics")).text
        blocks = re.search(r'vllm:cache_config_info\{.*num_gpu_blocks="(\d+)"', text)
        assert blocks is not None
        return round(share * (int(blocks[1]) - 1))


async def eventually(holds: Callable[[], Awaitable[bool]], what: str, seconds: float = DEADLINE_S) -> None:
    """Wait until a condition holds; fails after a generous deadline."""
    end = time.monotonic() + seconds
    while not await holds():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.01)
