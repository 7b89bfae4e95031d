"""The few calls that the operator makes, as a protocol: what the controller depends on, and what tests replace."""

from collections.abc import AsyncIterator
from typing import Any, Protocol

Body = dict[str, Any]
"""An object in Kubernetes' own spelling."""


class KubeClient(Protocol):
    """Every method raises a `KubeError`, and retries by itself what a short wait may heal."""

    async def apply(self, body: Body, *, new: bool = False) -> Body:
        """Server-side apply with force, and give back the object as stored.

        With `new` the object must not exist: `ConflictError` if it does, and nothing is changed then.
        """

    async def apply_status(self, body: Body) -> Body:
        """Server-side apply of the status subresource; what the status in `body` leaves out is removed."""

    async def apply_scale(self, kind: str, namespace: str, name: str, replicas: int) -> None:
        """Own the replica count through the scale subresource, so that it outlives its removal from `apply`."""

    async def create(self, body: Body) -> Body:
        """Create an object; `ConflictError` if it exists."""

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Delete an object in the background, if it still is the one of `uid` (else `ConflictError`)."""

    async def get(self, kind: str, namespace: str, name: str) -> Body:
        """Read one object."""

    def metadata(self, kind: str, namespace: str | None, selector: str) -> AsyncIterator[Body]:
        """The metadata of all objects with these labels, page by page; in all namespaces if `namespace` is None."""

    def nodes(self, selector: str) -> AsyncIterator[Body]:
        """All nodes with these labels, page by page."""

    async def warnings(self, namespace: str, uid: str) -> list[Body]:
        """Events of type Warning about the object with that uid."""

    async def serves(self, api_version: str) -> bool:
        """Whether the API server has this group and version."""

    async def close(self) -> None:
        """Close all connections."""
