"""A scripted engine: speaks just enough of vLLM's protocol, and fails exactly as a test asks."""

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import orjson
from aiohttp import web

Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Seen:
    """A request as the engine got it."""

    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: dict[str, Any]

    @property
    def kv(self) -> Any:
        return self.body.get("kv_transfer_params")

    @property
    def handle(self) -> bool:
        """Whether it came with a decode engine's handle, to be read."""
        return self._offers and self.kv["remote_num_tokens"] > 0

    @property
    def ends(self) -> bool:
        """Whether it came with a handle only to end its lease."""
        return self._offers and self.kv["remote_num_tokens"] == 0

    @property
    def _offers(self) -> bool:
        return bool(self.kv and self.kv.get("do_remote_decode") and self.kv.get("remote_block_ids"))


@dataclass
class FakeEngine:
    """``async with FakeEngine("decode") as engine: engine.url``; `script` overrides its next answers, one each."""

    role: str
    guard: bool = True
    boot_id: str = "boot-1"
    tokens: int = 1000
    """Prompt tokens it claims, and on decode the tokens it holds."""
    verified: int | None = None
    """What its guard will report; everything by default."""
    metrics: bytes | None = None
    """What it says in place of its metrics."""
    token_ids: list[int] | None = None
    """Of the prompt, in whole answers."""
    pieces: list[str] = field(default_factory=lambda: ["Hello", " world"])
    script: deque[Behaviour] = field(default_factory=deque)
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    """Accepted so far."""
    aborted: int = 0
    """Requests whose client left before the answer was complete."""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)
        self._serial = itertools.count()
        await self._runner.setup()
        server = self._runner.server
        assert server is not None

        def connect() -> asyncio.Protocol:
            self.connections += 1
            return server()

        self._listener = await asyncio.get_running_loop().create_server(connect, "127.0.0.1", 0)
        self.port: int = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        await self._runner.cleanup()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    async def _metrics(self, _: web.Request) -> web.Response:
        if self.metrics is not None:
            return web.Response(body=self.metrics, content_type="text/plain", charset="utf-8")
        active, boot = int(self.guard), self.boot_id
        return web.Response(
            text="# HELP kvloop_engine_info What runs.\n"
            f'kvloop_engine_info{{plugin_version="0.1.0",role="kv",active="{active}",boot_id="{boot}"}} 1\n'
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1\n'
        )

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = orjson.loads(raw) if raw else {}
        self.seen.append(Seen(request.path, {k.lower(): v for k, v in request.headers.items()}, body))
        try:
            if self.script:
                return await self.script.popleft()(request)
            if request.path == "/v1/models":
                return web.json_response({"object": "list", "data": [{"id": "tiny"}]})
            return await self._generate(request, body)
        except asyncio.CancelledError:
            self.aborted += 1
            raise

    async def _generate(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        kv = body.get("kv_transfer_params") or None
        if kv is not None and kv.get("do_remote_decode"):
            return web.json_response(self.answer("x", self.prefill_params(kv)))
        if not body.get("stream"):
            return web.json_response(self.answer("".join(self.pieces), self.handle() if kv else None))
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for event in self.events(with_handle=kv is not None):
            await response.write(event)
        return response

    def events(self, *, with_handle: bool = True) -> list[bytes]:
        """A stream as vLLM 0.32 with the plugin sends it: the handle alone in the event before the last."""
        deltas: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"content": p}}]} for p in self.pieces]
        deltas[-1]["choices"][0]["finish_reason"] = "length"
        if with_handle:
            deltas.append({"choices": [], "kv_transfer_params": self.handle()})
        return [*(b"data: " + orjson.dumps({"id": "chatcmpl-1", **d}) + b"\n\n" for d in deltas), b"data: [DONE]\n\n"]

    def answer(self, text: str, kv: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "id": "chatcmpl-1",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}],
            "usage": {"prompt_tokens": self.tokens, "completion_tokens": 1, "total_tokens": self.tokens + 1},
            "prompt_token_ids": self.token_ids,
            "kv_transfer_params": kv,
        }

    def handle(self) -> dict[str, Any]:
        """What decode answers: its blocks, pinned."""
        return {
            **self._blocks(),
            "do_remote_prefill": False,
            "do_remote_decode": True,
            "remote_blocks_expiry_time": 1516.9,
            "guard": {"v": 1, "bs": 16, "stride": 16, "n": self.tokens, "chain": "", "tail": ""},
        }

    def prefill_params(self, offered: dict[str, Any]) -> dict[str, Any]:
        """What prefill answers, with the guard's report if a handle was offered."""
        params = {**self._blocks(), "do_remote_prefill": True, "do_remote_decode": False}
        if self.guard and offered.get("remote_block_ids"):
            held = offered["remote_num_tokens"]
            verified = held if self.verified is None else self.verified
            reason = "match" if verified == held else "partial" if verified else "mismatch"
            params["guard"] = {"offered": held, "verified": verified, "reason": reason}
        return params

    def _blocks(self) -> dict[str, Any]:
        return {
            "remote_block_ids": [[1, 2, 3]],
            "remote_engine_id": f"{self.role}-{self.boot_id}",
            "remote_request_id": f"chatcmpl-{self.port}-{next(self._serial)}",
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
            "remote_num_tokens": self.tokens,
            "transfer_mode": "pull",
            "some_future_key": [1],
        }


def status(code: int, message: str = "Internal server error") -> Behaviour:
    """Answer with an error in vLLM's shape."""

    async def behave(_: web.Request) -> web.StreamResponse:
        error = {"message": message, "type": "InternalServerError", "param": None, "code": code}
        return web.json_response({"error": error}, status=code)

    return behave


def whole(answer: dict[str, Any]) -> Behaviour:
    """Answer with this."""

    async def behave(_: web.Request) -> web.StreamResponse:
        return web.json_response(answer)

    return behave


def drop(after: bytes = b"") -> Behaviour:
    """Cut the connection, after a piece of a stream if there is one."""

    async def behave(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        if after:
            await response.prepare(request)
            await response.write(after)
        if request.transport is not None:
            request.transport.abort()
        return response

    return behave


def raw(*pieces: bytes, until: asyncio.Event) -> Behaviour:
    """Send these bytes as they are; before the last piece, wait for `until`. Keeps the connection open."""

    async def behave(request: web.Request) -> web.StreamResponse:
        assert isinstance(request.transport, asyncio.Transport)
        request.transport.write(b"".join(pieces[:-1]))
        await until.wait()
        request.transport.write(pieces[-1])
        await asyncio.Event().wait()
        return web.Response()

    return behave


def stream(*pieces: bytes, until: asyncio.Event | None = None, at: int = -1) -> Behaviour:
    """Send these pieces as they are; before piece number `at` (the last one by default), wait for `until`."""

    async def behave(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for i, piece in enumerate(pieces):
            if until is not None and i == at % len(pieces):
                await until.wait()
            await response.write(piece)
        return response

    return behave


def held(then: Behaviour, until: asyncio.Event, begun: asyncio.Event | None = None) -> Behaviour:
    """Wait for `until` before the first byte; `begun` is set when the request is there."""

    async def behave(request: web.Request) -> web.StreamResponse:
        if begun is not None:
            begun.set()
        await until.wait()
        return await then(request)

    return behave
