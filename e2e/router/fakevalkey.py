"""The few commands of Valkey that the store uses, with a clock of its own and faults on demand."""

import asyncio
from types import TracebackType
from typing import Self

from kvloop.router.store.resp import IncompleteError, parse


class FakeValkey:
    """``async with FakeValkey() as server: server.url``."""

    def __init__(self, password: str = "") -> None:
        self.password = password
        self.data: dict[tuple[int, bytes], tuple[bytes, float]] = {}
        self.now = 0.0
        self.open = asyncio.Event()
        """While cleared, commands are neither run nor answered."""
        self.open.set()
        self.garbage = False
        self.readonly = False
        self.run: int | None = 1
        """Changes at each start; None where INFO is not allowed."""
        self.commands: list[bytes] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()
        self.open.set()
        await asyncio.sleep(0)

    def cut(self) -> None:
        """Cut every connection."""
        for writer in self._writers:
            writer.transport.abort()

    def restore(self, data: dict[tuple[int, bytes], tuple[bytes, float]]) -> None:
        """Restart from a snapshot."""
        self.data, self.run = dict(data), (self.run or 0) + 1
        self.cut()

    @property
    def connections(self) -> int:
        return len(self._writers)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        buffer, database, known = b"", 0, not self.password
        try:
            while data := await reader.read(1 << 16):
                buffer += data
                while buffer:
                    try:
                        command, end = parse(buffer, 0)
                    except IncompleteError:
                        break
                    buffer = buffer[end:]
                    await self.open.wait()
                    name = command[0].upper()
                    self.commands.append(name)
                    if name == b"AUTH":
                        known = command[-1].decode() == self.password
                        answer = b"+OK\r\n" if known else b"-WRONGPASS invalid\r\n"
                    elif not known:
                        answer = b"-NOAUTH Authentication required.\r\n"
                    elif name == b"SELECT":
                        database, answer = int(command[1]), b"+OK\r\n"
                    elif name == b"INFO" and not self.garbage:
                        answer = self._info()
                    else:
                        answer = b"nonsense\r\n" if self.garbage else self._run(database, name, command[1:])
                    writer.write(answer)
        except ConnectionError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _info(self) -> bytes:
        told = b"run_id:%040x\r\n" % self.run if self.run is not None else b""
        return _bulk(b"# Server\r\n%btcp_port:%d\r\n" % (told, self.port))

    def _run(self, database: int, name: bytes, words: list[bytes]) -> bytes:
        if self.readonly and name != b"MGET":
            return b"-READONLY You can't write against a read only replica.\r\n"
        if name == b"GETDEL":
            return _bulk(self._get(database, words[0], take=True))
        if name == b"MGET":
            return b"*%d\r\n" % len(words) + b"".join(_bulk(self._get(database, key)) for key in words)
        if name == b"SET":
            key, value, px, milliseconds, *options = words
            assert px == b"PX"
            older = self._get(database, key)
            self.data[database, key] = (value, self.now + int(milliseconds) / 1000)
            return _bulk(older) if options == [b"GET"] else b"+OK\r\n"
        return b"-ERR unknown command\r\n"

    def _get(self, database: int, key: bytes, *, take: bool = False) -> bytes | None:
        value, deadline = self.data.get((database, key), (None, 0.0))
        if value is not None and (take or deadline <= self.now):
            del self.data[database, key]
        return value if deadline > self.now else None


def _bulk(value: bytes | None) -> bytes:
    return b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)
