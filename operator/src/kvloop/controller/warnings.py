"""Some troubles are told by Events alone: those about objects that look stuck are read, and no others."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvloop.controller.cache import Cache, ChildEntry, Key, PodEntry
from kvloop.controller.observe import Warned
from kvloop.controller.settings import WARNINGS_AFTER_SECONDS, WARNINGS_EVERY_SECONDS
from kvloop.kube.client import KubeClient
from kvloop.kube.errors import KubeError, UnavailableError
from kvloop.plan.observed import Pod

log = logging.getLogger(__name__)

_MUTE = frozenset({"", "ContainerCreating", "PodInitializing"})


@dataclass
class Suspect:
    """An object that looks stuck: since when, when the events about it were read, and these, newest first."""

    since: float
    read: float | None = None
    warnings: tuple[Warned, ...] = ()

    def is_due(self, now: float) -> bool:
        """Whether to read. The event may come a little later than the trouble, so that mute objects are asked anew."""
        if self.read is None:
            return now - self.since >= WARNINGS_AFTER_SECONDS
        young = now - self.since < WARNINGS_EVERY_SECONDS and not self.warnings
        return now - self.read >= (WARNINGS_AFTER_SECONDS if young else WARNINGS_EVERY_SECONDS)


class Warnings:
    """Reads the warnings about what is stuck, by uid."""

    def __init__(self, kube: KubeClient, cache: Cache, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._cache = cache
        self._clock = clock
        self._suspects: dict[Key, dict[str, Suspect]] = {}

    def forget(self, key: Key) -> None:
        """Forget a resource that is gone."""
        self._suspects.pop(key, None)

    def about(self, key: Key) -> Mapping[str, tuple[Warned, ...]]:
        """What was read last, by uid."""
        return {uid: suspect.warnings for uid, suspect in self._suspects.get(key, {}).items()}

    async def read(self, key: Key) -> bool:
        """Read what is due; whether anything looks stuck, so that there will be something to read soon.

        What is stuck when a resource is first looked at has been so before this process began: it is asked about at
        once, so that a restart forgets nothing.
        """
        now = self._clock()
        since = now if key in self._suspects else now - WARNINGS_AFTER_SECONDS
        before = self._suspects.get(key, {})
        stuck = [
            *(entry.uid for entry in self._cache.children(key).values() if _lacks_pods(entry)),
            *_mute(self._cache.pods(key)),
        ]
        suspects = {uid: before.get(uid) or Suspect(since) for uid in stuck}
        for uid, suspect in suspects.items():
            if suspect.is_due(now):
                suspect.warnings = await self._about(key, uid, suspect.warnings)
                suspect.read = now
        self._suspects[key] = suspects
        return bool(suspects)

    async def _about(self, key: Key, uid: str, before: tuple[Warned, ...]) -> tuple[Warned, ...]:
        """Newest first; what cannot be read holds nothing up."""
        try:
            events = await self._kube.warnings(key.namespace, uid)
        except UnavailableError:
            raise
        except KubeError as error:
            log.warning("events cannot be read: %s", error, extra=key.extra)
            return before
        newest_first = sorted(events, key=_when, reverse=True)
        return tuple(Warned(each.get("reason", ""), each.get("message", "")) for each in newest_first)


def _lacks_pods(entry: ChildEntry) -> bool:
    workload = entry.child.workload
    return entry.child.ref.kind == "StatefulSet" and workload is not None and workload.pods < workload.replicas


def _mute(entries: Iterable[PodEntry]) -> list[str]:
    """A pod of each component that does not start and does not say why: the others wait for the same."""
    return list({entry.pod.component: entry.uid for entry in entries if _says_nothing(entry.pod)}.values())


def _says_nothing(pod: Pod) -> bool:
    if pod.deleting or not pod.scheduled:
        return False
    if pod.phase == "Pending":
        return all(each.waiting in _MUTE and not each.running for each in pod.containers)
    running = [each for each in pod.containers if each.running]
    return pod.is_engine and not pod.ready and bool(running) and all(each.started for each in running)


def _when(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
