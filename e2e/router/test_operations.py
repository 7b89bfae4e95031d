"""Running the router: keys, TLS, reload, drain, the command, and the engines' coming and going."""

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
import yaml

from e2e.router import fake
from e2e.router.fake import FakeEngine
from e2e.router.harness import Router, assistant, config, eventually, user
from kvloop.api.labels import Role
from kvloop.router.reload import Reloader

HI = {"messages": [user("hi")]}


@pytest.fixture
async def prefill() -> AsyncIterator[FakeEngine]:
    async with FakeEngine("prefill") as engine:
        yield engine


@pytest.fixture
async def decode() -> AsyncIterator[FakeEngine]:
    async with FakeEngine("decode") as engine:
        yield engine


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_only_known_keys_are_let_in(prefill: FakeEngine, decode: FakeEngine, tmp_path: Path) -> None:
    (tmp_path / "alice").write_text("secret-a\n")
    (tmp_path / "..data").mkdir()
    (tmp_path / "empty").write_text("\n")
    async with Router(config([prefill.url], [decode.url], apiKeysFolder=str(tmp_path))) as router:
        for headers in ({}, bearer("wrong"), bearer(""), {"authorization": "Basic secret-a"}, {"x-api-key": "no"}):
            for path in ("/v1/chat/completions", "/v1/models", "/v1/messages"):
                status, body = await router.post(HI, path=path, headers=headers)
                assert status == 401
                assert b"secret" not in body
        assert not decode.seen
        for headers in (bearer("secret-a"), {"x-api-key": "secret-a"}):
            await router.chat(user("hi"), headers=headers)
        assert "authorization" not in decode.seen[0].headers
        async with router.session.get(router.url + "/health") as answer:
            assert answer.status == 200


async def test_a_folder_without_keys_lets_nobody_in(prefill: FakeEngine, decode: FakeEngine, tmp_path: Path) -> None:
    async with Router(config([prefill.url], [decode.url], apiKeysFolder=str(tmp_path / "missing"))) as router:
        status, _ = await router.post(HI, headers=bearer("x"))
        assert status == 401


async def test_a_trusted_gateway_names_tenants(prefill: FakeEngine, decode: FakeEngine) -> None:
    async with Router(config([prefill.url], [decode.url], tenantHeader="X-Tenant")) as router:
        follow_up = (user("hi"), assistant("Hello world"), user("go on"))
        await router.chat(user("hi"), headers={"x-tenant": "a", **bearer("gateway")})
        await router.chat(*follow_up, headers={"x-tenant": "b", **bearer("gateway")})
        await router.chat(*follow_up, headers={"x-tenant": "a", **bearer("gateway")})
        assert [seen.handle for seen in prefill.seen] == [False, False, True]


def write(path: Path, prefill: str, decode: str, **settings: Any) -> None:
    path.write_text(yaml.safe_dump(config([prefill], [decode], **settings).to_wire()))


async def test_a_changed_file_is_applied_without_cutting_a_stream(
    prefill: FakeEngine, decode: FakeEngine, tmp_path: Path
) -> None:
    path = tmp_path / "router.yaml"
    write(path, prefill.url, decode.url)
    until = asyncio.Event()
    decode.script.append(fake.stream(*decode.events(), until=until, at=1))
    async with (
        FakeEngine("decode", boot_id="boot-2") as other,
        Router(config([prefill.url], [decode.url])) as router,
        router.session.post(router.url + "/v1/chat/completions", json={**HI, "stream": True}) as answer,
    ):
        reloader = Reloader(router.app, path)
        reloader.look()
        assert router.app.config.holdout_percent == 0
        write(path, prefill.url, other.url, holdoutPercent=100, limits={"maxRequestBytes": 2000}, windowSeconds=60)
        reloader.look()
        assert router.app.config.holdout_percent == 100
        until.set()
        assert await answer.read() == b"".join(decode.events(with_handle=False))
        await router.chat(user("hi again"))
        assert len(other.seen) == 1
        assert (await router.post(b"x" * 3000))[0] == 413


