"""Connections to engines: one request at a time each, kept open between requests."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol, cast

import httptools

IDLE_SECONDS = 3.0
"""How long an idle connection is kept. vLLM closes its side after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE), and a request
that crosses with that is lost."""
MAX_ANSWER_BYTES = 256 << 20
"""Largest answer that is read as a whole, and most that waits for its reader."""
_SWEEP_SECONDS = 0.2
STALE = "stale"
"""Reason of a `LegError`: a connection that had been idle broke before the first byte, most likely closed before."""


class LegError(Exception):
    """A request without an answer. `sent`: the engine may have seen it; `reason` is one word."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent


class Throttled(Protocol):
    """A reader that can be overrun."""

    def feed_by(self, source: "Connection | None") -> None:
        """Pause and resume this source from now on."""

    def flush(self) -> None:
        """There is nothing more to wait for: send on what is held back."""


class Connection(asyncio.Protocol):
    """One connection. `send`, then `head`, then `read` or `pump`; then `release`, whatever happened."""

    def __init__(self, pool: "Upstream", address: str) -> None:
        self._pool = pool
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[None] | None = None
        self._active = 0.0
        self._limit = 0.0
        self._on_end: Callable[[], None] | None = None
        self._reused = False
        self.idle_since = 0.0
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        """Names in lower case."""
        self._pieces: list[bytes] = []
        self._size = 0
        self._sink: Callable[[bytes], None] | None = None
        self._problem: LegError | None = None
        self._have_head = self._complete = False
        self._used = self._awaits_head = self._keep_alive = False

    # What callers do.

    def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes, seconds: float) -> None:
        """Send a request. From now on something must arrive, or be read, at least every `seconds`: see `limit`."""
        self._used = True
        self._pool.watch(self)
        lines = [f"{method} {path} HTTP/1.1\r\nhost: {self._address}\r\ncontent-length: {len(body)}\r\n"]
        lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
        self._transport.writelines(["".join(lines).encode("latin-1") + b"\r\n", body])
        self.limit(seconds)

    def limit(self, seconds: float) -> None:
        """Something must arrive at least every `seconds`, or the answer fails; while it is paused, be read."""
        self._active, self._limit = self._loop.time(), seconds

    async def head(self) -> int:
        """The status, once `headers` are there too; raises `LegError`."""
        while not self._have_head:
            self._awaits_head = True
            await self._wait()
        self._awaits_head = False
        return self.status

    async def read(self) -> bytes:
        """The whole body; raises `LegError`."""
        while not self._complete:
            await self._wait()
        return b"".join(self._pieces)

    async def pump(self, sink: Callable[[bytes], None], reader: Throttled) -> None:
        """Hand over the body as it arrives, until its end; raises `LegError` where that comes too early.

        While `reader` is overrun, nothing more is read from the engine.
        """
        reader.feed_by(self)
        try:
            if self._pieces:
                data, self._pieces = b"".join(self._pieces), []
                sink(data)
            reader.flush()
            self._sink = sink
            while not self._complete:
                await self._wait()
        finally:
            self._sink = None
            reader.feed_by(None)

    def pause(self) -> None:
        if self.is_open:
            self._transport.pause_reading()

    def resume(self) -> None:
        self._active = self._loop.time()
        if self.is_open:
            self._transport.resume_reading()

    def release(self) -> None:
        """Done with this answer: the connection is free for the next one.

        Where the answer is not complete, hang up, which aborts what the engine generates.
        """
        self._pool.busy.discard(self)
        if self._complete and self._problem is None and self._keep_alive:
            self._transport.resume_reading()  # its reader may have been overrun by the last piece
            self._reset()
            self._reused = True
            self._pool.put_back(self._address, self)
        else:
            self._transport.abort()

    def close(self) -> None:
        self._transport.abort()

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    def abandon(self, on_end: Callable[[], None]) -> None:
        """Nobody waits any more, but the request must not be aborted: `release` at its end, then call `on_end`."""
        self._on_end = on_end
        self._sink = lambda _: None
        self._pieces = []
        if self._complete or self._problem is not None:
            self._end()

    # What the transport and the parser do.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._active = self._loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._keep_alive = False
            self._fail("bad_answer")
            if not self._complete:
                return
        if self._sink is not None:
            if self._pieces:
                pieces, self._pieces = self._pieces, []
                self._sink(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        elif self._size > MAX_ANSWER_BYTES:
            self._fail("too_long")
        if self._complete or self._awaits_head:
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._used:
            self._pool.lost(self._address, self)
        elif self._have_head and not self._complete and error is None and self._ends_with_connection():
            self._complete = True
            self._wake()
        elif not self._complete:
            self._fail("broken" if self._have_head or not self._reused else STALE)

    def on_message_begin(self) -> None:
        if self._complete or not self._used:
            raise ValueError("an answer that nobody has asked for would be taken for the next request's")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._have_head = True

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        self._size += len(body)

    def on_message_complete(self) -> None:
        if self.status >= 200:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive()
        else:  # an interim answer
            self._have_head = False
            self.headers = {}

    def _ends_with_connection(self) -> bool:
        return "content-length" not in self.headers and "transfer-encoding" not in self.headers

    def check(self, now: float) -> None:
        """Fail if the limit has passed."""
        if now > self._active + self._limit:
            self._fail("deadline")

    def _fail(self, reason: str) -> None:
        if self._problem is None and not self._complete:
            self._problem = LegError(reason, sent=True)
            self._transport.abort()
            self._wake()

    def _wake(self) -> None:
        if self._on_end is not None:
            self._end()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None and (self._complete or self._problem is not None):
            self.release()
            on_end()
        else:
            self._on_end = on_end

    async def _wait(self) -> None:
        if self._problem is not None:
            raise self._problem
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._problem is not None:
            raise self._problem


class Upstream:
    """The connections to all engines."""

    def __init__(self, on_lost: Callable[[str], None] = lambda _: None) -> None:
        """`on_lost` gets the address of an engine that hung up on an idle connection: it may have restarted."""
        self._idle: dict[str, deque[Connection]] = {}
        self.busy: set[Connection] = set()
        """Connections with a request on them."""
        self._on_lost = on_lost
        self._sweeper: asyncio.TimerHandle | None = None

    async def connect(self, address: str, seconds: float) -> Connection:
        """A connection that is free; raises `LegError`."""
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            if connection.is_open:
                return connection
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                _, connection = await loop.create_connection(
                    lambda: Connection(self, address), host.strip("[]"), int(port)
                )
        except (OSError, TimeoutError) as error:
            raise LegError("connect", sent=False) from error
        return connection

    def put_back(self, address: str, connection: Connection) -> None:
        """Keep a connection for the next request."""
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.setdefault(address, deque()).append(connection)
        self._sweep_later()

    def watch(self, connection: Connection) -> None:
        """Hold a connection to its limit until it is released."""
        self.busy.add(connection)
        self._sweep_later()

    def lost(self, address: str, connection: Connection) -> None:
        """An idle connection is gone."""
        idle = self._idle.get(address)
        if idle and connection in idle:
            idle.remove(connection)
            self._on_lost(address)

    def close(self) -> None:
        """Close what is idle; what is in use ends with its answer."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for idle in self._idle.values():
            while idle:
                idle.pop().close()

    def _sweep_later(self) -> None:
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Hold busy connections to their limits, and close idle ones before the engine does; the oldest stand first.

        One timer for all: one for each request would cost more than the rest of its bookkeeping.
        """
        self._sweeper = None
        now = asyncio.get_running_loop().time()
        for connection in list(self.busy):
            connection.check(now)
        for address, idle in list(self._idle.items()):
            while idle and idle[0].idle_since < now - IDLE_SECONDS:
                idle.popleft().close()
            if not idle:
                del self._idle[address]
        if self._idle or self.busy:
            self._sweep_later()
