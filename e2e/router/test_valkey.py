"""The Valkey store: as the memory store, for several routers, and never an error when the server is in trouble."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from e2e.router.fake import FakeEngine
from e2e.router.fakevalkey import FakeValkey
from e2e.router.harness import Router, assistant, config, eventually, user
from kvloop.api import contract
from kvloop.router import leases
from kvloop.router.store import Entry, Found, resp
from kvloop.router.store.resp import Client
from kvloop.router.store.valkey import ValkeyStore

TURN_1 = (user("hi"),)
TURN_2 = (user("hi"), assistant("Hello world"), user("go on"))
SERVERS = [name for name in ("valkey-server", "redis-server") if shutil.which(name)]
"""Real ones, where the machine has any; the fake one is always tested."""


def entry(name: str) -> Entry:
    return Entry(b'{"n":"%b"}' % name.encode(), "10.0.0.1:8000", "boot", "rev", "10.0.0.2:8000", 10)


A, B = entry("a"), entry("b")


def connect(url: str, **settings: Any) -> ValkeyStore:
    return ValkeyStore(Client(contract.ValkeyStore.model_validate({"url": url, "timeoutSeconds": 5, **settings})))


@pytest.fixture(params=["fake", *SERVERS])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "fake":
        async with FakeValkey() as server:
            yield server.url
        return
    socket = tmp_path / "s"
    argv = [request.param, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(tmp_path)]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.DEVNULL)
    await eventually(socket.exists, "the server listens")
    yield f"unix://{socket}"
    process.terminate()
    await process.wait()


@pytest.fixture
async def store(url: str) -> AsyncIterator[ValkeyStore]:
    store = connect(url)
    yield store
    store.close()


async def test_an_entry_is_taken_once(store: ValkeyStore) -> None:
    assert not (await store.take([b"k"])).seen
    assert await store.put(b"k", A, 60) == []
    assert await store.take([b"k"]) == Found(A, key=b"k")
    assert await store.take([b"k"]) == Found(reason="used", key=b"k")


async def test_the_first_key_with_an_entry_counts_and_the_others_stay(store: ValkeyStore) -> None:
    await store.put(b"old", A, 60)
    await store.put(b"older", B, 60)
    assert await store.take([b"new", b"old", b"older"]) == Found(A, key=b"old")
    assert await store.take([b"older"]) == Found(B, key=b"older")
    assert await store.take([b"new", b"old", b"older"]) == Found(reason="used", key=b"old")


async def test_a_look_leaves_the_entry(store: ValkeyStore) -> None:
    assert await store.peek(b"k") is None
    await store.put(b"k", A, 60)
    assert await store.peek(b"k") == A
    assert await store.take([b"k"]) == Found(A, key=b"k")
    assert await store.peek(b"k") is None


async def test_what_is_displaced_is_returned(store: ValkeyStore) -> None:
    await store.put(b"k", A, 60)
    assert await store.put(b"k", B, 60) == [(b"k", A)]
    assert await store.take([b"k"]) == Found(B, key=b"k")


async def test_a_mark_takes_the_entry_s_place(store: ValkeyStore) -> None:
    await store.put(b"k", A, 60)
    assert await store.mark(b"k", "holdout") == A
    assert await store.mark(b"k", "holdout") is None
    assert await store.take([b"k"]) == Found(reason="holdout", key=b"k")


async def test_of_many_routers_one_gets_it(url: str) -> None:
    stores = [connect(url) for _ in range(8)]
    for i in range(20):
        key = b"%d" % i
        await stores[0].put(key, A, 60)
        found = await asyncio.gather(*(store.take([b"other", key]) for store in stores))
        assert sum(f.entry is not None for f in found) == 1
    for store in stores:
        store.close()


async def test_it_expires_and_says_so() -> None:
    async with FakeValkey() as server:
        store = connect(server.url)
        await store.put(b"k", A, 60)
        server.now += 60
        assert await store.take([b"k"]) == Found(reason="expired", key=b"k")
        server.now += 3600
        assert not (await store.take([b"k"])).seen
        store.close()


async def test_what_a_restored_server_has_again_is_not_taken_again() -> None:
    """Its blocks are another request's by now, and another prefill engine would not know that."""
    async with FakeValkey() as server:
        store = connect(server.url)
        await store.put(b"k", A, 60)
        snapshot = dict(server.data)
        assert await store.take([b"k"]) == Found(A, key=b"k")
        server.restore(snapshot)
        await eventually(lambda: server.connections == 0, "the connection is cut")
        assert await reconnected(store) == Found(reason="used", key=b"k")
        server.restore(snapshot)
        await eventually(lambda: server.connections == 0, "the connection is cut")
        await reconnected(store, b"other")
        assert await store.put(b"k", B, 60) == []  # no lease is ended for what came back
        assert await store.take([b"k"]) == Found(B, key=b"k")
        store.close()


