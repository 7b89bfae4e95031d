"""A client for Valkey and Redis that does what the store needs: pipelines on one connection, with a deadline each.

Requests and replies go in order, so a reply that comes too late is dropped in its place and can never be taken for
another one's, which is what a client that cancels a pending command must take care of.
"""

import asyncio
import contextlib
import logging
import re
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from kvloop.api.contract import ValkeyStore

log = logging.getLogger(__name__)

MAX_PENDING = 10_000
"""Pipelines that may wait for replies; a server further behind than that is of no use."""
STUCK_SECONDS = 2.0
"""A connection on which nothing has come back for so long is given up."""
RETRY_SECONDS = 0.5
"""Pause between two attempts to connect."""
CONNECT_SECONDS = 2.0
_TLS_SCHEMES = ("rediss", "valkeys")
_PORT = 6379


class StoreDownError(Exception):
    """No answer from the server, or not in time, or an error."""


class IncompleteError(Exception):
    """More bytes are needed."""


def encode(command: Sequence[bytes]) -> bytes:
    """A command in RESP."""
    parts = [b"*%d\r\n" % len(command)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in command]
    return b"".join(parts)


def parse(data: bytes | bytearray, start: int) -> tuple[Any, int]:
    """The reply that begins there, and where the next one does.

    Raises `IncompleteError`, and ValueError for what is no RESP. Errors come as `StoreDownError` objects.
    """
    end = data.find(b"\r\n", start)
    if end < 0:
        raise IncompleteError
    kind, line, after = data[start : start + 1], bytes(data[start + 1 : end]), end + 2
    if kind == b"$":
        size = int(line)
        if size < 0:
            return None, after
        if len(data) < after + size + 2:
            raise IncompleteError
        return bytes(data[after : after + size]), after + size + 2
    if kind == b"*":
        items: list[Any] = []
        for _ in range(int(line)):
            item, after = parse(data, after)
            items.append(item)
        return items, after
    if kind == b"+":
        return line, after
    if kind == b":":
        return int(line), after
    if kind == b"-":
        return StoreDownError(line.decode("utf-8", "replace")), after
    raise ValueError("no RESP")


class _Pending:
    """A pipeline whose replies are awaited."""

    __slots__ = ("count", "future", "replies", "since")

    def __init__(self, count: int, future: asyncio.Future[list[Any]], since: float) -> None:
        self.count, self.future, self.since = count, future, since
        self.replies: list[Any] = []


