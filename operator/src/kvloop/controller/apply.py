"""Make the children what they should be, with as few writes as that takes, and tell what was refused."""

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from kvloop.api.labels import APPLIED_HASH, KIND, Reason
from kvloop.controller import observe
from kvloop.controller.cache import Cache, ChildEntry, Key, child_entry, key_of
from kvloop.controller.queue import Backoff
from kvloop.controller.settings import (
    BACKOFF_FIRST_SECONDS,
    BACKOFF_LIMIT_SECONDS,
    NAME_CONFLICT_RECHECK_SECONDS,
    REJECTION_SECONDS,
)
from kvloop.kube.client import Body, KubeClient
from kvloop.kube.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    KubeError,
    NotFoundError,
    UnavailableError,
)
from kvloop.plan.observed import ApplyFailure, ChildRef

log = logging.getLogger(__name__)

_WITH_PODS = frozenset({"StatefulSet", "Deployment"})
_TAKEN = "{ref.kind} {ref.name} exists and is not of this resource: delete it, or rename the resource"
_FORMER = "{ref.kind} {ref.name} is of a former resource of this name, and about to go with it"
_REPAIRS = Backoff(BACKOFF_FIRST_SECONDS, BACKOFF_LIMIT_SECONDS)


class NameTakenError(KubeError):
    """The child's name belongs to an object of somebody else, which is left alone."""


class FormerError(KubeError):
    """The child's name belongs to a deleted resource of the same name, until the garbage collector takes it."""


@dataclass(slots=True)
class Record:
    """What became of a child when it was last applied.

    `uid` is of the object that was there before, if any. `fields` is as `observe.owned_fields` has it after the apply.
    Before `until` the same is not sent again: a refusal is believed, or a repair would come too soon. `repairs` counts
    the applies in a row that only undid what somebody else did.
    """

    digest: str
    uid: str
    fields: str = ""
    failure: ApplyFailure | None = None
    until: float = 0.0
    repairs: int = 0


@dataclass
class Outcome:
    """What a pass over the children came to.

    `recheck` is in how many seconds to look again without an event, None if there is no need; `retry` is true if
    something failed that may pass when it is tried again.
    """

    applied: list[ChildRef] = field(default_factory=list)
    failures: list[ApplyFailure] = field(default_factory=list)
    retry: bool = False
    recheck: float | None = None

    def look_again(self, seconds: float) -> None:
        """Look again in `seconds` at the latest."""
        self.recheck = min(seconds, self.recheck) if self.recheck is not None else seconds

    def refused(self, failure: ApplyFailure) -> None:
        """The API server refused something."""
        self.failures.append(failure)
        self.retry |= not failure.terminal


