"""`KubeClient` over the official client's dynamic API: plain dicts, server-side apply, typed errors, few retries."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.dynamic import DynamicClient
from kubernetes.aio.dynamic.exceptions import DynamicApiError

import kvloop
from kvloop.api.labels import FIELD_MANAGER
from kvloop.kube.client import Body
from kvloop.kube.errors import KubeError, NotFoundError, ServerError, UnavailableError, from_status
from kvloop.kube.kinds import EVENT, KINDS, Kind

APPLY: Final = "application/apply-patch+yaml"

NEVER_CURRENT: Final = "1"
"""A resourceVersion that no object has. An apply that demands it creates an absent object (its version is not looked at
then) and conflicts with any existing one: so nothing of somebody else's is taken over, and no read is needed first."""

METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

Observer = Callable[[str, str, int, float], None]
"""Told of every request: verb, kind, HTTP status (0 without an answer), seconds."""


@dataclass(frozen=True)
class Timing:
    """Patience of the client."""

    request_seconds: float
    connect_seconds: float
    attempts: int
    backoff_seconds: float
    backoff_limit_seconds: float
    page_size: int
    connections: int


def _plain(_: Any, data: Any) -> Any:
    return data


class DynamicKube:
    """The implementation of `KubeClient`. Use `connect` to make one, and `close` it."""

    def __init__(self, api: Any, timing: Timing, observer: Observer) -> None:
        self._api = api
        self._dynamic: Any = DynamicClient(api)  # type: ignore[no-untyped-call]  # the client has no types here
        self._timing = timing
        self._observer = observer
        self._timeout = aiohttp.ClientTimeout(total=timing.request_seconds, connect=timing.connect_seconds)

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    async def apply(self, body: Body, *, new: bool = False) -> Body:
        """See `KubeClient`."""
        if new:
            body = body | {"metadata": body["metadata"] | {"resourceVersion": NEVER_CURRENT}}
        return await self._apply(body, None)

    async def apply_status(self, body: Body) -> Body:
        """See `KubeClient`."""
        return await self._apply(body, "status")

    async def apply_scale(self, kind: str, namespace: str, name: str, replicas: int) -> None:
        """See `KubeClient`."""
        scale = {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"replicas": replicas},
        }
        path = KINDS[kind].path(namespace, name, "scale")
        await self._request("apply", KINDS[kind], path, body=scale, **_APPLY_OPTIONS)

    async def create(self, body: Body) -> Body:
        """See `KubeClient`."""
        kind = KINDS[body["kind"]]
        path = kind.path(body["metadata"]["namespace"])
        return await self._request("create", kind, path, body=body, field_manager=FIELD_MANAGER)

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """See `KubeClient`."""
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        await self._request("delete", KINDS[kind], KINDS[kind].path(namespace, name), body=options)

    async def get(self, kind: str, namespace: str, name: str) -> Body:
        """See `KubeClient`."""
        return await self._request("get", KINDS[kind], KINDS[kind].path(namespace, name))

    async def metadata(self, kind: str, namespace: str | None, selector: str) -> AsyncIterator[Body]:
        """See `KubeClient`."""
        token = None
        while True:
            page = await self._request(
                "list",
                KINDS[kind],
                KINDS[kind].path(namespace),
                label_selector=selector or None,
                limit=self._timing.page_size,
                _continue=token,
                header_params={"Accept": METADATA_LIST},
            )
            for item in page["items"] or ():  # null, not [], when the last page is empty
                yield item["metadata"]
            token = page["metadata"].get("continue")
            if not token:
                return

    async def warnings(self, namespace: str, uid: str) -> list[Body]:
        """See `KubeClient`."""
        about = f"involvedObject.uid={uid},type=Warning"
        page = await self._request("list", EVENT, EVENT.path(namespace), field_selector=about)
        return page["items"] or []

    async def serves(self, api_version: str) -> bool:
        """See `KubeClient`."""
        kind = Kind(api_version, "APIResourceList", "")
        try:
            await self._request("get", kind, kind.path().rstrip("/"))
        except NotFoundError:
            return False
        return True

    async def _apply(self, body: Body, subresource: str | None) -> Body:
        kind, meta = KINDS[body["kind"]], body["metadata"]
        path = kind.path(meta["namespace"], meta["name"], subresource)
        return await self._request("apply", kind, path, body=body, **_APPLY_OPTIONS)

    async def _request(self, verb: str, kind: Kind, path: str, **options: Any) -> Body:
        """Make a request; wait and try again while the server is unavailable, as often as `Timing` allows."""
        for attempt in range(1, self._timing.attempts + 1):
            try:
                return await self._attempt(verb, kind, path, options)
            except (UnavailableError, ServerError) as error:
                if attempt == self._timing.attempts:
                    raise
                await asyncio.sleep(self._delay(attempt, getattr(error, "retry_after", 0.0)))
        raise AssertionError("the last attempt returns or raises")

    def _delay(self, attempt: int, retry_after: float) -> float:
        backoff = self._timing.backoff_seconds * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)  # noqa: S311 (jitter)
        return float(min(max(backoff, retry_after), self._timing.backoff_limit_seconds))

    async def _attempt(self, verb: str, kind: Kind, path: str, options: dict[str, Any]) -> Body:
        start, code = time.monotonic(), 0
        try:
            answer: Body = await self._dynamic.request(
                _METHODS[verb], path, serializer=_plain, _request_timeout=self._timeout, **options
            )
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


_METHODS: Final = {"apply": "patch", "create": "post", "delete": "delete", "get": "get", "list": "get"}
_APPLY_OPTIONS: Final = {"content_type": APPLY, "field_manager": FIELD_MANAGER, "force_conflicts": True}


def _translate(raw: Any) -> KubeError:
    """Our error for the client's."""
    text = raw.body.decode(errors="replace") if isinstance(raw.body, bytes) else raw.body or ""
    try:
        status = json.loads(text)
    except ValueError:
        status = None
    if not isinstance(status, dict):
        status = {"message": text[:1000]}
    header = (raw.headers or {}).get("Retry-After", "")
    return from_status(raw.status, status, float(header) if header.isdigit() else 0.0)


async def connect(timing: Timing, observer: Observer) -> DynamicKube:
    """A client with the pod's service account, or else with the kubeconfig that kubectl would use.

    Raises:
        UnavailableError: neither is there.
    """
    target = Configuration()
    try:
        config.load_incluster_config(target)  # type: ignore[no-untyped-call]  # as above
    except config.ConfigException:
        try:
            await config.load_kube_config(client_configuration=target)  # type: ignore[no-untyped-call]  # as above
        except config.ConfigException as error:
            raise UnavailableError(f"no service account and no usable kubeconfig: {error}") from error
    target.connection_pool_maxsize = timing.connections
    api = ApiClient(target)
    api.user_agent = f"kvloop-operator/{kvloop.__version__}"
    return DynamicKube(api, timing, observer)
