"""What the watches and our own writes told of the cluster, as small records: reconciling reads from here alone."""

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from kvloop.api.labels import API_VERSION, KIND, NAME
from kvloop.controller import observe
from kvloop.plan.observed import Child, ChildRef, Pod

Body = Mapping[str, Any]


class Key(NamedTuple):
    """Names a custom resource."""

    namespace: str
    name: str

    @property
    def extra(self) -> dict[str, Any]:
        """For the `extra` of a log call: the object that the line is about, as the log formats know it."""
        reference = {"apiVersion": API_VERSION, "kind": KIND, "namespace": self.namespace, "name": self.name}
        return {"k8s_ref": reference}


@dataclass(frozen=True, slots=True)
class ResourceEntry:
    """A custom resource: JSON of what the planner reads, and of the status apart.

    Entries of all types are equal if nothing of interest differs. (A resource's spec changes with its generation.)
    """

    uid: str
    version: int = field(compare=False)
    generation: int
    deleting: bool
    body: str = field(compare=False)
    status: str
    kind = KIND

    def to_body(self) -> dict[str, Any]:
        """The object, without what only the API server needs, and without its status, which is read apart."""
        body: dict[str, Any] = json.loads(self.body)
        return body

    def to_status(self) -> dict[str, Any]:
        """The status."""
        status: dict[str, Any] = json.loads(self.status)
        return status


@dataclass(frozen=True, slots=True)
class ChildEntry:
    """A child, and what tells whether it still is as we applied it (see `observe`)."""

    child: Child
    version: int = field(compare=False)
    fields: str
    owns_replicas: bool
    edited: bool
    deleting: bool

    @property
    def uid(self) -> str:
        """Of the object."""
        return self.child.uid

    @property
    def kind(self) -> str:
        """Of the object."""
        return self.child.ref.kind


@dataclass(frozen=True, slots=True)
class PodEntry:
    """A pod, and where it answers."""

    pod: Pod
    version: int = field(compare=False)
    address: str

    kind = "Pod"

    @property
    def uid(self) -> str:
        """Of the object."""
        return self.pod.uid


Entry = ResourceEntry | ChildEntry | PodEntry

GONE = 4096
"""How many objects that have gone are remembered; their last events and answers come within seconds."""


