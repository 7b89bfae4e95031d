"""A router in this process, its engines given as URLs, and clients for it."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from kvloop.api.contract import ReuseSummary, RouterConfig, parse
from kvloop.router.app import App
from kvloop.router.store.memory import MemoryStore


async def eventually(check: Callable[[], bool], what: str, seconds: float = 10) -> None:
    """Wait until `check` holds; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.005)


def config(prefill: Iterable[str], decode: Iterable[str], **settings: Any) -> RouterConfig:
    """A configuration with these engines, on ports that the system chooses; `settings` are keys of the file."""
    local = {"host": "127.0.0.1", "port": 0}
    engines = {"prefill": [{"url": url} for url in prefill], "decode": [{"url": url} for url in decode]}
    base = {"listen": local, "admin": local, "endpoints": {"static": engines}, "accessLog": False, "probeSeconds": 0.1}
    return parse({**base, **settings})


class Router:
    """``async with Router(config) as router``: serving, and every reachable engine probed."""

    def __init__(self, settings: RouterConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.app = App(settings, clock)

    async def __aenter__(self) -> Self:
        await self.app.start()
        engines = self.app.pool.all
        await eventually(lambda: all(e.info.probed or not e.healthy for e in engines()), "engines probed")
        self.url = f"http://127.0.0.1:{self.app.port}"
        self.admin = f"http://127.0.0.1:{self.app.admin_port}"
        self._stack = AsyncExitStack()
        self.session = await self._stack.enter_async_context(aiohttp.ClientSession())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        await self.app.stop()

    @property
    def store(self) -> MemoryStore:
        store = self.app.core.store
        assert isinstance(store, MemoryStore)
        return store

    async def post(
        self, body: Any, path: str = "/v1/chat/completions", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body of a request; `body` is sent as JSON unless it is bytes."""
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        sent = {"content-type": "application/json", **(headers or {})}
        async with self.session.post(self.url + path, data=data, headers=sent) as answer:
            return answer.status, await answer.read()

    async def chat(self, *messages: dict[str, Any], headers: dict[str, str] | None = None, **fields: Any) -> bytes:
        """The answer's body; fails unless the status is 200."""
        status, answer = await self.post({"model": "tiny", "messages": list(messages), **fields}, headers=headers)
        assert status == 200, answer
        return answer

    async def reuse(self) -> ReuseSummary:
        async with self.session.get(self.admin + "/reuse") as answer:
            return ReuseSummary.model_validate_json(await answer.read())


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
