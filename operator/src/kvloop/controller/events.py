"""Kubernetes Events about custom resources: on transitions only, and never the same one twice in a short time."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from kvloop.api.labels import API_VERSION, FIELD_MANAGER, KIND
from kvloop.controller.cache import Key
from kvloop.controller.settings import EVENT_REPEAT_SECONDS
from kvloop.kube.client import Body, KubeClient
from kvloop.kube.errors import KubeError
from kvloop.plan.events import Event

log = logging.getLogger(__name__)


class Poster:
    """Posts events; what cannot be posted is logged and given up, since no decision depends on it."""

    def __init__(self, kube: KubeClient, clock: Callable[[], float] = time.time) -> None:
        self._kube = kube
        self._clock = clock
        self._posted: dict[str, float] = {}

    async def post(self, key: Key, uid: str, events: Iterable[Event]) -> None:
        """Post events about the resource with that uid."""
        now = self._clock()
        self._posted = {name: at for name, at in self._posted.items() if now < at + EVENT_REPEAT_SECONDS}
        for event in events:
            mark = hashlib.sha256(f"{uid} {event.type} {event.reason} {event.message}".encode()).hexdigest()[:16]
            if mark in self._posted:
                continue
            self._posted[mark] = now
            try:
                await self._kube.create(_body(key, uid, event, mark, now))
            except KubeError as error:
                log.warning("event %s was not posted: %s", event.reason, error, extra=key.extra)


def _body(key: Key, uid: str, event: Event, mark: str, now: float) -> Body:
    moment = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    about = {"apiVersion": API_VERSION, "kind": KIND, "namespace": key.namespace, "name": key.name, "uid": uid}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        # The time keeps apart what is said again later; the mark what is said at the same moment.
        "metadata": {"name": f"{key.name}.{int(now):x}.{mark}", "namespace": key.namespace},
        "involvedObject": about,
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:1024],  # the API server's limit
        "count": 1,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
    }