class Applier:
    """Applies children through `kube`, and remembers of each what it last sent and what came of it."""

    def __init__(self, kube: KubeClient, cache: Cache, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._cache = cache
        self._clock = clock
        self._records: dict[Key, dict[ChildRef, Record]] = {}

    async def apply(
        self, key: Key, owner: str, children: Iterable[Body], outcome: Outcome, keep: Container[ChildRef] = ()
    ) -> None:
        """Apply the children of the resource with the uid `owner`, in order, and delete what else it owns but `keep`.

        A child that is refused does not hold up the others.

        Raises:
            UnavailableError: the API server takes no requests now.
        """
        wanted = {ChildRef(body["kind"], body["metadata"]["name"]): body for body in children}
        owned = {ref for ref, entry in self._cache.children(key).items() if entry.child.owner_uid == owner}
        if wanted.keys() - owned and not await self._lives(key, owner):
            return
        try:
            for ref, body in wanted.items():
                await self._child(key, ref, owner, body, outcome)
        finally:
            if outcome.applied:
                log.info("applied %s", ", ".join(f"{ref.kind} {ref.name}" for ref in outcome.applied), extra=key.extra)
        for ref, entry in tuple(self._cache.children(key).items()):
            if ref not in wanted and ref not in keep and entry.child.owner_uid == owner and not entry.deleting:
                await self._prune(key, ref, entry, outcome)

    def forget(self, key: Key) -> None:
        """Forget a resource that is gone."""
        self._records.pop(key, None)

    async def _lives(self, key: Key, owner: str) -> bool:
        """Whether the resource is there and to stay.

        Asked before a child is made or taken over: the watch of the children may tell that the garbage collector has
        taken or orphaned one before the watch of the resource tells why.
        """
        try:
            live = await self._kube.get(KIND, key.namespace, key.name)
        except NotFoundError:
            return False
        return bool(live["metadata"]["uid"] == owner and "deletionTimestamp" not in live["metadata"])

    async def _child(self, key: Key, ref: ChildRef, owner: str, body: Body, outcome: Outcome) -> None:
        digest = digest_of(body)
        records = self._records.setdefault(key, {})
        record = records.get(ref)
        entry = self._cache.children(key).get(ref)
        if entry and record is None and entry.child.applied_hash == digest and await self._stands(key, entry, body):
            records[ref] = record = Record(digest, entry.uid, entry.fields)
        if record and record.digest == digest and self._wait(record, entry, outcome):
            return
        uid = entry.uid if entry else ""
        try:
            fields = await self._send(key, ref, owner, _stamped(body, digest))
        except UnavailableError:
            raise
        except KubeError as error:
            failure = await self._explained(key, body, failure_of(ref, error), error)
            records[ref] = Record(digest, uid, failure=failure, until=self._clock() + _belief(failure))
            self._report(records[ref], outcome)
            log.warning("%s %s was refused: %s", ref.kind, ref.name, failure.message, extra=key.extra)
        else:
            records[ref] = self._applied(record, digest, uid, fields)
            outcome.applied.append(ref)

    async def _stands(self, key: Key, entry: ChildEntry, body: Body) -> bool:
        """Whether a child that was applied before this process began is still as it was then.

        Others may have edited what is not ours, as the controllers of cloud providers do: then the object tells.
        """
        if not entry.edited:
            return True
        try:
            live = await self._kube.get(entry.kind, key.namespace, entry.child.ref.name)
        except NotFoundError:
            return False
        return covers(live, body)

    def _wait(self, record: Record, entry: ChildEntry | None, outcome: Outcome) -> bool:
        """Whether what was sent last is not to be sent again now."""
        now = self._clock()
        if record.failure:
            believed = now < record.until and record.uid == (entry.uid if entry else "")
            if believed:
                self._report(record, outcome)
            return believed
        if entry and entry.child.applied_hash == record.digest and entry.fields == record.fields:
            return True
        if now < record.until:
            outcome.look_again(record.until - now)
        return now < record.until

    def _applied(self, before: Record | None, digest: str, uid: str, fields: str) -> Record:
        now = self._clock()
        if before is None or before.failure or before.digest != digest:
            return Record(digest, uid, fields)
        repairs = before.repairs + 1 if now < before.until + REJECTION_SECONDS else 1
        return Record(digest, uid, fields, until=now + _REPAIRS.delay(repairs), repairs=repairs)

    def _report(self, record: Record, outcome: Outcome) -> None:
        if record.failure:
            outcome.refused(record.failure)
            if record.failure.reason == Reason.NAME_CONFLICT:
                outcome.look_again(max(1, record.until - self._clock()))

    async def _send(self, key: Key, ref: ChildRef, owner: str, body: Body) -> str:
        """Apply a child, unless its name is taken; gives the fields that are ours then."""
        entry = self._cache.children(key).get(ref)
        if entry is None:
            try:
                return self._seen(await self._kube.apply(body, new=True))
            except ConflictError:
                live = await self._kube.get(ref.kind, key.namespace, ref.name)
                if not _ours(live, key, owner):
                    raise _taken(live, ref, key) from None
                entry = child_entry(live)
        if entry.child.owner_uid not in {owner, None}:
            raise _taken(await self._kube.get(ref.kind, key.namespace, ref.name), ref, key)
        await self._release_replicas(ref, entry, body)
        return self._seen(await self._kube.apply(body))

    async def _explained(self, key: Key, body: Body, failure: ApplyFailure, error: KubeError) -> ApplyFailure:
        """The failure, with the names of immutable fields where the API server names the others only."""
        allowed = set(re.findall(r"'(\w+)'", error.message))
        if failure.reason != Reason.IMMUTABLE_FIELD or not allowed:
            return failure
        live = await self._kube.get(failure.ref.kind, key.namespace, failure.ref.name)
        fields = [
            f"spec.{name}"
            for name, value in body["spec"].items()
            if name not in allowed and not covers(live["spec"].get(name), value)
        ]
        where = ", ".join(fields) or "spec"
        return replace(
            failure,
            message=f"{failure.ref.kind} {failure.ref.name}: {where} cannot be changed: undo the change, or delete the"
            f" {failure.ref.kind}, which is then made anew",
        )

    async def _release_replicas(self, ref: ChildRef, entry: ChildEntry, body: Body) -> None:
        """Before the replica count is left to others: own it another way, or its removal would reset it to 1."""
        if entry.owns_replicas and entry.child.workload and "replicas" not in body["spec"]:
            replicas = entry.child.workload.replicas
            await self._kube.apply_scale(ref.kind, body["metadata"]["namespace"], ref.name, replicas)

    def _seen(self, answer: Body) -> str:
        """Not the fields that the cache knows: a watch may have told of a later edit already."""
        self._cache.see(answer)
        return observe.owned_fields(answer)

    async def _prune(self, key: Key, ref: ChildRef, entry: ChildEntry, outcome: Outcome) -> None:
        try:
            await self._kube.delete(ref.kind, key.namespace, ref.name, entry.uid)
        except UnavailableError:
            raise
        except (NotFoundError, ConflictError):
            pass  # gone already, or another object by now, which an event will tell
        except KubeError as error:
            self._report(Record("", entry.uid, failure=failure_of(ref, error)), outcome)
            return
        self._cache.drop_child(key, ref)
        self._records.get(key, {}).pop(ref, None)
        log.info("deleted %s %s", ref.kind, ref.name, extra=key.extra)


def digest_of(body: Body) -> str:
    """Digest of a child as it is sent."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def covers(live: Any, sent: Any) -> bool:
    """Whether an object holds all that was sent; the API server adds defaults to it."""
    if isinstance(sent, dict):
        return isinstance(live, dict) and all(covers(live.get(name), value) for name, value in sent.items())
    if isinstance(sent, list):
        return isinstance(live, list) and len(live) == len(sent) and all(map(covers, live, sent))
    return bool(live == sent)


def _ours(live: Body, key: Key, owner: str) -> bool:
    """Whether an object is of this resource, or was of one of its name and is nobody's now."""
    found = observe.child(live).owner_uid
    return found == owner or (found is None and key_of(live) == key)


def _taken(live: Body, ref: ChildRef, key: Key) -> KubeError:
    """Why a child that is there cannot be ours."""
    owners = live["metadata"].get("ownerReferences") or ()
    if any(each.get("controller") and (each["kind"], each["name"]) == (KIND, key.name) for each in owners):
        return FormerError(_FORMER.format(ref=ref))
    return NameTakenError(_TAKEN.format(ref=ref))


def _stamped(body: Body, digest: str) -> Body:
    meta = body["metadata"]
    return body | {"metadata": meta | {"annotations": meta.get("annotations", {}) | {APPLIED_HASH: digest}}}


def _belief(failure: ApplyFailure) -> float:
    """How long a refusal is believed if nothing changes, in seconds."""
    if failure.reason == Reason.NAME_CONFLICT:
        return NAME_CONFLICT_RECHECK_SECONDS
    return REJECTION_SECONDS if failure.terminal else 0


def failure_of(ref: ChildRef, error: KubeError) -> ApplyFailure:
    """What a refusal means for the resource."""
    message = f"{ref.kind} {ref.name}: {error.message}"
    match error:
        case FormerError():
            return ApplyFailure(ref, Reason.PROGRESSING, error.message)
        case NameTakenError():
            return ApplyFailure(ref, Reason.NAME_CONFLICT, error.message, terminal=True)
        case InvalidError(immutable=True):
            return ApplyFailure(ref, Reason.IMMUTABLE_FIELD, message, terminal=True)
        case InvalidError():
            reason = Reason.INVALID_POD_TEMPLATE if ref.kind in _WITH_PODS else Reason.APPLY_FAILED
            return ApplyFailure(ref, reason, message, terminal=True)
        case ForbiddenError(by_admission=True):
            return ApplyFailure(ref, Reason.ADMISSION_REFUSED, message)
        case _:
            return ApplyFailure(ref, Reason.APPLY_FAILED, message)
