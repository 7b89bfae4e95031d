"""HTTP towards the engines."""

from collections.abc import AsyncIterator, Mapping
from typing import Self

import aiohttp

# vLLM closes idle connections after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE); one about to be closed must not be used.
_KEEP_ALIVE_SECONDS = 3.0
_READ_BYTES = 1 << 18
MAX_ANSWER_BYTES = 256 << 20
"""Largest answer that is read as a whole."""


class LegError(Exception):
    """A leg without an answer. `sent`: the engine may have seen the request; `reason` is one word."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent


class Answer:
    """The head of an engine's answer, and its body as it comes. Must be closed."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    @property
    def is_stream(self) -> bool:
        return self._response.content_type == "text/event-stream"

    async def read(self) -> bytes:
        """The whole body; raises `LegError`."""
        pieces, size = [], 0
        async for piece in self.pieces():
            pieces.append(piece)
            size += len(piece)
            if size > MAX_ANSWER_BYTES:
                raise LegError("too_long", sent=True)
        return b"".join(pieces)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives; raises `LegError` where it ends too early."""
        try:
            async for piece in self._response.content.iter_any():
                yield piece
        except TimeoutError as error:
            raise LegError("deadline", sent=True) from error
        except (aiohttp.ClientError, OSError) as error:
            raise LegError("broken", sent=True) from error

    def close(self) -> None:
        """Give the connection back if the body is complete; else close it, which aborts the request in the engine."""
        self._response.close() if not self._response.content.at_eof() else self._response.release()


class Upstream:
    """Connections to engines, kept open between legs."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    @classmethod
    def start(cls) -> Self:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS, ttl_dns_cache=10)
        return cls(
            aiohttp.ClientSession(
                connector=connector,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=_READ_BYTES,
            )
        )

    async def close(self) -> None:
        await self._session.close()

    async def send(
        self,
        address: str,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        connect: float,
        idle: float,
    ) -> Answer:
        """Send a request and wait for the head of its answer; raises `LegError`. Times are in seconds."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=idle)
        try:
            response = await self._session.request(
                method, f"http://{address}{path}", data=body, headers=headers, timeout=timeout, allow_redirects=False
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise LegError("connect", sent=False) from error
        except TimeoutError as error:
            raise LegError("deadline", sent=True) from error
        except (aiohttp.ClientError, OSError) as error:
            raise LegError("broken", sent=True) from error
        return Answer(response)
