"""Connections from clients: requests in, answers out, and a turn that is cancelled when its client hangs up."""

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import cast

import httptools

from kvloop.router.core import Incoming
from kvloop.router.errors import RefusalError
from kvloop.router.wire.client import Connection

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75.0
"""How long an idle connection is kept: longer than load balancers do (60 s on AWS), so that they close it first."""
REQUEST_SECONDS = 60.0
"""Longest pause within a request."""
MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 128
MAX_AHEAD = 16
"""Requests that a client may send before the answers to earlier ones."""
LINGER_SECONDS = 1.0
_SWEEP_SECONDS = 5.0
_REASONS = {status.value: status.phrase for status in HTTPStatus}

Handler = Callable[[Incoming, "Reply"], Awaitable[None]]


class Reply:
    """The answer to one request. Either `send`, or `start`, any number of `write`, and `end`."""

    def __init__(self, connection: "ClientConnection", *, keep_alive: bool, chunked: bool, bodiless: bool) -> None:
        self._connection = connection
        self._keep_alive = keep_alive
        self._chunked = chunked
        self._bodiless = bodiless
        self._head = b""
        self.started = self.ended = False

    def feed_by(self, source: Connection | None) -> None:
        """Let a slow client slow this source down; None: no source any more."""
        self._connection.source = source
        if source is not None and self._connection.paused:
            source.pause()

    def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """A whole answer."""
        self.started = self.ended = True
        head = self._format(status, headers, f"content-length: {len(body)}\r\n")
        self._connection.write(head if self._bodiless else head + body)

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of an answer whose body follows; it leaves with the first piece, if that is there, or by `flush`."""
        self.started = True
        if not self._chunked:
            self._keep_alive = False  # the end of the connection is the end of the body
        self._head = self._format(status, headers, "transfer-encoding: chunked\r\n" if self._chunked else "")

    def flush(self) -> None:
        """Send the head if it has not left yet."""
        if self._head:
            head, self._head = self._head, b""
            self._connection.write(head)

    def write(self, data: bytes) -> None:
        """A piece of the body: on the path of every token."""
        if self._head or not self._chunked:
            head, self._head = self._head, b""
            data = b"%b%x\r\n%b\r\n" % (head, len(data), data) if self._chunked else head + data
        else:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._connection.write(data)

    def end(self, data: bytes = b"") -> None:
        """The last piece of the body."""
        self.ended = True
        head, self._head = self._head, b""
        if not self._chunked:
            self._connection.write(head + data)
        elif data:
            self._connection.write(b"%b%x\r\n%b\r\n0\r\n\r\n" % (head, len(data), data))
        else:
            self._connection.write(head + b"0\r\n\r\n")

    def _format(self, status: int, headers: Mapping[str, str], length: str) -> bytes:
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\n", length, self._connection.server.date]
        lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
        if not self._keep_alive:
            lines.append("connection: close\r\n")
        lines.append("\r\n")
        return "".join(lines).encode("latin-1")

    @property
    def keep_alive(self) -> bool:
        """Whether another request may follow on the connection."""
        return self._keep_alive and self.ended


class ClientConnection(asyncio.Protocol):
    """One connection from a client."""

    def __init__(self, server: "Server") -> None:
        self.server = server
        self.source: Connection | None = None
        """The engine that feeds the answer: paused while the client does not keep up."""
        self.paused = self._lost = False
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._ahead: deque[tuple[Incoming, Reply]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._refusal: RefusalError | None = None
        self._active = self._loop.time()
        self._in_request = False
        self._in_head = True
        self._head_bytes = 0
        self.on_message_begin()

    # What the transport does.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._active = self._loop.time()
        if self._refusal is not None:
            return  # what is still on its way is discarded
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError:  # raised by `_demand`
            self._refuse(self._refusal or RefusalError(400, "The request is no valid HTTP."))
        except httptools.HttpParserError:
            self._refuse(RefusalError(400, "The request is no valid HTTP."))
        else:
            if self._in_head and self._in_request:
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEAD_BYTES:
                    self._refuse(_too_large_head())

    def _decline(self, rest: bytes) -> None:
        """Read a request as if it had not asked for an upgrade: Java's client asks for HTTP/2 with every request.

        The parser has left out its body, so it reads the head once more, without the wish.
        """
        method, version = self._parser.get_method().decode(), self._parser.get_http_version()
        kept = [f"{n}: {v}\r\n" for n, v in self._headers.items() if n not in ("upgrade", "connection")]
        head = f"{method} {self._url.decode('latin-1')} HTTP/{version}\r\n{''.join(kept)}\r\n"
        self._parser = httptools.HttpRequestParser(self)
        self.data_received(head.encode("latin-1") + rest)

    def connection_lost(self, _: Exception | None) -> None:
        self._lost = True
        self.server.forget(self)
        self._ahead.clear()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self.paused = True
        if self.source is not None:
            self.source.pause()

    def resume_writing(self) -> None:
        self.paused = False
        if self.source is not None:
            self.source.resume()

    # What the parser does.

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = self._header_bytes = self._header_count = 0
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        self._in_request = True
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        self._header_count += 1
        self._demand(self._header_bytes <= MAX_HEAD_BYTES and self._header_count <= MAX_HEADERS, _too_large_head)
        if not self._in_head:
            return  # a trailer: proxies do not look at these, so a client may not set a tenant or show a key by one
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._demand(self._parser.get_method() != b"CONNECT", lambda: RefusalError(405, "This is no proxy."))
        if self._parser.should_upgrade():
            return
        self._demand(int(self._headers.get("content-length", 0)) <= self.server.max_body, self._too_large_body)
        if self._headers.get("expect", "").lower() == "100-continue" and self._task is None:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        self._demand(self._size <= self.server.max_body, self._too_large_body)
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return  # see `_decline`
        self._in_request = False
        self._demand(len(self._ahead) < MAX_AHEAD, lambda: RefusalError(429, "Too many requests on one connection."))
        method = self._parser.get_method().decode("latin-1")
        incoming = Incoming(
            method, self._url.decode("latin-1"), self._headers, b"".join(self._body), self.server.clock()
        )
        modern = self._parser.get_http_version() == "1.1"
        keep_alive = self._parser.should_keep_alive()
        reply = Reply(self, keep_alive=keep_alive, chunked=modern, bodiless=method == "HEAD")
        self._ahead.append((incoming, reply))
        self._body = []
        if self._task is None:
            self._next()

    def _demand(self, good: bool, otherwise: Callable[[], RefusalError]) -> None:
        if not good:
            self._refusal = otherwise()
            raise self._refusal

    def _too_large_body(self) -> RefusalError:
        return RefusalError(413, f"The request body is larger than {self.server.max_body} bytes.")

    # What requests do.

    def write(self, data: bytes) -> None:
        if not self._lost:
            self._transport.write(data)

    def _next(self) -> None:
        incoming, reply = self._ahead.popleft()
        self._task = self._loop.create_task(self._serve(incoming, reply))

    async def _serve(self, incoming: Incoming, reply: Reply) -> None:
        try:
            await self.server.handler(incoming, reply)
        except Exception:
            log.exception("serving %s failed", incoming.method)
            if not reply.started:
                refusal = RefusalError(500, "The router failed to serve the request.")
                reply.send(refusal.status, refusal.headers(), refusal.body())
        self._task = None
        self._active = self._loop.time()
        if not reply.ended:
            self._transport.abort()
        elif self._refusal is not None:
            self._refuse(self._refusal)
        elif not reply.keep_alive or self.server.closing:
            self._transport.close()
        elif self._ahead:
            self._next()

    def _refuse(self, refusal: RefusalError) -> None:
        """Answer what cannot be read, once earlier requests are answered; then close."""
        self._refusal = refusal
        if self._task is None:
            reply = Reply(self, keep_alive=False, chunked=False, bodiless=False)
            reply.send(refusal.status, refusal.headers(), refusal.body())
            # Closing at once would reset the connection while the client still sends, and take the answer away.
            self._loop.call_later(LINGER_SECONDS, self._transport.close)

    def close_if_idle(self, before: float) -> None:
        """Close the connection if it has been idle, or stuck within a request, since then (loop time)."""
        if self._task is None and self._active <= before:
            self._transport.close()

    @property
    def in_request(self) -> bool:
        """Whether a request has begun to arrive."""
        return self._in_request

    def abort(self) -> None:
        self._transport.abort()


def _too_large_head() -> RefusalError:
    return RefusalError(431, f"The request's headers are larger than {MAX_HEAD_BYTES} bytes, or over {MAX_HEADERS}.")


class Server:
    """A listener. `handler` serves each request, and is cancelled when the client hangs up."""

    def __init__(self, handler: Handler, clock: Callable[[], float], max_body: int) -> None:
        """`clock` is monotonic, in seconds; `max_body` is in bytes."""
        self.handler = handler
        self.clock = clock
        self.max_body = max_body
        self.connections: set[ClientConnection] = set()
        self.closing = False
        self._server: asyncio.Server
        self._sweeper: asyncio.TimerHandle
        self._empty = asyncio.Event()
        self._date = ("", 0.0)

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen; returns the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: ClientConnection(self), host or None, port, ssl=tls, backlog=1024
        )
        self._sweeper = loop.call_later(_SWEEP_SECONDS, self._sweep)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self, seconds: float) -> None:
        """Take no more connections; finish what is being served, at most for that long; then close."""
        self.closing = True
        self._sweeper.cancel()
        self._server.close()
        for connection in list(self.connections):
            connection.close_if_idle(asyncio.get_running_loop().time())
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), seconds)
        for connection in list(self.connections):
            connection.abort()

    def forget(self, connection: ClientConnection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    @property
    def date(self) -> str:
        """The Date header, made once a second."""
        now = asyncio.get_running_loop().time()
        if now >= self._date[1]:
            self._date = (f"date: {formatdate(usegmt=True)}\r\n", now + 1)
        return self._date[0]

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self.connections):
            connection.close_if_idle(now - (REQUEST_SECONDS if connection.in_request else KEEP_ALIVE_SECONDS))
        self._sweeper = loop.call_later(_SWEEP_SECONDS, self._sweep)
