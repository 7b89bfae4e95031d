"""A server in the place of the API server."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from kubernetes.aio.client import Configuration

Answer = web.Response | Callable[[], Awaitable[web.Response]]


class Server:
    """Answers with what is in `answers`, one after the other, the last for ever, and remembers the requests."""

    def __init__(self) -> None:
        self.answers: list[Answer] = [web.json_response({})]
        self.requests: list[tuple[str, str, dict[str, str], Any, dict[str, str]]] = []

    async def handle(self, request: web.Request) -> web.Response:
        text = await request.text()
        body = json.loads(text) if text else None
        self.requests.append((request.method, request.path, dict(request.query), body, dict(request.headers)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return _copy(answer) if isinstance(answer, web.Response) else await answer()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Configuration]:
        """Serve on a port of its own; gives a client's configuration."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        configuration = Configuration()
        configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield configuration
        await runner.cleanup()


def _copy(answer: web.Response) -> web.Response:
    return web.Response(body=answer.body, status=answer.status, headers=answer.headers)


def status(code: int, message: str, **headers: str) -> web.Response:
    return web.json_response({"kind": "Status", "message": message}, status=code, headers=headers)
