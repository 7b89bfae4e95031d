"""Requests to the API server: JSON in and out, typed errors, few retries. What `DynamicKube` and `Session` stand on."""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import aiohttp
from kubernetes.aio.dynamic import DynamicClient
from kubernetes.aio.dynamic.exceptions import DynamicApiError

from kvloop.kube.client import Body
from kvloop.kube.errors import KubeError, ServerError, UnavailableError, from_status
from kvloop.kube.kinds import Kind

Observer = Callable[[str, str, int, float], None]
"""Told of every request: verb, kind, HTTP status (0 without an answer), seconds."""


@dataclass(frozen=True)
class Timing:
    """Patience of a client."""

    request_seconds: float
    connect_seconds: float
    attempts: int
    backoff_seconds: float
    backoff_limit_seconds: float
    page_size: int
    connections: int


class Answer(NamedTuple):
    """An answer that is nobody's error."""

    status: int
    text: str


class Transport:
    """Sends requests with the credentials of an `ApiClient`, which it closes at the end."""

    def __init__(self, api: Any, timing: Timing, observer: Observer) -> None:
        self.timing = timing
        self._api = api
        self._dynamic: Any = DynamicClient(api)  # type: ignore[no-untyped-call]  # the client has no types here
        self._observer = observer
        self._timeout = aiohttp.ClientTimeout(total=timing.request_seconds, connect=timing.connect_seconds)

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    async def json(self, verb: str, kind: Kind, path: str, **options: Any) -> Body:
        """An answer's object; waits and tries again while the server is unavailable, as often as `Timing` allows."""
        found: Body = await self._retrying(verb, kind, path, aiohttp.ClientResponse.json, options)
        return found

    async def text(self, kind: Kind, path: str, **options: Any) -> str:
        """An answer that is no JSON, likewise."""
        found: str = await self._retrying("get", kind, path, aiohttp.ClientResponse.text, options)
        return found

    async def once(
        self, method: str, path: str, *, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Any answer to one request, good or bad, such as of a pod behind the API server.

        Raises:
            UnavailableError: there is none.
        """
        header_params = {"Content-Type": "application/json", **(headers or {})}
        try:
            request = await self._api.param_serialize(
                method, path, header_params=header_params, body=body, auth_settings=["BearerToken"]
            )
            answer = (await self._api.call_api(*request, _request_timeout=self._timeout)).response
            return Answer(answer.status, await answer.text(errors="replace"))
        except (aiohttp.ClientError, TimeoutError, OSError) as raw:
            raise UnavailableError(f"{method} {path}: {str(raw) or type(raw).__name__}") from raw

    async def run(self, path: str, query: Sequence[tuple[str, str]], line: str) -> tuple[str, str]:
        """What a command prints that gets a line on its standard input; and the `Status` that it ends with, as JSON.

        Raises:
            UnavailableError: there is no connection.
            KubeError: the server refuses it; without the server's words, which no client gets at here.
        """
        _, url, headers, *_ = await self._api.param_serialize(
            "GET", path, query_params=list(query), auth_settings=["BearerToken"]
        )
        client, settings = self._api.rest_client, self._api.configuration
        client.pool_manager = client.pool_manager or client._create_pool_manager()  # noqa: SLF001 (made at a first request)
        output: dict[int, bytes] = {}
        try:
            async with (
                asyncio.timeout(self.timing.request_seconds),
                client.pool_manager.ws_connect(
                    url, headers=headers, protocols=_PROTOCOLS, proxy=settings.proxy
                ) as socket,
            ):
                await socket.send_bytes(bytes([_STDIN]) + f"{line}\n".encode())
                async for message in socket:
                    output[message.data[0]] = output.get(message.data[0], b"") + message.data[1:]
        except aiohttp.WSServerHandshakeError as raw:
            raise from_status(raw.status, {"message": f"GET {path}: {raw.status} {raw.message}"}) from raw
        except (aiohttp.ClientError, TimeoutError, OSError) as raw:
            raise UnavailableError(f"GET {path}: {str(raw) or type(raw).__name__}") from raw
        return output.get(_STDOUT, b"").decode(errors="replace"), output.get(_STATUS, b"").decode(errors="replace")

    async def _retrying(
        self, verb: str, kind: Kind, path: str, read: Callable[[Any], Awaitable[Any]], options: dict[str, Any]
    ) -> Any:
        for attempt in range(1, self.timing.attempts + 1):
            try:
                return await self._attempt(verb, kind, path, read, options)
            except (UnavailableError, ServerError) as error:
                if attempt == self.timing.attempts:
                    raise
                await asyncio.sleep(self._delay(attempt, getattr(error, "retry_after", 0.0)))
        raise AssertionError("the last attempt returns or raises")

    def _delay(self, attempt: int, retry_after: float) -> float:
        backoff = self.timing.backoff_seconds * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)  # noqa: S311 (jitter)
        return float(min(max(backoff, retry_after), self.timing.backoff_limit_seconds))

    async def _attempt(
        self, verb: str, kind: Kind, path: str, read: Callable[[Any], Awaitable[Any]], options: dict[str, Any]
    ) -> Any:
        start, code = time.monotonic(), 0
        try:
            response = await self._dynamic.request(
                _METHODS[verb], path, serialize=False, _request_timeout=self._timeout, **options
            )
            answer = await read(response)
            code = 200
        except DynamicApiError as raw:
            error = _translate(raw)
            code = error.code
            raise error from None
        except (aiohttp.ClientError, TimeoutError, OSError) as raw:
            raise UnavailableError(f"{verb} {path}: {str(raw) or type(raw).__name__}") from raw
        finally:
            self._observer(verb, kind.kind, code, time.monotonic() - start)
        return answer


_STDIN, _STDOUT, _STATUS = 0, 1, 3
"""Channels of a running command: https://kubernetes.io/docs/reference/generated/kubernetes-api/ has `exec`."""
_PROTOCOLS: Final = ("v4.channel.k8s.io",)

_METHODS: Final = {"apply": "patch", "create": "post", "delete": "delete", "get": "get", "list": "get"}


def _translate(raw: Any) -> KubeError:
    """Our error for the client's."""
    text = raw.body.decode(errors="replace") if isinstance(raw.body, bytes) else raw.body or ""
    header = (raw.headers or {}).get("Retry-After", "")
    return from_status(raw.status, status_of(text), float(header) if header.isdigit() else 0.0)


def status_of(text: str) -> dict[str, Any]:
    """The `Status` object in the body of an answer, or one with its text as the message."""
    try:
        status = json.loads(text)
    except ValueError:
        status = None
    return status if isinstance(status, dict) else {"message": text[:1000]}