async def reconnected(store: ValkeyStore, key: bytes = b"k") -> Found:
    """What the store finds once it has a connection again."""
    async with asyncio.timeout(10):
        while True:
            found = await store.take([key])
            if found.reason != "store_unavailable":
                return found
            await asyncio.sleep(0.01)


async def test_a_replica_is_left_for_the_primary() -> None:
    async with FakeValkey() as server:
        store = connect(server.url)
        await store.put(b"k", A, 60)
        server.readonly = True
        assert await store.take([b"k"]) == Found(reason="store_unavailable")
        await eventually(lambda: server.connections == 0, "it hangs up")
        store.close()


async def test_a_server_that_does_not_tell_its_run_is_not_used() -> None:
    async with FakeValkey() as server:
        server.run = None
        store = connect(server.url)
        assert await store.put(b"k", A, 60) == []
        assert await store.take([b"k"]) == Found(reason="store_unavailable")
        store.close()


async def test_what_another_version_wrote_is_no_entry() -> None:
    async with FakeValkey() as server:
        store = connect(server.url)
        for raw in (
            b"[2,1]\n{}",
            b"nonsense",
            b"[1]\n",
            b"1\n{}",
            b"[2,1,2,3,4,5,6]\n{}",
            b'[2,"","","","","",""]\n{}',
        ):
            server.data[0, b"kvloop:e:k"] = (raw, 1e9)
            assert (await store.take([b"k"])).entry is None
        server.data[0, b"kvloop:t:k"] = (b"\xff words", 1e9)
        assert await store.take([b"k"]) == Found(reason="expired", key=b"k")
        store.close()


