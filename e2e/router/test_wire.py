"""HTTP as clients really speak it: pieces, pipelines, limits, nonsense. And what crosses in headers."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import orjson
import pytest
from aiohttp import web

from e2e.router import fake
from e2e.router.fake import FakeEngine
from e2e.router.harness import Router, config, eventually, user
from kvloop.router.wire.client import Connection, Upstream

BODY = orjson.dumps({"messages": [user("hi")]})
STREAM = orjson.dumps({"messages": [user("hi")], "stream": True})


@dataclass
class Pair:
    router: Router
    prefill: FakeEngine
    decode: FakeEngine

    async def talk(self, *pieces: bytes, half_close: bool = False) -> bytes:
        """Send pieces one after another on one connection; returns all that comes until the router closes it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.router.app.port)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if half_close:
            writer.write_eof()
        async with asyncio.timeout(10):
            out = await reader.read()
        writer.close()
        return out


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    limits = {"maxRequestBytes": 100_000}
    async with (
        FakeEngine("prefill") as p,
        FakeEngine("decode") as d,
        Router(config([p.url], [d.url], limits=limits)) as router,
    ):
        yield Pair(router, p, d)


def post(body: bytes = BODY, *headers: str, path: str = "/v1/chat/completions", version: str = "1.1") -> bytes:
    lines = [f"POST {path} HTTP/{version}", "Host: x", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def test_a_request_in_pieces(pair: Pair) -> None:
    raw = post(BODY, "Connection: close")
    out = await pair.talk(*(raw[i : i + 7] for i in range(0, len(raw), 7)))
    assert out.startswith(b"HTTP/1.1 200 OK\r\n")
    assert out.count(b"HTTP/1.1") == 1


async def test_a_chunked_request(pair: Pair) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in (BODY[:5], BODY[5:])]
    out = await pair.talk(head, *chunks, b"0\r\n\r\n")
    assert out.startswith(b"HTTP/1.1 200 ")
    assert pair.decode.seen[0].body["messages"] == [user("hi")]


async def test_pipelined_requests_are_answered_in_order(pair: Pair) -> None:
    out = await pair.talk(post(STREAM) + post() + post(BODY, "Connection: close"))
    assert out.count(b"HTTP/1.1 200 OK") == 3
    assert out.index(b"data: [DONE]") < out.index(b"content-length")


async def test_too_many_requests_ahead(pair: Pair) -> None:
    until = asyncio.Event()
    pair.prefill.script.append(fake.held(fake.status(500), until))
    talking = asyncio.ensure_future(pair.talk(post() * 40))
    await eventually(lambda: bool(pair.prefill.seen), "the first one is there")
    until.set()
    assert (await talking).count(b"HTTP/1.1 200") < 40


async def test_expect_continue(pair: Pair) -> None:
    raw = post(BODY, "Expect: 100-continue", "Connection: close")
    out = await pair.talk(raw)
    assert out.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


async def test_http_1_0_gets_a_stream_that_ends_with_the_connection(pair: Pair) -> None:
    out = await pair.talk(post(STREAM, version="1.0"))
    head, _, body = out.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body == b"".join(pair.decode.events(with_handle=False))


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: a\x00b\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"GET /health HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /health HTTP/1.1\r\nX: " + b"y" * 200_000, 431),
        (post(b"{" + b" " * 100_001), 413),
        (
            b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + (b"2000\r\n%8192d\r\n" % 0) * 20,
            413,
        ),
        (b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n", 413),
    ],
)
async def test_nonsense_and_excess(pair: Pair, raw: bytes, status: int) -> None:
    out = await pair.talk(raw)
    assert out.startswith(b"HTTP/1.1 %d " % status)
    assert orjson.loads(out.partition(b"\r\n\r\n")[2])["error"]["code"] == status
    assert not pair.decode.seen


