"""Engines from Kubernetes EndpointSlices: list, then watch, with the pod's own service account."""

import asyncio
import logging
import os
import random
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson

from kvloop.api import labels
from kvloop.api.contract import EndpointSlices
from kvloop.api.labels import Role
from kvloop.router.pool import Endpoint

log = logging.getLogger(__name__)

WATCH_SECONDS = 300
"""The API server ends a watch after this long; the next one goes on from where it ended."""
LEAST_BACKOFF_SECONDS = 0.2
MOST_BACKOFF_SECONDS = 30.0
_GONE = 410


class Gone(Exception):  # noqa: N818 (the API server's word for a version it has forgotten)
    """The watched version is too old: list again."""


def understand(slices: Iterable[dict[str, Any]], port_name: str) -> list[Endpoint]:
    """The engines in EndpointSlices. One pod may stand in several slices for a moment: the usable one counts."""
    found: dict[tuple[Role, str], Endpoint] = {}
    for piece in slices:
        marks = piece.get("metadata", {}).get("labels") or {}
        port = next((p.get("port") for p in piece.get("ports") or () if p.get("name") == port_name), None)
        role = marks.get(labels.ROLE)
        if port is None or role not in set(Role):
            continue
        for item in piece.get("endpoints") or ():
            endpoint = _endpoint(Role(role), marks.get(labels.REVISION, ""), item, piece.get("addressType"), port)
            known = found.get((endpoint.role, endpoint.address))
            if known is None or (endpoint.ready and not endpoint.terminating):
                found[endpoint.role, endpoint.address] = endpoint
    return list(found.values())


def _endpoint(role: Role, revision: str, item: dict[str, Any], kind: str | None, port: int) -> Endpoint:
    conditions = item.get("conditions") or {}
    address = item["addresses"][0]
    return Endpoint(
        role,
        f"[{address}]:{port}" if kind == "IPv6" else f"{address}:{port}",
        revision,
        uid=(item.get("targetRef") or {}).get("uid", ""),
        ready=conditions.get("ready") is not False,  # absent means ready
        terminating=conditions.get("terminating") is True,
    )


class SliceSource:
    """Keeps a list of engines up to date for as long as `run` runs."""

    def __init__(
        self, config: EndpointSlices, session: aiohttp.ClientSession, update: Callable[[list[Endpoint]], None]
    ) -> None:
        """`update` is called with all engines after every change, the first time when the list has been read."""
        self._config = config
        self._session = session
        self._update = update
        self._slices: dict[str, dict[str, Any]] = {}
        self._version = ""

    async def run(self) -> None:
        """List and watch until cancelled; what fails is tried again, at growing intervals."""
        backoff = LEAST_BACKOFF_SECONDS
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                backoff = LEAST_BACKOFF_SECONDS
            except Gone:
                self._version = ""
            except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError) as error:
                log.warning("watching EndpointSlices failed, trying again within %.1f s: %s", backoff, error)
                backoff = min(backoff * 2, MOST_BACKOFF_SECONDS)
            await asyncio.sleep(backoff * random.uniform(0.5, 1.0))  # noqa: S311 (spreads load, guards nothing)

    async def _list(self) -> None:
        async with self._get() as answer:
            body = orjson.loads(await answer.read())
        self._version = body["metadata"]["resourceVersion"]
        self._slices = {piece["metadata"]["name"]: piece for piece in body.get("items") or ()}
        self._tell()

    async def _watch(self) -> None:
        options = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        async with self._get(resourceVersion=self._version, **options) as answer:
            rest = b""
            async for data in answer.content.iter_any():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._apply(orjson.loads(line))

    def _apply(self, event: dict[str, Any]) -> None:
        kind, piece = event["type"], event["object"]
        if kind == "ERROR":
            if piece.get("code") == _GONE:
                raise Gone
            raise ValueError(piece.get("message", "the API server ended the watch"))
        self._version = piece["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return
        if kind == "DELETED":
            self._slices.pop(piece["metadata"]["name"], None)
        else:
            self._slices[piece["metadata"]["name"]] = piece
        self._tell()

    def _tell(self) -> None:
        self._update(understand(self._slices.values(), self._config.port_name))

    @asynccontextmanager
    async def _get(self, **query: str) -> AsyncIterator[aiohttp.ClientResponse]:
        config = self._config
        token = config.token_file.read_text().strip() if config.token_file.exists() else ""
        url = f"{_server(config)}/apis/discovery.k8s.io/v1/namespaces/{config.namespace}/endpointslices"
        selector = f"{labels.NAME}={config.name},{labels.ROLE},{labels.REVISION}"
        async with self._session.get(
            url,
            params={"labelSelector": selector, **query},
            headers={"Authorization": f"Bearer {token}"} if token else {},
            ssl=_tls(config),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=WATCH_SECONDS + 30),
        ) as answer:
            if answer.status == _GONE:
                raise Gone
            answer.raise_for_status()
            yield answer


def _server(config: EndpointSlices) -> str:
    if config.api_server is not None:
        return config.api_server.rstrip("/")
    try:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    except KeyError as error:
        raise ValueError("not in a pod: set endpoints.endpointSlices.apiServer") from error
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _tls(config: EndpointSlices) -> ssl.SSLContext | bool:
    return ssl.create_default_context(cafile=config.ca_file) if config.ca_file.exists() else True
