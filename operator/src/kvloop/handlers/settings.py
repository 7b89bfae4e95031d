"""Kopf's settings, each stated with its reason: its defaults are meant for handlers that keep state on objects."""

import random
from collections.abc import Iterator
from typing import Any

import kopf

from kvloop.api.labels import GROUP
from kvloop.controller import canary
from kvloop.controller.audit import SELECTOR
from kvloop.controller.settings import PAGE_SIZE, STOP_SECONDS, Settings
from kvloop.kube.kinds import CHILDREN, LEASE, POD


class Backoffs:
    """Delays between attempts of a request: 1 s, doubling up to 30 s as in client-go, with jitter; 5 minutes in all."""

    def __len__(self) -> int:
        return 14

    def __iter__(self) -> Iterator[float]:
        return (min(2**n, 30) * random.uniform(0.75, 1.25) for n in range(len(self)))  # noqa: S311 (jitter)


class NoDiffBase(kopf.DiffBaseStorage):
    """Keeps nothing: there are no handlers that compare, and copying every object for them costs more than the rest."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Nothing of a body matters."""
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        """Nothing was stored."""

    def store(self, **_: Any) -> None:
        """Store nothing."""


class NoProgress(kopf.ProgressStorage):
    """Keeps nothing: there are no handlers with progress."""

    def fetch(self, **_: Any) -> None:
        """Nothing was stored."""

    def store(self, **_: Any) -> None:
        """Store nothing."""

    def purge(self, **_: Any) -> None:
        """Remove nothing."""

    def touch(self, **_: Any) -> None:
        """Touch nothing."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        """There is nothing to clear."""
        return essence


def settings(ours: Settings) -> kopf.OperatorSettings:
    """Kopf's settings for our operator."""
    theirs = kopf.OperatorSettings()
    _network(theirs, ours)
    _select(theirs, ours)
    theirs.queueing.worker_limit = None  # a limit below the number of objects can deadlock Kopf's start
    theirs.queueing.idle_timeout = 0.1  # a waiting worker holds the object it had; ours are done with it at once
    theirs.scanning.disabled = True  # no watches of CRDs and namespaces, and no rights to them
    theirs.posting.enabled = False  # our Events are our own
    theirs.persistence.finalizer = f"{GROUP}/unused"  # nothing of ours needs one; never Kopf's shared default
    theirs.persistence.diffbase_storage = NoDiffBase()
    theirs.persistence.progress_storage = NoProgress()
    theirs.process.ultimate_exiting_timeout = 2 * STOP_SECONDS  # before the pod's grace period of 30 s ends
    return theirs


def _network(theirs: kopf.OperatorSettings, ours: Settings) -> None:
    theirs.watching.inactivity_timeout = 70  # the API server sends a bookmark every 60 s; silence for longer is death
    theirs.watching.server_timeout = 480  # a bounded stream, whatever else fails
    theirs.watching.client_timeout = 540  # if the server does not close it
    theirs.watching.connect_timeout = 10  # there is no default
    theirs.watching.chunk_size = PAGE_SIZE  # the next page waits for this one: bounds the memory at the start
    theirs.networking.connect_timeout = 10
    theirs.networking.request_timeout = ours.request_seconds
    theirs.networking.error_backoffs = Backoffs()


def _select(theirs: kopf.OperatorSettings, ours: Settings) -> None:
    """Filter on the server: without this, Kopf lists every object of a kind and filters here."""
    for kind in (POD, *CHILDREN):
        theirs.watching.label_selectors[kind.group, kind.version, kind.plural] = SELECTOR
    lease = f"metadata.name={canary.NAME},metadata.namespace={ours.canary_namespace}"
    theirs.watching.field_selectors[LEASE.group, LEASE.version, LEASE.plural] = lease
