"""EndpointSlices from an API server: list, watch, bookmarks, an expired version, and a server that fails."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from e2e.router.harness import eventually
from kvloop.api.contract import EndpointSlices
from kvloop.router.endpoints import slices
from kvloop.router.endpoints.slices import SliceSource

if TYPE_CHECKING:
    from kvloop.router.pool import Endpoint


def piece(name: str, version: int, *addresses: str, **conditions: bool) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "resourceVersion": str(version),
            "labels": {"kvloop.io/role": "decode", "kvloop.io/revision": "r1"},
            "annotations": {"padding": "x" * 200_000},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8000}],
        "endpoints": [{"addresses": [address], "conditions": conditions} for address in addresses],
    }


class ApiServer:
    """Answers a list from `items`, and watches from a queue of events; None ends a watch."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.version = 10
        self.events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.requests: list[dict[str, str]] = []
        self.failures = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.requests.append({**query, "authorization": request.headers.get("authorization", "")})
        if self.failures:
            self.failures -= 1
            return web.Response(status=500)
        if "watch" not in query:
            return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": self.items})
        response = web.StreamResponse()
        await response.prepare(request)
        while (event := await self.events.get()) is not None:
            raw = orjson.dumps(event) + b"\n"
            await response.write(raw[:1000])
            await response.write(raw[1000:])
        return response

    def lists(self) -> int:
        return sum("watch" not in query for query in self.requests)

    def watches(self) -> list[str]:
        return [query["resourceVersion"] for query in self.requests if "watch" in query]


class Follower:
    """A source that runs against the server."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.seen: list[list[Endpoint]] = []

    def addresses(self) -> list[str]:
        return [endpoint.address for endpoint in self.seen[-1]] if self.seen else []

    async def becomes(self, *addresses: str) -> None:
        await eventually(lambda: self.addresses() == [f"{a}:8000" for a in addresses], f"engines are {addresses}")


@pytest.fixture
async def follower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Follower]:
    monkeypatch.setattr(slices, "LEAST_BACKOFF_SECONDS", 0.01)
    server = ApiServer()
    server.items = [piece("a", 9, "10.0.0.1")]
    app = web.Application()
    app.router.add_get("/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    (tmp_path / "token").write_text("t0k3n\n")
    config = EndpointSlices(
        namespace="ns",
        name="chat",
        api_server=f"http://127.0.0.1:{runner.addresses[0][1]}",
        token_file=tmp_path / "token",
        ca_file=tmp_path / "none",
    )
    follower = Follower(server)
    async with aiohttp.ClientSession() as session:
        task = asyncio.ensure_future(SliceSource(config, session, follower.seen.append).run())
        yield follower
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await runner.cleanup()


async def test_list_then_watch(follower: Follower) -> None:
    server = follower.server
    await follower.becomes("10.0.0.1")
    await server.events.put({"type": "ADDED", "object": piece("b", 11, "10.0.0.2")})
    await follower.becomes("10.0.0.1", "10.0.0.2")
    await server.events.put({"type": "MODIFIED", "object": piece("b", 12, "10.0.0.2", terminating=True)})
    await eventually(lambda: follower.seen[-1][-1].terminating, "the engine terminates")
    await server.events.put({"type": "DELETED", "object": piece("a", 13, "10.0.0.1")})
    await follower.becomes("10.0.0.2")
    assert server.requests[0]["authorization"] == "Bearer t0k3n"
    assert server.requests[0]["labelSelector"] == "kvloop.io/name=chat,kvloop.io/role,kvloop.io/revision"


async def test_a_watch_that_ends_goes_on_where_it_was(follower: Follower) -> None:
    server = follower.server
    await server.events.put({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "17"}}})
    await server.events.put(None)
    await eventually(lambda: server.watches() == ["10", "17"], "the second watch begins at the bookmark")
    assert server.lists() == 1


async def test_an_expired_version_lists_again(follower: Follower) -> None:
    server = follower.server
    await follower.becomes("10.0.0.1")
    server.items = [piece("c", 20, "10.0.0.3")]
    await server.events.put({"type": "ERROR", "object": {"code": 410, "message": "too old"}})
    await follower.becomes("10.0.0.3")
    assert server.lists() == 2


async def test_failures_are_tried_again_and_forget_nothing(follower: Follower) -> None:
    server = follower.server
    await follower.becomes("10.0.0.1")
    server.failures = 3
    await server.events.put({"type": "ERROR", "object": {"code": 500, "message": "etcd is down"}})
    await eventually(lambda: server.failures == 0 and len(server.watches()) >= 5, "the watch is back")
    assert follower.addresses() == ["10.0.0.1:8000"]
    assert server.lists() == 1