async def test_password_and_database(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret\n")
    async with FakeValkey("s3cret") as server:
        good = connect(server.url.replace("/0", "/3"), passwordFile=str(tmp_path / "password"))
        await good.put(b"k", A, 60)
        assert (3, b"kvloop:e:k") in server.data
        bad = connect(server.url)
        assert await bad.take([b"k"]) == Found(reason="store_unavailable")
        for store in (good, bad):
            store.close()


async def test_a_server_that_hangs_costs_a_miss_within_the_deadline() -> None:
    async with FakeValkey() as server:
        store = connect(server.url, timeoutSeconds=0.05)
        await store.put(b"k", A, 60)
        server.open.clear()
        async with asyncio.timeout(30):
            assert await store.take([b"k"]) == Found(reason="store_unavailable")
            assert await store.put(b"k2", A, 60) == []
        server.open.set()
        assert (await store.take([b"k"])).entry is None  # given to the call that did not wait for it: never twice
        store.close()


async def test_late_replies_are_never_another_call_s() -> None:
    async with FakeValkey() as server:
        store = connect(server.url, timeoutSeconds=0.05)
        for i in range(20):
            await store.put(b"%d" % i, entry(str(i)), 60)
        for i in range(20):
            if i % 3 == 0:
                server.open.clear()
                asyncio.get_running_loop().call_later(0.06, server.open.set)
            found = await store.take([b"%d" % i])
            assert found.entry in (None, entry(str(i)))
            await server.open.wait()
        store.close()


@pytest.mark.parametrize("trouble", ["down", "cut", "garbage"])
async def test_turns_are_served_while_the_server_is_in_trouble_and_reuse_comes_back(trouble: str) -> None:
    async with FakeEngine("prefill") as p, FakeEngine("decode") as d, FakeValkey() as server:
        valkey = {"valkey": {"url": server.url, "timeoutSeconds": 5}}
        async with Router(config([p.url], [d.url], store=valkey)) as router:
            await router.chat(*TURN_1)
            await router.chat(*TURN_2)
            assert (await router.reuse()).counters.reused_turns == 1
            if trouble == "down":
                await server.__aexit__(None, None, None)
            elif trouble == "garbage":
                server.garbage = True
            server.cut()
            for _ in range(3):
                await router.chat(user("hi"), stream=True)
            assert sum((await router.reuse()).counters.misses.values()) == 0
            server.garbage = False
            if trouble == "down":
                await server.__aenter__()
            async with asyncio.timeout(20):
                while (await router.reuse()).counters.reused_turns < 2:
                    await router.chat(*TURN_1)
                    await router.chat(*TURN_2)


async def test_two_routers_share_conversations() -> None:
    async with FakeEngine("prefill") as p, FakeEngine("decode") as d, FakeValkey() as server:
        settings = config([p.url], [d.url], store={"valkey": {"url": server.url, "timeoutSeconds": 5}})
        async with Router(settings) as one, Router(settings) as other:
            await one.chat(*TURN_1)
            await other.chat(*TURN_2)
            assert (await other.reuse()).counters.reused_turns == 1


async def test_a_router_leaves_the_lease_of_a_later_turn_to_the_router_that_served_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "LOOK_SECONDS", 0.01)
    named, now = {"x-conversation-id": "c"}, 1000.0
    async with FakeEngine("prefill") as p, FakeEngine("decode") as d, FakeValkey() as server:
        store = {"valkey": {"url": server.url, "timeoutSeconds": 5}}
        settings = config([p.url], [d.url], store=store, leaseSeconds=60)
        async with Router(settings, lambda: now) as one, Router(settings) as other:
            await one.chat(*TURN_1, headers=named)
            await other.chat(*TURN_2, headers=named)
            now += 60
            await eventually(lambda: not one.app.core.leases.pinned(d.address), "the first router's clock has run out")
            await other.chat(*TURN_2, assistant("Hello world"), user("go on"), headers=named)
            assert (await other.reuse()).counters.reused_turns == 2
            assert not any(seen.ends for seen in p.seen)


async def test_connections_to_a_server_that_says_nothing_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resp, "CONNECT_SECONDS", 0.02)
    monkeypatch.setattr(resp, "RETRY_SECONDS", 0.01)
    made = closed = 0

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal made, closed
        made += 1
        with suppress(ConnectionError):
            await reader.read()
        closed += 1
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        store = connect(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeoutSeconds=0.05)
        async with asyncio.timeout(10):
            while made < 3:
                assert await store.take([b"k"]) == Found(reason="store_unavailable")
        await eventually(lambda: closed == made, "nothing is left open")
        store.close()


async def test_turns_that_wait_for_a_store_survive_its_replacement() -> None:
    async with FakeEngine("prefill") as p, FakeEngine("decode") as d, FakeValkey() as server:
        server.open.clear()
        valkey = {"valkey": {"url": server.url, "timeoutSeconds": 5}}
        async with Router(config([p.url], [d.url], store=valkey)) as router:
            waiting = asyncio.ensure_future(router.chat(*TURN_2))
            await eventually(lambda: server.connections == 1, "the turn waits")
            router.app.apply(config([p.url], [d.url]))
            async with asyncio.timeout(4):
                assert b"Hello world" in await waiting


async def test_a_url_that_leads_nowhere_costs_a_miss() -> None:
    store = connect("redis://127.0.0.1:port/0")
    assert await store.take([b"k"]) == Found(reason="store_unavailable")
    store.close()
