"""Watches lag behind answers, each by its own, and answers overtake them: whatever the order, all is made once."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvloop.api.labels import KIND
from kvloop.controller.apply import Applier, Outcome
from kvloop.controller.audit import Audit
from kvloop.controller.cache import Cache
from kvloop.kube.kinds import KINDS

from .doubles import KEY, OWNER, Body, Clock, MemoryKube, owned, resource

CHILDREN = (("Service", "chat"), ("ConfigMap", "chat-router"))
Ref = tuple[str, str]
Step = tuple[str, Ref]


class Api(MemoryKube):
    """An API server whose watches are read when the test says so, even while a write is under way."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self.watches: dict[str, list[tuple[str, Body]]] = {"Service": [], "ConfigMap": []}
        self._meanwhile = meanwhile

    def put(self, body: Body, *, manager: str = "kvloop") -> Body:
        """Apply; what others own stays, and what changes nothing makes no version and no event."""
        ref = (body["kind"], body["metadata"]["name"])
        before, version = self.objects.get(ref), self.version
        stored = super().put(body, manager=manager)
        if before:
            stored["metadata"]["managedFields"] += before["metadata"]["managedFields"][1:]
            stored["spec"] = before["spec"] | stored["spec"]
        if before and _content(before) == _content(stored):
            self.version = version
            self.objects[ref] = before
        else:
            self.tell("ADDED" if before is None else "MODIFIED", ref)
        return self.objects[ref]

    def tell(self, what: str, ref: Ref) -> None:
        if ref[0] in self.watches:
            self.watches[ref[0]].append((what, self.objects[ref]))

    async def apply(self, body: Body, *, new: bool = False) -> Body:
        answer = await super().apply(body, new=new)
        self._meanwhile()
        return answer


def _content(body: Body) -> Body:
    meta = {name: value for name, value in body["metadata"].items() if name != "resourceVersion"}
    return body | {"metadata": meta}


