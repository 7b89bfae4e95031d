"""`KubeClient` over the official client's dynamic API: plain dicts, server-side apply, typed errors, few retries."""

from collections.abc import AsyncIterator
from typing import Any, Final

from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

import kvloop
from kvloop.api.labels import FIELD_MANAGER
from kvloop.kube.client import Body
from kvloop.kube.errors import NotFoundError, UnavailableError
from kvloop.kube.kinds import EVENT, KINDS, NODE, Kind
from kvloop.kube.transport import Observer, Timing, Transport

APPLY: Final = "application/apply-patch+yaml"

NEVER_CURRENT: Final = "1"
"""A resourceVersion that no object has. An apply that demands it creates an absent object (its version is not looked at
then) and conflicts with any existing one: so nothing of somebody else's is taken over, and no read is needed first."""

METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

NODES_PAGE: Final = 50
"""Nodes are listed whole, of which each has some 15 KB: most of it names of images."""


class DynamicKube:
    """The implementation of `KubeClient`. Use `connect` to make one, and `close` it."""

    def __init__(self, api: Any, timing: Timing, observer: Observer) -> None:
        self._transport = Transport(api, timing, observer)

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

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
        await self._transport.json("apply", KINDS[kind], path, body=scale, **_APPLY_OPTIONS)

    async def create(self, body: Body) -> Body:
        """See `KubeClient`."""
        kind = KINDS[body["kind"]]
        path = kind.path(body["metadata"]["namespace"])
        return await self._transport.json("create", kind, path, body=body, field_manager=FIELD_MANAGER)

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """See `KubeClient`."""
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        await self._transport.json("delete", KINDS[kind], KINDS[kind].path(namespace, name), body=options)

    async def get(self, kind: str, namespace: str, name: str) -> Body:
        """See `KubeClient`."""
        return await self._transport.json("get", KINDS[kind], KINDS[kind].path(namespace, name))

    async def metadata(self, kind: str, namespace: str | None, selector: str) -> AsyncIterator[Body]:
        """See `KubeClient`."""
        accept = {"header_params": {"Accept": METADATA_LIST}}
        async for item in self._items(kind, namespace, selector, self._transport.timing.page_size, **accept):
            yield item["metadata"]

    async def nodes(self, selector: str) -> AsyncIterator[Body]:
        """See `KubeClient`."""
        async for item in self._items(NODE.kind, None, selector, NODES_PAGE):
            yield item

    async def warnings(self, namespace: str, uid: str) -> list[Body]:
        """See `KubeClient`."""
        about = f"involvedObject.uid={uid},type=Warning"
        page = await self._transport.json("list", EVENT, EVENT.path(namespace), field_selector=about)
        return page["items"] or []

    async def serves(self, api_version: str) -> bool:
        """See `KubeClient`."""
        kind = Kind(api_version, "APIResourceList", "")
        try:
            await self._transport.json("get", kind, kind.path().rstrip("/"))
        except NotFoundError:
            return False
        return True

    async def _items(
        self, kind: str, namespace: str | None, selector: str, page_size: int, **options: Any
    ) -> AsyncIterator[Body]:
        """The items of a list, one page in memory at a time."""
        path, token = KINDS[kind].path(namespace), None
        chosen = options | {"label_selector": selector or None, "limit": page_size}
        while True:
            page = await self._transport.json("list", KINDS[kind], path, **chosen, _continue=token)
            for item in page["items"] or ():  # null, not [], when the last page is empty
                yield item
            token = page["metadata"].get("continue")
            if not token:
                return

    async def _apply(self, body: Body, subresource: str | None) -> Body:
        kind, meta = KINDS[body["kind"]], body["metadata"]
        path = kind.path(meta["namespace"], meta["name"], subresource)
        return await self._transport.json("apply", kind, path, body=body, **_APPLY_OPTIONS)


_APPLY_OPTIONS: Final = {"content_type": APPLY, "field_manager": FIELD_MANAGER, "force_conflicts": True}


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
    # No proxy and no .netrc of the environment, as Kopf has it; a look at the latter takes a thread for each request.
    target.client_session_kwargs = {"trust_env": False}
    api = ApiClient(target)
    api.user_agent = f"kvloop-operator/{kvloop.__version__}"
    return DynamicKube(api, timing, observer)
