"""Proof that the operator still hears: it writes to a Lease of its own, and waits for the watch to bring it back.

An operator whose watches have silently died, or whose credentials have, looks well from outside and does nothing.
"""

import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from kvloop.api.labels import APP_COMPONENT, APP_NAME, MANAGED_BY_VALUE
from kvloop.controller.settings import CANARY_PERIODS
from kvloop.kube.client import Body, KubeClient
from kvloop.kube.errors import KubeError

log = logging.getLogger(__name__)

NAME = "kvloop-operator"
"""Name of the Lease."""


class DeafError(RuntimeError):
    """What was written did not come back in time; only a restart helps."""


class Canary:
    """Writes and awaits the Lease, every `period` seconds."""

    def __init__(
        self,
        kube: KubeClient,
        namespace: str,
        holder: str,
        period: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._holder = holder
        self._period = period
        self._clock = clock
        self._written: dict[str, float] = {}
        self._returned = clock()

    @property
    def age(self) -> float:
        """Seconds since the last write that has come back was made."""
        return self._clock() - self._returned

    async def sing(self) -> None:
        """Write the Lease once; a failure is logged, and shows in `check` if it goes on."""
        moment = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        self._written = {mark: at for mark, at in self._written.items() if at > self._returned}
        self._written[moment] = self._clock()
        try:
            await self._kube.apply(self._lease(moment))
        except KubeError as error:
            log.warning("the Lease %s/%s could not be written: %s", self._namespace, NAME, error)

    def hear(self, body: Mapping[str, Any]) -> None:
        """Take a Lease from the watch."""
        if at := self._written.get((body.get("spec") or {}).get("renewTime", "")):
            self._returned = max(self._returned, at)

    def check(self) -> float:
        """The age.

        Raises:
            DeafError: nothing has come back for so long that the watch must be dead.
        """
        if self.age > CANARY_PERIODS * self._period:
            raise DeafError(f"no write of {self._namespace}/{NAME} has come back for {self.age:.0f} s")
        return self.age

    def _lease(self, moment: str) -> Body:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": NAME,
                "namespace": self._namespace,
                "labels": {APP_NAME: MANAGED_BY_VALUE, APP_COMPONENT: "operator"},
            },
            "spec": {
                "holderIdentity": self._holder,
                "leaseDurationSeconds": max(1, round(CANARY_PERIODS * self._period)),
                "renewTime": moment,
            },
        }