class _Connection(asyncio.Protocol):
    """One connection: pipelines out, replies back in order."""

    def __init__(self, on_lost: Callable[["_Connection"], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._buffer = bytearray()
        self._pending: deque[_Pending] = deque()
        self._transport: asyncio.Transport

    def send(self, commands: Sequence[Sequence[bytes]]) -> asyncio.Future[list[Any]]:
        """Send a pipeline; raises `StoreDownError` if too many wait already."""
        now = self._loop.time()
        if len(self._pending) >= MAX_PENDING or (self._pending and self._pending[0].since < now - STUCK_SECONDS):
            self._transport.abort()
            raise StoreDownError("the server does not keep up")
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        self._pending.append(_Pending(len(commands), future, now))
        self._transport.write(b"".join(encode(command) for command in commands))
        return future

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        at = 0
        try:
            while self._pending:
                reply, at = parse(self._buffer, at)
                self._take(reply)
        except IncompleteError:
            pass
        except ValueError:
            log.warning("the store's server does not speak RESP")
            self._transport.abort()
        del self._buffer[:at]

    def connection_lost(self, _: Exception | None) -> None:
        for pending in self._pending:
            if not pending.future.done():
                pending.future.set_exception(StoreDownError("the connection broke"))
        self._pending.clear()
        self._on_lost(self)

    def close(self) -> None:
        self._transport.abort()

    def _take(self, reply: Any) -> None:
        pending = self._pending[0]
        pending.replies.append(reply)
        if len(pending.replies) == pending.count:
            self._pending.popleft()
            if not pending.future.done():
                pending.future.set_result(pending.replies)


class Client:
    """Connects when it is first used, and again when the connection is lost; in between every call fails at once."""

    def __init__(self, config: ValkeyStore) -> None:
        self._config = config
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._next_try = 0.0
        self._closed = False
        self.run = ""
        """Id of the server's process: another one means that it restarted, or that a replica took its place."""

    async def ready(self) -> None:
        """Connect if need be, so that `run` is known; returns also where that fails."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.timeout_seconds):
                if self._connection is None:
                    await self._connect()

    async def call(self, *commands: Sequence[bytes]) -> list[Any]:
        """The replies to a pipeline, in order; raises `StoreDownError`, also where one of them is an error."""
        try:
            async with asyncio.timeout(self._config.timeout_seconds):
                if self._connection is None:
                    await self._connect()
                if self._connection is None:
                    raise StoreDownError("no connection")
                replies = await self._connection.send(commands)
        except TimeoutError as error:
            raise StoreDownError("no answer in time") from error
        for reply in replies:
            if isinstance(reply, StoreDownError):
                if str(reply).startswith("READONLY") and self._connection is not None:
                    self._connection.close()  # it is a replica now; its name may lead to the primary
                raise reply
        return replies

    def tell(self, *commands: Sequence[bytes]) -> None:
        """Send a pipeline whose replies do not matter; it may be lost."""
        if self._connection is not None:
            with contextlib.suppress(StoreDownError):
                self._connection.send(commands).add_done_callback(_ignore)

    def close(self) -> None:
        """Hang up for good."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.close()

    async def _connect(self) -> None:
        """Wait for the connection that somebody may be making already; it goes on being made if this turn gives up."""
        loop = asyncio.get_running_loop()
        if self._connecting is None:
            if self._closed or loop.time() < self._next_try:
                return
            self._next_try = loop.time() + RETRY_SECONDS
            self._connecting = loop.create_task(self._open())
        await asyncio.wait([self._connecting])  # unlike its own await, this does not end with it in `close`

    async def _open(self) -> None:
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await self._dial()
                replies = await connection.send(self._greeting())
                for reply in replies:
                    if isinstance(reply, StoreDownError):
                        raise reply
            self.run = _run_id(replies[-1])
            self._connection = connection
        except (OSError, TimeoutError, ValueError, StoreDownError) as error:  # ValueError: no port, no host name
            log.warning("the store cannot be used: %s", str(error) or "no answer")
        finally:
            self._connecting = None
            if connection is not None and connection is not self._connection:
                connection.close()

    async def _dial(self) -> _Connection:
        loop, url = asyncio.get_running_loop(), urlsplit(self._config.url)
        tls: ssl.SSLContext | None = None
        if url.scheme in _TLS_SCHEMES:
            tls = ssl.create_default_context(cafile=self._config.ca_file)
        if url.scheme == "unix":
            _, connection = await loop.create_unix_connection(self._make, url.path)
        else:
            _, connection = await loop.create_connection(
                self._make, url.hostname or "localhost", url.port or _PORT, ssl=tls
            )
        return connection

    def _make(self) -> _Connection:
        return _Connection(self._lost)

    def _lost(self, connection: _Connection) -> None:
        if connection is self._connection:
            self._connection = None

    def _greeting(self) -> list[list[bytes]]:
        url, commands = urlsplit(self._config.url), [[b"INFO", b"server"]]
        database = url.path.strip("/") if url.scheme != "unix" else ""
        if database:
            commands.insert(0, [b"SELECT", database.encode()])
        password = _password(self._config.password_file) or unquote(url.password or "").encode()
        if password:
            user = [unquote(url.username).encode()] if url.username else []
            commands.insert(0, [b"AUTH", *user, password])
        return commands


def _run_id(info: Any) -> str:
    found = re.search(rb"^run_id:(\w+)", info, re.MULTILINE) if isinstance(info, bytes) else None
    if found is None:
        raise StoreDownError("it does not tell its run_id; INFO must be allowed")
    return found[1].decode()


def _ignore(future: asyncio.Future[list[Any]]) -> None:
    if not future.cancelled():
        future.exception()


def _password(file: Path | None) -> bytes:
    return file.read_bytes().strip() if file is not None else b""