async def test_an_upgrade_is_not_taken(pair: Pair) -> None:
    raw = post(BODY, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    out = await pair.talk(raw[:-5], raw[-5:] + post(BODY, "Connection: close"))
    assert out.count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"kv_transfer_params"', b"\xff\xfe", b'{"a":' * 2000])
async def test_bodies_that_are_no_json_object(pair: Pair, body: bytes) -> None:
    status, answer = await pair.router.post(body)
    assert status == 400
    assert orjson.loads(answer)["error"]["type"] == "BadRequestError"


DEEP = b'{"%b":' + b"[" * 1000 + b"]" * 1000 + b"}"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/tokenize"])
@pytest.mark.parametrize("field", [b"messages", b"vllm_xargs"])
async def test_bodies_that_are_nested_too_deeply(pair: Pair, path: str, field: bytes) -> None:
    status, answer = await pair.router.post(DEEP % field, path=path)
    assert status == 400
    assert b"nested too deeply" in answer


async def test_a_trailer_is_no_header(pair: Pair) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    await pair.talk(head, b"%x\r\n%b\r\n" % (len(BODY), BODY), b"0\r\nAuthorization: Bearer k\r\n\r\n")
    assert "authorization" not in pair.decode.seen[0].headers


async def test_only_known_headers_cross(pair: Pair) -> None:
    sent = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "authorization": "Bearer k",
        "x-request-id": "mine",
        "x-data-parallel-rank": "3",
        "x-forwarded-for": "1.2.3.4",
        "cookie": "a=b",
        "x-conversation-id": "c",
    }
    await pair.router.chat(user("hi"), headers=sent)
    for engine in (pair.prefill, pair.decode):
        got = engine.seen[0].headers
        assert got["traceparent"] == sent["traceparent"]
        assert got["authorization"] == "Bearer k"
        assert got["x-request-id"] != "mine"
        assert not {"x-data-parallel-rank", "x-forwarded-for", "cookie", "x-conversation-id"} & set(got)
    ids = {engine.seen[0].headers["x-request-id"] for engine in (pair.prefill, pair.decode)}
    assert len(ids) == 2


async def test_what_an_engine_says_in_headers_stays_there(pair: Pair) -> None:
    async def chatty(_: web.Request) -> web.StreamResponse:
        named = {"x-request-id": "10.0.0.1", "server": "uvicorn", "set-cookie": "a=b", "retry-after": "7"}
        return web.json_response(pair.decode.answer("x", None), headers=named)

    pair.decode.script.append(chatty)
    async with pair.router.session.post(pair.router.url + "/v1/chat/completions", data=BODY) as answer:
        names = {name.lower() for name in answer.headers}
    assert names == {"content-type", "content-length", "date", "retry-after"}


async def test_an_error_that_tells_an_address_is_replaced(pair: Pair) -> None:
    pair.decode.script.append(fake.status(400, "cannot reach 127.0.0.1"))
    status, answer = await pair.router.post(BODY)
    assert status == 400
    assert b"127.0.0.1" not in answer


async def test_an_error_that_repeats_the_request_is_replaced(pair: Pair) -> None:
    """As vLLM before 0.30 does with a request that it finds invalid, and prefill did not."""

    async def repeat(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": f"1 validation error: {await request.json()}"}}, status=400)

    params = {**pair.prefill.prefill_params({}), "remote_host": "10.0.0.1"}
    pair.prefill.script.append(fake.whole(pair.prefill.answer("x", params)))
    pair.decode.script.append(repeat)
    status, answer = await pair.router.post({"messages": [user("hi")], "top_logprobs": 3})
    assert status == 400
    assert b"10.0.0.1" not in answer


@pytest.mark.parametrize("code", [400, 500])
async def test_an_error_is_none_the_less_one_for_being_a_stream(pair: Pair, code: int) -> None:
    async def fail(_: web.Request) -> web.StreamResponse:
        return web.Response(status=code, body=b'data: "127.0.0.1"\n\n', content_type="text/event-stream")

    pair.decode.script.extend([fail] * 3)
    status, answer = await pair.router.post(STREAM)
    assert status == code
    assert b"127.0.0.1" not in answer


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_an_answer_that_cannot_be_read_and_may_hold_a_handle_is_withheld(pair: Pair, body: bytes) -> None:
    async def unreadable(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b'{"a": NaN, "kv_transfer_params": {"remote_host": "10.0.0.1"}}')

    pair.decode.script.append(unreadable)
    status, answer = await pair.router.post(body)
    assert status == 502
    assert b"10.0.0.1" not in answer


@pytest.mark.parametrize("path", ["/v1/models", "/tokenize", "/version", "/v1/embeddings", "/v1/responses/r1?x=1"])
async def test_other_paths_pass_through(pair: Pair, path: str) -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        return web.json_response({"path": request.path_qs, "method": request.method, "kv_transfer_params": {"a": 1}})

    pair.decode.script.append(echo)
    async with pair.router.session.get(pair.router.url + path) as answer:
        assert await answer.json() == {"path": path, "method": "GET"}
    assert not pair.prefill.seen


@pytest.mark.parametrize(
    "path",
    [
        "/metrics",
        "/reset_prefix_cache",
        "/sleep",
        "/collective_rpc",
        "/inference/v1/generate",
        "/v1/load_lora_adapter",
        "/v1/../metrics",
        "/v1/%2e%2e/metrics",
        "/v1//metrics",
        "/v1/",
        "/",
        "/reuse",
    ],
)
async def test_engines_own_paths_do_not(pair: Pair, path: str) -> None:
    out = await pair.talk(post(b"{}", "Connection: close", path=path))
    assert out.startswith(b"HTTP/1.1 404 ")
    assert not pair.decode.seen


async def test_passed_through_bodies_lose_reserved_fields(pair: Pair) -> None:
    status, _ = await pair.router.post({"prompt": "x", "kv_transfer_params": {"a": 1}}, path="/tokenize")
    assert status == 200
    assert pair.decode.seen[0].body == {"prompt": "x"}


async def test_head_has_no_body(pair: Pair) -> None:
    out = await pair.talk(b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head, _, body = out.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert body == b""


async def test_a_slow_client_slows_its_engine_down_and_nobody_else(pair: Pair) -> None:
    """A stream of 64 MiB that nobody reads is not kept in the router."""
    big = b"data: " + b"x" * 65_530 + b"\n\n"
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(1000):
            await response.write(big)
            sent += 1
        return response

    pair.decode.script.append(flood)
    reader, writer = await asyncio.open_connection("127.0.0.1", pair.router.app.port, limit=1 << 16)
    writer.write(post(STREAM))
    await reader.read(1000)
    before = -1
    while before != sent:  # until the engine is held up
        before = sent
        await pair.router.chat(user("others go on"))
        await asyncio.sleep(0.05)
    assert sent < 700
    size = 0
    async with asyncio.timeout(30):
        while size < 1000 * len(big):
            size += len(await reader.read(1 << 20))
    writer.close()


async def test_connections_to_engines_are_kept(pair: Pair) -> None:
    for i in range(5):
        await pair.router.chat(user(f"turn {i}"), stream=True)
    assert (pair.prefill.connections, pair.decode.connections) == (2, 2)  # one for the probes


def http(text: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("more", [http(b'"foreign"'), b"garbage\r\n"])
async def test_what_follows_an_answer_is_never_the_next_request_s(pair: Pair, more: bytes, late: bool) -> None:
    until = asyncio.Event()
    pieces = (http(b'"mine"'), more) if late else (http(b'"mine"') + more, b"")
    pair.decode.script.append(fake.raw(*pieces, until=until))
    async with asyncio.timeout(10):
        assert await pair.router.post(BODY) == (200, b'"mine"')
        until.set()
        await eventually(lambda: pair.decode.aborted == 1, "the connection is given up")
        assert b"Hello world" in await pair.router.chat(user("next"))


class Overrun:
    """A client that cannot take another byte."""

    source: Connection | None = None

    def feed_by(self, source: Connection | None) -> None:
        self.source = source

    def flush(self) -> None:
        pass

    def write(self, _: bytes) -> None:
        assert self.source is not None
        self.source.pause()


async def test_a_connection_whose_last_piece_overran_its_client_serves_the_next(pair: Pair) -> None:
    until, client, upstream = asyncio.Event(), Overrun(), Upstream()

    async def short(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-length": "5"})
        await response.prepare(request)
        await until.wait()
        await response.write(b"hello")
        return response

    pair.decode.script.append(short)
    first = await upstream.connect(pair.decode.address, 5)
    first.send("POST", "/", {}, b"{}", 5)
    await first.head()
    until.set()
    await first.pump(client.write, client)
    first.release()
    again = await upstream.connect(pair.decode.address, 5)
    assert again is first
    again.send("POST", "/", {}, b"{}", 5)
    assert b"Hello world" in await again.read()
    again.release()
    upstream.close()


async def test_a_passed_through_request_survives_a_connection_that_was_closed(pair: Pair) -> None:
    assert (await pair.router.post({}, path="/tokenize"))[0] == 200
    pair.decode.script.append(fake.drop())
    assert (await pair.router.post({}, path="/tokenize"))[0] == 200