class Cache:
    """Entries by custom resource. All methods are cheap and none can fail on a well-formed object."""

    def __init__(self) -> None:
        self._resources: dict[Key, ResourceEntry] = {}
        self._children: dict[Key, dict[ChildRef, ChildEntry]] = {}
        self._pods: dict[Key, dict[str, PodEntry]] = {}
        self._where: dict[str, Key] = {}  # by uid: an object that was relabelled does not tell where it was
        self._told_to_go: set[str] = set()
        self._gone: dict[str, int] = {}
        self._awaited: dict[str, int] = {}
        self._arrived = asyncio.Event()

    def see(self, body: Body) -> set[Key]:
        """Take an object as a watch or an answer shows it; gives its custom resource if anything of interest changed.

        There are two where it was relabelled from one to the other. Answers and watches overtake each other. So
        an older version than the one known, of whichever object of that name, changes nothing; nor does one from before
        the object had gone. A later one has got back the labels that the watches select by.
        """
        uid, version = body["metadata"]["uid"], _version(body)
        self._arrive(body, version)
        if (key := key_of(body)) is None or version <= self._gone.get(uid, -1):
            return set()
        table, name, entry = self._place(key, body)
        former = self._where.get(uid, key)
        elsewhere = self._table(former, entry.kind) if former != key else {}
        known = table.get(name)
        if any(each.version > version for each in (known, elsewhere.get(name)) if each):
            return set()
        if known:
            self._where.pop(known.uid, None)
        table[name], self._where[uid] = entry, key
        self._gone.pop(uid, None)
        if elsewhere:
            return {key, self._drop(former, elsewhere, name)}
        return {key} if known != entry else set()

    def forget(self, body: Body) -> set[Key]:
        """Take an object as gone; gives its custom resource if it was known."""
        uid = body["metadata"]["uid"]
        self._arrive(body, sys.maxsize)
        key = self._where.get(uid)
        self._bury(uid, _version(body))
        if key is None:
            return set()
        return {self._drop(key, self._table(key, body["kind"]), _name(key, body))}

    def resource(self, key: Key) -> ResourceEntry | None:
        """A custom resource."""
        return self._resources.get(key)

    def resources(self) -> tuple[Key, ...]:
        """All custom resources."""
        return tuple(self._resources)

    def children(self, key: Key) -> Mapping[ChildRef, ChildEntry]:
        """Children of a custom resource, by label: not all need be owned by it."""
        return MappingProxyType(self._children.get(key, {}))

    def pods(self, key: Key) -> tuple[PodEntry, ...]:
        """Pods of a custom resource."""
        return tuple(self._pods.get(key, {}).values())

    def mark_deleting(self, key: Key, name: str) -> None:
        """Remember that a pod was told to go, until the watch shows it."""
        table = self._pods.get(key, {})
        if entry := table.get(name):
            self._told_to_go.add(entry.uid)
            table[name] = _going(entry)

    def drop_child(self, key: Key, ref: ChildRef) -> None:
        """Forget a child that is known to be gone."""
        if entry := self._children.get(key, {}).pop(ref, None):
            self._bury(entry.uid, sys.maxsize)

    def versions(self, kind: str) -> dict[str, int]:
        """Version of every known object of a kind, by uid."""
        return {entry.uid: entry.version for _, _, _, entry in self._entries() if entry.kind == kind}

    def drop(self, uids: Iterable[str]) -> set[Key]:
        """Forget objects that are known to be gone; gives their custom resources."""
        gone = set(uids)
        found = [each for each in self._entries() if each[-1].uid in gone]
        for *_, entry in found:
            self._bury(entry.uid, entry.version)
        return {self._drop(key, table, name) for key, table, name, _ in found}

    async def arrival(self, versions: Mapping[str, int], seconds: float) -> bool:
        """Wait until these objects (uids) were seen in these versions or later, or forgotten.

        False if they were not within `seconds`.
        """
        known = {entry.uid: entry.version for _, _, _, entry in self._entries()}
        self._awaited = {uid: version for uid, version in versions.items() if known.get(uid, -1) < version}
        self._arrived.clear()
        if not self._awaited:
            return True
        try:
            await asyncio.wait_for(self._arrived.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def _bury(self, uid: str, version: int) -> None:
        self._where.pop(uid, None)
        self._told_to_go.discard(uid)
        self._gone[uid] = version
        if len(self._gone) > GONE:
            del self._gone[next(iter(self._gone))]

    def _arrive(self, body: Body, version: int) -> None:
        uid = body["metadata"]["uid"]
        if uid in self._awaited and self._awaited[uid] <= version:
            del self._awaited[uid]
            if not self._awaited:
                self._arrived.set()

    def _place(self, key: Key, body: Body) -> tuple[dict[Any, Any], Any, Entry]:
        """The table in which an object belongs, its name there, and its entry."""
        name = _name(key, body)
        if body["kind"] == KIND:
            return self._resources, name, _resource_entry(body)
        if body["kind"] == "Pod":
            address = (body.get("status") or {}).get("podIP", "")
            entry = PodEntry(observe.pod(body), _version(body), address)
            told = entry.uid in self._told_to_go
            return self._pods.setdefault(key, {}), name, _going(entry) if told else entry
        return self._children.setdefault(key, {}), name, child_entry(body)

    def _table(self, key: Key, kind: str) -> dict[Any, Any]:
        """Where objects of a kind are that are known as of that custom resource, or are it."""
        if kind == KIND:
            return self._resources
        return (self._pods if kind == "Pod" else self._children)[key]

    def _entries(self) -> Iterator[tuple[Key, dict[Any, Any], Any, Entry]]:
        """Every entry, with its resource, and the table and the name in it where it is."""
        yield from ((key, self._resources, key, entry) for key, entry in self._resources.items())
        groups: tuple[dict[Key, Any], ...] = (self._children, self._pods)
        for key, table in (item for group in groups for item in group.items()):
            yield from ((key, table, name, entry) for name, entry in table.items())

    def _drop(self, key: Key, table: dict[Any, Any], name: Any) -> Key:
        del table[name]
        groups: tuple[dict[Key, Any], ...] = (self._children, self._pods)
        for group in groups:
            if not group.get(key, True):
                del group[key]
        return key


def key_of(body: Body) -> Key | None:
    """The custom resource that an object is or belongs to, None if it does not say."""
    meta = body["metadata"]
    name = meta["name"] if body["kind"] == KIND else (meta.get("labels") or {}).get(NAME)
    return Key(meta["namespace"], name) if name else None


def _name(key: Key, body: Body) -> Any:
    """How an object is called in its table."""
    name = body["metadata"]["name"]
    return key if body["kind"] == KIND else name if body["kind"] == "Pod" else ChildRef(body["kind"], name)


def child_entry(body: Body) -> ChildEntry:
    """Entry of a child."""
    return ChildEntry(
        child=observe.child(body),
        version=_version(body),
        fields=observe.owned_fields(body),
        owns_replicas=observe.owns_replicas(body),
        edited=observe.edited_after_us(body),
        deleting="deletionTimestamp" in body["metadata"],
    )


def _going(entry: PodEntry) -> PodEntry:
    return replace(entry, pod=replace(entry.pod, deleting=True))


def _version(body: Body) -> int:
    """Clients may compare resourceVersions as numbers since Kubernetes 1.35; they have always been etcd's revisions."""
    return int(body["metadata"].get("resourceVersion") or 0)


def _resource_entry(body: Body) -> ResourceEntry:
    meta = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    kept = {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": meta, "spec": body.get("spec") or {}}
    return ResourceEntry(
        uid=meta["uid"],
        version=_version(body),
        generation=meta.get("generation", 0),
        deleting="deletionTimestamp" in meta,
        body=json.dumps(kept),
        status=json.dumps(body.get("status") or {}),
    )