@dataclass
class World:
    """The applier, its cache and the API server. `causes` counts what calls for a write, each for one."""

    meanwhile: list[list[Step]]
    """What happens between a write and its answer."""
    clock: Clock = field(default_factory=Clock)
    revision: int = 1
    causes: int = len(CHILDREN)
    lost: bool = False

    def __post_init__(self) -> None:
        self.cache = Cache()
        self.api = Api(self._meanwhile)
        self.applier = Applier(self.api, self.cache, self.clock)
        self.audit = self._audit()
        self.api.objects[KIND, KEY.name] = resource()

    def _audit(self) -> Audit:
        return Audit(self.api, self.cache, (KINDS["Service"], KINDS["ConfigMap"]), (), lambda _: None)

    @property
    def wanted(self) -> list[Body]:
        return [owned(kind, name, {"ours": 1, "revision": self.revision}) for kind, name in CHILDREN]

    def _meanwhile(self) -> None:
        for name, ref in self.meanwhile.pop(0) if self.meanwhile else ():
            getattr(self, name)(ref)

    # What happens.

    def hear(self, ref: Ref) -> None:
        """The watch of a kind brings its next event."""
        if events := self.api.watches[ref[0]]:
            what, body = events.pop(0)
            (self.cache.forget if what == "DELETED" else self.cache.see)(body)

    def reconnect(self, ref: Ref) -> None:
        """The watch of a kind begins anew: what is there is told, and what has gone since is not."""
        self.lost |= bool(self.api.watches[ref[0]])
        self.api.watches[ref[0]].clear()
        for (kind, _), body in self.api.objects.items():
            if kind == ref[0]:
                self.cache.see(body)

    def restart(self, _: Ref) -> None:
        """The operator begins anew, with what is there."""
        self.cache = Cache()
        self.applier = Applier(self.api, self.cache, self.clock)
        self.audit = self._audit()
        for ref in CHILDREN:
            self.reconnect(ref)
        self.lost = False

    def edit(self, ref: Ref) -> None:
        """Somebody changes what is ours."""
        if ref in self.api.objects and "f:ours" in self._ours(ref):
            self._store(ref, {"f:revision": {}}, {"ours": 2})
            self.causes += 1

    def touch(self, ref: Ref) -> None:
        """Somebody changes what is not ours."""
        if ref in self.api.objects:
            self._store(ref, self._ours(ref), {"theirs": self.api.version})

    def delete(self, ref: Ref) -> None:
        """Somebody deletes a child."""
        if ref in self.api.objects:
            self.api.version += 1
            body = self.api.objects[ref]
            body = body | {"metadata": body["metadata"] | {"resourceVersion": str(self.api.version)}}
            self.api.objects[ref] = body
            self.api.tell("DELETED", ref)
            del self.api.objects[ref]
            self.causes += 1

    def replace(self, ref: Ref) -> None:
        """Somebody deletes a child and restores it from a backup: one try finds it there, another makes sure."""
        if body := self.api.objects.get(ref):
            self.delete(ref)
            self.api.version += 1
            meta = {"uid": f"uid-{self.api.version}", "resourceVersion": str(self.api.version)}
            self.api.objects[ref] = body | {"metadata": body["metadata"] | meta}
            self.api.tell("ADDED", ref)
            self.causes += 1

    def change(self, _: Ref) -> None:
        """Another plan."""
        self.revision += 1
        self.causes += len(CHILDREN)

    async def compare(self) -> None:
        """The audit looks at what is there."""
        await self.audit.compare()

    async def work(self) -> None:
        """A pass."""
        await self.applier.apply(KEY, OWNER, self.wanted, Outcome())

    def _ours(self, ref: Ref) -> dict[str, Any]:
        entry = self.api.objects[ref]["metadata"]["managedFields"][0]
        found: dict[str, Any] = entry["fieldsV1"]["f:spec"]
        return found

    def _store(self, ref: Ref, ours: dict[str, Any], spec: Body) -> None:
        body = self.api.objects[ref]
        self.api.version += 1
        entry = body["metadata"]["managedFields"][0]
        managers = [entry | {"fieldsV1": {"f:spec": ours}}, entry | {"manager": "kubectl", "operation": "Update"}]
        meta = {"resourceVersion": str(self.api.version), "managedFields": managers}
        self.api.objects[ref] = body | {"metadata": body["metadata"] | meta, "spec": body["spec"] | spec}
        self.api.tell("MODIFIED", ref)

    async def settle(self) -> None:
        """All watches bring what they have, the audit finds what they lost, and nobody interferes any more."""
        for _ in range(10):
            for ref in CHILDREN:
                while self.api.watches[ref[0]]:
                    self.hear(ref)
            if self.lost:
                await self.compare()
            await self.work()
            self.clock.now += 1000

    def writes(self) -> int:
        return len(self.api.writes())


def steps(*names: str, most: int) -> st.SearchStrategy[list[Step]]:
    return st.lists(st.tuples(st.sampled_from(names), st.sampled_from(CHILDREN)), max_size=most)


def on_service(*names: str) -> list[Step]:
    return [(name, CHILDREN[0]) for name in names]


async def play(plan: list[Step], meanwhile: list[list[Step]]) -> None:
    world = World(meanwhile)
    for name, ref in plan:
        if name in {"work", "compare"}:
            await getattr(world, name)()
        else:
            getattr(world, name)(ref)
        world.clock.now += 1000  # past what holds back repairs
    world.meanwhile.clear()
    await world.settle()
    for ref, body in zip(CHILDREN, world.wanted, strict=True):
        assert body["spec"].items() <= world.api.objects[ref]["spec"].items()
        assert set(world._ours(ref)) == {"f:ours", "f:revision"}
    assert world.writes() <= world.causes
    await world.settle()
    assert world.writes() == 0


@given(
    steps(
        *("work", "work", "hear", "hear", "reconnect", "compare"),
        *("edit", "touch", "delete", "replace", "change", "restart"),
        most=25,
    ),
    st.lists(steps("hear", "edit", "touch", "delete", "replace", most=3), max_size=8),
)
@settings(max_examples=400)
@example(on_service("work"), [on_service("hear", "edit", "hear")])  # an edit is heard of before the answer comes
@example(on_service("work"), [on_service("hear", "delete", "hear")])  # and an end, too
def test_all_is_made_and_nothing_is_written_without_a_cause(plan: list[Step], meanwhile: list[list[Step]]) -> None:
    asyncio.run(play(plan, meanwhile))
