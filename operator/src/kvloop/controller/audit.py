"""Compares the cache with a list of what is there: at the start to know when it is full, later to find what it missed.

A watch that had to begin anew tells what is there, and never what has gone meanwhile; a dead one tells nothing.
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from kvloop.api.labels import KIND, MANAGED_BY, MANAGED_BY_VALUE, NAME
from kvloop.controller.cache import Cache, Key
from kvloop.controller.canary import DeafError
from kvloop.controller.settings import FILL_RECHECK_SECONDS
from kvloop.kube.client import KubeClient
from kvloop.kube.errors import ExpiredError, ForbiddenError, ServerError, UnavailableError
from kvloop.kube.kinds import Kind

log = logging.getLogger(__name__)

SELECTOR = f"{MANAGED_BY}={MANAGED_BY_VALUE},{NAME}"
"""Label selector of children and pods; the watches have the same."""

_UNPROVEN = ""
"""Stands for the objects of a list that did not end."""


class Audit:
    """Of one cluster, or of the namespaces served."""

    def __init__(
        self,
        kube: KubeClient,
        cache: Cache,
        kinds: tuple[Kind, ...],
        namespaces: tuple[str, ...],
        changed: Callable[[Key], None],
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._kinds = kinds
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._changed = changed

    async def fill(self) -> None:
        """Wait until the watches have brought everything that is there now.

        Raises:
            NotFoundError: the custom resource's CRD is not installed.
            ForbiddenError: the operator has no right to list a kind.
        """
        while await self._unheard():
            log.info("waiting for the watches to bring what is there")

    async def check(self) -> None:
        """Compare, and wait for the watches to bring what the cache did not know.

        Raises:
            DeafError: they do not; only a restart helps.
        """
        try:
            first = await self._unheard()
            second = await self._unheard() if first else {}
        except ForbiddenError as error:  # an API server that has just begun knows of no rights yet
            log.warning("what is there could not be listed: %s", error)
            return
        if lost := first.keys() & second.keys() - {_UNPROVEN}:
            raise DeafError(f"{len(lost)} objects were listed that no watch has brought")

    async def _unheard(self) -> Mapping[str, int]:
        """What a list shows and the watches do not bring in a while."""
        try:
            unknown = await self.compare()
        except (ExpiredError, ServerError, UnavailableError) as error:
            log.warning("what is there could not be listed: %s", error)
            return {_UNPROVEN: 0}
        return {} if await self._cache.arrival(unknown, FILL_RECHECK_SECONDS) else unknown

    async def compare(self) -> Mapping[str, int]:
        """Drop from the cache what is gone; gives uid and version of what it does not know in that version or later."""
        unknown: dict[str, int] = {}
        for kind in self._kinds:
            before = self._cache.versions(kind.kind)
            listed = {meta["uid"]: int(meta["resourceVersion"]) async for meta in self._list(kind.kind)}
            for key in self._cache.drop(before.keys() - listed.keys()):
                log.info("a %s went without an event", kind.kind, extra=key.extra)
                self._changed(key)
            now = self._cache.versions(kind.kind)
            unknown |= {uid: version for uid, version in listed.items() if now.get(uid, -1) < version}
        return unknown

    async def _list(self, kind: str) -> AsyncIterator[dict[str, Any]]:
        for namespace in self._namespaces:
            async for meta in self._kube.metadata(kind, namespace, "" if kind == KIND else SELECTOR):
                yield meta