async def test_a_router_that_is_adopted_counts_from_0_for_its_new_resource(
    prefill: FakeEngine, decode: FakeEngine, tmp_path: Path
) -> None:
    """As when a resource is deleted and created anew while its old router still drains."""
    path = tmp_path / "router.yaml"
    write(path, prefill.url, decode.url, resourceUid="old")
    async with Router(config([prefill.url], [decode.url], resourceUid="old")) as router:
        reloader = Reloader(router.app, path)
        await router.chat(user("hi"))
        before = await router.reuse()
        assert (before.resource_uid, before.counters.turns) == ("old", 1)
        write(path, prefill.url, decode.url, resourceUid="new")
        reloader.look()
        await router.chat(user("hi"), assistant("Hello world"), user("go on"))
        after = await router.reuse()
        assert (after.resource_uid, after.counters.turns, after.window.turns) == ("new", 1, 1)
        assert after.since > before.since


async def test_a_file_with_mistakes_changes_nothing(
    prefill: FakeEngine, decode: FakeEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "router.yaml"
    write(path, prefill.url, decode.url)
    async with Router(config([prefill.url], [decode.url])) as router:
        reloader = Reloader(router.app, path)
        path.write_text("holdoutPercent: 500\n")
        reloader.look()
        assert "holdoutPercent" in caplog.text
        caplog.clear()
        reloader.look()
        assert not caplog.text
        await router.chat(user("hi"))


async def test_keys_are_reloaded(prefill: FakeEngine, decode: FakeEngine, tmp_path: Path) -> None:
    path, keys = tmp_path / "router.yaml", tmp_path / "keys"
    keys.mkdir()
    (keys / "a").write_text("old")
    write(path, prefill.url, decode.url, apiKeysFolder=str(keys))
    async with Router(config([prefill.url], [decode.url], apiKeysFolder=str(keys))) as router:
        reloader = Reloader(router.app, path)
        (keys / "a").write_text("new")
        reloader.look()
        assert (await router.post(HI, headers=bearer("old")))[0] == 401
        assert (await router.post(HI, headers=bearer("new")))[0] == 200


async def test_keys_that_vanish_under_the_reader_are_read_later(
    prefill: FakeEngine, decode: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when Kubernetes exchanges the volume of a Secret between the listing and the reading."""
    path, keys = tmp_path / "router.yaml", tmp_path / "keys"
    keys.mkdir()
    (keys / "a").write_text("old")
    write(path, prefill.url, decode.url, apiKeysFolder=str(keys))
    async with Router(config([prefill.url], [decode.url], apiKeysFolder=str(keys))) as router:
        reloader = Reloader(router.app, path)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", Path.readlink)  # raises OSError: it is none
            reloader.look()
        (keys / "a").write_text("new")
        reloader.look()
        assert (await router.post(HI, headers=bearer("old")))[0] == 401


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "tls.crt", folder / "tls.key"
    options = ["-x509", "-nodes", "-days", "2", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", "req", *options, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


async def test_tls(prefill: FakeEngine, decode: FakeEngine, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    listen = {"host": "127.0.0.1", "port": 0, "tls": {"certFile": str(cert), "keyFile": str(key)}}
    async with Router(config([prefill.url], [decode.url], listen=listen)) as router:
        trusted = ssl.create_default_context(cafile=cert)
        url = f"https://127.0.0.1:{router.app.port}/v1/chat/completions"
        async with router.session.post(url, json={**HI, "stream": True}, ssl=trusted) as answer:
            assert answer.status == 200
            assert await answer.read() == b"".join(decode.events(with_handle=False))
        with pytest.raises(aiohttp.ClientError):
            await router.session.post(url.replace("https", "http"), json=HI)
        wrong = {**listen, "tls": {"certFile": str(key), "keyFile": str(key)}}
        with pytest.raises(OSError, match="PEM"):
            router.app.apply(config([], [], listen=wrong))
        async with router.session.post(url, json=HI, ssl=trusted) as answer:
            assert answer.status == 200
        router.app.apply(config([], [], listen=listen))
        async with router.session.post(url, json=HI, ssl=trusted) as answer:
            assert answer.status == 503


async def test_drain_says_not_ready_and_still_serves(prefill: FakeEngine, decode: FakeEngine) -> None:
    async with Router(config([prefill.url], [decode.url])) as router:
        ready = router.admin + "/ready"
        async with router.session.get(ready) as answer:
            assert answer.status == 200
        async with router.session.post(router.admin + "/drain") as answer:
            assert answer.status == 202
        for url in (ready, router.url + "/ready"):
            async with router.session.get(url) as answer:
                assert answer.status == 503
        await router.chat(user("hi"))


async def test_the_admin_port_tells_metrics_and_engines(prefill: FakeEngine, decode: FakeEngine) -> None:
    async with Router(config([prefill.url], [decode.url])) as router:
        await router.chat(user("hi"), stream=True)
        async with router.session.get(router.admin + "/metrics") as answer:
            text = await answer.text()
        assert 'kvloop_router_turns_total{arm="first",code="200",dialect="chat"} 1.0' in text
        held = f'kvloop_router_pinned_tokens{{engine="{decode.address}"}} {decode.tokens}.0'
        for line in ("kvloop_router_ready 1.0", "kvloop_router_queued_turns 0.0", held):
            assert line in text.splitlines()
        engines = {engine.role: engine for engine in (await router.reuse()).engines}
        assert engines[Role.DECODE].address == decode.address
        assert engines[Role.DECODE].guard_active
        assert engines[Role.DECODE].boot_id == "boot-1"
        async with router.session.get(router.url + "/reuse") as answer:
            assert answer.status == 404


async def test_without_reuse_nobody_misses_the_guard(prefill: FakeEngine, decode: FakeEngine) -> None:
    """Engines then have none, and an alert on that would be a false one."""
    async with Router(config([prefill.url], [decode.url], transfer={"bidirectional": False})) as router:
        async with router.session.get(router.admin + "/metrics") as answer:
            text = await answer.text()
        assert "kvloop_router_engine_usable{" in text
        assert "kvloop_router_engine_guard_active{" not in text


async def test_overload_is_429_with_retry_after(prefill: FakeEngine, decode: FakeEngine) -> None:
    limits = {"maxTurnsPerEngine": 1, "maxQueuedTurns": 1, "queueSeconds": 30}
    async with Router(config([prefill.url], [decode.url], limits=limits)) as router:
        until = asyncio.Event()
        decode.script.append(fake.held(fake.status(200), until))
        running = asyncio.ensure_future(router.post(HI))
        await eventually(lambda: bool(decode.seen), "the first turn runs")
        queued = asyncio.ensure_future(router.post(HI))
        await eventually(lambda: len(router.app.core.admission) == 1, "the second turn waits")
        status, body = await router.post(HI)
        assert status == 429
        assert orjson.loads(body)["error"]["type"] == "RateLimitError"
        until.set()
        assert [status for status, _ in await asyncio.gather(running, queued)] == [200, 200]


async def test_who_is_refused_keeps_the_handle_and_who_leaves_frees_it(prefill: FakeEngine, decode: FakeEngine) -> None:
    limits = {"maxTurnsPerEngine": 1, "maxQueuedTurns": 1, "queueSeconds": 30}
    follow_up = {"model": "tiny", "messages": [user("hi"), assistant("Hello world"), user("go on")]}
    async with Router(config([prefill.url], [decode.url], limits=limits)) as router:
        await router.chat(user("hi"))
        until = asyncio.Event()
        decode.script.append(fake.held(fake.status(200), until))
        running = asyncio.ensure_future(router.post({"messages": [user("others")]}))
        await eventually(lambda: len(decode.seen) == 2, "another turn runs")
        queued = asyncio.ensure_future(router.post({"messages": [user("more")]}))
        await eventually(lambda: len(router.app.core.admission) == 1, "the queue is full")
        assert (await router.post(follow_up))[0] == 429
        queued.cancel()
        await eventually(lambda: len(router.app.core.admission) == 0, "there is room in the queue")
        leaving = asyncio.ensure_future(router.post(follow_up))
        await eventually(lambda: len(router.app.core.admission) == 1, "the follow-up waits")
        assert not any(seen.ends for seen in prefill.seen)
        leaving.cancel()
        await eventually(lambda: any(seen.ends for seen in prefill.seen), "its lease is ended")
        until.set()
        await running


async def test_the_head_of_a_stream_does_not_wait_for_the_first_token(prefill: FakeEngine, decode: FakeEngine) -> None:
    until = asyncio.Event()
    decode.script.append(fake.stream(b"", *decode.events(), until=until, at=1))
    async with (
        Router(config([prefill.url], [decode.url])) as router,
        router.session.post(router.url + "/v1/chat/completions", json={**HI, "stream": True}) as answer,
    ):
        assert answer.status == 200
        until.set()
        assert await answer.read() == b"".join(decode.events(with_handle=False))


async def test_a_part_that_ends_is_told_to_the_liveness_probe(prefill: FakeEngine, decode: FakeEngine) -> None:
    async with Router(config([prefill.url], [decode.url], probeSeconds=0.1)) as router:
        async with router.session.get(router.admin + "/health") as answer:
            assert answer.status == 200
        router.app.pool.all = None  # type: ignore[method-assign, assignment]  # breaks the prober
        await eventually(lambda: not router.app.core.alive, "the end is noticed")
        del router.app.pool.all
        for url in (router.admin, router.url):
            async with router.session.get(url + "/health") as answer:
                assert answer.status == 503
        await router.chat(user("hi"))


@pytest.mark.parametrize(
    "said", [b"\xff\xfe", b'vllm:cache_config_info{block_size="16",num_gpu_blocks="%b"}' % (b"9" * 5000)]
)
async def test_metrics_that_make_no_sense_are_an_engine_s_trouble_only(
    prefill: FakeEngine, decode: FakeEngine, said: bytes
) -> None:
    async with (
        FakeEngine("decode", metrics=said) as other,
        Router(config([prefill.url], [decode.url, other.url])) as router,
    ):
        engines = {engine.address: engine for engine in router.app.pool.all()}
        await eventually(lambda: not engines[other.address].healthy, "the engine is left alone")
        for i in range(4):
            await router.chat(user(f"turn {i}"))
        assert not other.seen
        assert router.app.core.alive


@contextmanager
def command(path: Path) -> Iterator[subprocess.Popen[str]]:
    """The real command, ended whatever happens."""
    argv = [sys.executable, "-c", "from kvloop.router.main import main; main()", "--config", str(path)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def _port(process: subprocess.Popen[str]) -> int:
    assert process.stderr is not None
    line = await asyncio.to_thread(process.stderr.readline)
    return int(line.partition("serving on port ")[2].partition(",")[0])


async def test_sigterm_finishes_streams_and_ends(prefill: FakeEngine, decode: FakeEngine, tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    write(path, prefill.url, decode.url, accessLog=True)
    until = asyncio.Event()
    events = decode.events()
    decode.script.append(fake.stream(*events, until=until, at=1))
    with command(path) as process:
        url = f"http://127.0.0.1:{await _port(process)}/v1/chat/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json={**HI, "stream": True}) as answer:
            assert await answer.content.readany() == events[0]
            process.terminate()
            async with asyncio.timeout(10):
                while True:  # until nobody new is let in
                    try:
                        _, writer = await asyncio.open_connection("127.0.0.1", answer.url.port)
                    except OSError:
                        break
                    writer.close()
            until.set()
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        out, _ = await asyncio.to_thread(process.communicate, timeout=20)
        assert process.returncode == 0
        line = json.loads(out)
        assert (line["status"], line["dialect"], line["arm"]) == (200, "chat", "first")
        assert "hi" not in line.values()


def test_the_command_checks_its_file(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    path.write_text("endpoints: {}\n")
    argv = [sys.executable, "-c", "from kvloop.router.main import main; main()", "--check", "--config"]
    bad = subprocess.run([*argv, path], capture_output=True, text=True, check=False)
    assert bad.returncode == 2
    assert "endpoints: set exactly one of" in bad.stderr
    write(path, "http://a:1", "http://b:1")
    assert subprocess.run([*argv, path], check=False).returncode == 0
