"""The side channel: one engine reads another's blocks over TCP and tells it when it is done.

vLLM uses ZeroMQ for the handshake and NIXL for reads and notifications; here one connection carries all three. A frame
is a JSON line, followed for block reads by as many raw bytes as the line says. Like NIXL it reads memory, not requests:
whatever the blocks hold at that moment is what the reader gets.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable

HANDSHAKE_TIMEOUT_S = 5.0  # fixed in vLLM
_LINE_LIMIT = 16 * 1024 * 1024  # a line lists the block ids of a whole prompt


class TransferError(Exception):
    """A handshake or a read that failed; the engine's ``kv_load_failure_policy`` decides what comes of it."""


class Owner(Protocol):
    """What the side channel needs of the engine whose blocks are read."""

    def identity(self) -> dict[str, Any]: ...
    def export_blocks(self, blocks: list[int]) -> bytes: ...
    def notified(self, request_id: str) -> None: ...
    def heartbeat(self, request_ids: list[str]) -> None: ...


class SideChannelServer:
    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port, which the system chooses if `port` is 0."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_LINE_LIMIT)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._connections):
                writer.transport.abort()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while line := await reader.readline():
                self._answer(orjson.loads(line), writer)
                await writer.drain()
        except (OSError, ValueError, KeyError, asyncio.CancelledError):
            pass  # a peer that went away or sent no frame of ours
        finally:
            self._connections.discard(writer)
            writer.close()

    def _answer(self, frame: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        match frame["op"]:
            case "handshake":
                writer.write(orjson.dumps(self._owner.identity()) + b"\n")
            case "read":
                try:
                    raw = self._owner.export_blocks(frame["blocks"])
                except IndexError as error:
                    writer.write(orjson.dumps({"error": str(error)}) + b"\n")
                else:
                    writer.write(orjson.dumps({"bytes": len(raw)}) + b"\n" + raw)
            case "notify":
                self._owner.notified(frame["request"])
            case "heartbeat":
                self._owner.heartbeat(frame["requests"])


@dataclass
class Remote:
    """An engine that this one has shaken hands with."""

    engine_id: str
    clock_offset: float
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    lock: asyncio.Lock

    def tell(self, frame: dict[str, Any]) -> None:
        """Send a frame that has no answer. A lost one is lost, as NIXL notifications are."""
        if not self.writer.is_closing():
            self.writer.write(orjson.dumps(frame) + b"\n")

    async def read(self, blocks: list[int]) -> bytes:
        async with self.lock:
            if self.writer.is_closing():  # another read found the other engine gone
                raise TransferError("NIXL_ERR_REMOTE_DISCONNECT")
            try:
                self.writer.write(orjson.dumps({"op": "read", "blocks": blocks}) + b"\n")
                answer = orjson.loads(await self.reader.readline() or b'{"error": "NIXL_ERR_REMOTE_DISCONNECT"}')
                if "error" in answer:
                    raise TransferError(answer["error"])
                return await self.reader.readexactly(answer["bytes"])
            except (OSError, EOFError, ValueError) as error:  # ValueError: cut off within its answer
                raise TransferError("NIXL_ERR_REMOTE_DISCONNECT") from error

    def close(self) -> None:
        self.writer.transport.abort()


class Remotes:
    """The remote engines known by id, each with one connection."""

    def __init__(
        self, now: Callable[[], float], identity: Callable[[], dict[str, Any]], *, enforce_compat: bool
    ) -> None:
        self._now = now
        self._enforce_compat = enforce_compat
        self._identity = identity
        self._known: dict[str, Remote] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def get(self, engine_id: str, host: str, port: int) -> Remote:
        """The engine of that id, after a handshake on first contact; raises TransferError.

        The arguments come from a handle and may be anything.
        """
        async with self._locks.setdefault(engine_id, asyncio.Lock()):
            if engine_id not in self._known:
                self._known[engine_id] = await self._handshake(engine_id, host, port)
            return self._known[engine_id]

    def forget(self, engine_id: str) -> None:
        remote = self._known.pop(engine_id, None)
        if remote is not None:
            remote.close()

    def close(self) -> None:
        for engine_id in list(self._known):
            self.forget(engine_id)

    async def _handshake(self, engine_id: str, host: str, port: int) -> Remote:
        with ExitStack() as undo:
            try:
                async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                    reader, writer = await asyncio.open_connection(str(host).strip("[]"), int(port), limit=_LINE_LIMIT)
                    undo.callback(writer.transport.abort)
                    asked = self._now()
                    writer.write(b'{"op":"handshake"}\n')
                    line = await reader.readline()
                    middle = (asked + self._now()) / 2
                other = orjson.loads(line)
                self._check(engine_id, other)
            except (OSError, ValueError, TypeError, OverflowError, TimeoutError) as error:
                raise TransferError(f"handshake with {host}:{port} failed: {error or type(error).__name__}") from error
            undo.pop_all()  # shaken hands, and not cancelled meanwhile: the connection stays
        return Remote(engine_id, other["clock"] - middle, reader, writer, asyncio.Lock())

    def _check(self, engine_id: str, other: dict[str, Any]) -> None:
        """Raise ValueError where vLLM would refuse the pair."""
        own = self._identity()
        if self._enforce_compat and other["compatibility_hash"] != own["compatibility_hash"]:
            raise ValueError("NIXL compatibility hash mismatch")
        if other["engine_id"] != engine_id:
            raise ValueError(f"engine ID mismatch: expected {engine_id}, got {other['engine_id']}")
        if other["block_size"] != own["block_size"]:
            raise ValueError(f"block size mismatch: {other['block_size']} there, {own['block_size']} here")
