"""The rollout against simulated StatefulSet controllers: any mix of sizes, edits, failures and delays.

`StatefulSetSim` does what the StatefulSet controller of Kubernetes does with Parallel pods and a partition (sync of
pkg/controller/statefulset/stateful_set_control.go): it makes what is missing, takes what is beyond, and replaces one
outdated pod at a time from the highest ordinal, waiting for each to become ready.
"""

from dataclasses import dataclass, field
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from kvloop.api.labels import Role
from kvloop.plan.rollout import Engine, Rollout, Side, Sides, step

ROLES = (Role.PREFILL, Role.DECODE)
GOOD, BAD = "good", "bad"


@dataclass(frozen=True)
class Template:
    """`kind` tells whether engines made of it become ready; equal `revision`s exchange KV."""

    number: int
    revision: str
    kind: str = GOOD


@dataclass
class Pod:
    template: Template
    state: str = "loading"

    @property
    def ready(self) -> bool:
        return self.state == "ready"


@dataclass
class StatefulSetSim:
    replicas: int
    max_unavailable: int
    template: Template
    current: Template
    partition: int = 0
    pods: dict[int, Pod] = field(default_factory=dict)
    seen: tuple[Template, int] | None = None
    """Template and partition that the controller works by."""

    def sync(self, *, fresh: bool = True) -> None:
        """Work by what the controller sees now, or has seen before."""
        if fresh or self.seen is None:
            self.seen = (self.template, self.partition)
        template, partition = self.seen
        for ordinal in range(self.replicas):
            if ordinal not in self.pods:
                self.pods[ordinal] = Pod(self.current if ordinal < partition else template)
        self.pods = {ordinal: pod for ordinal, pod in self.pods.items() if ordinal < self.replicas}
        if all(pod.template == template and pod.ready for pod in self.pods.values()):
            self.current = template
        for ordinal in range(self.replicas - 1, partition - 1, -1):
            if self.pods[ordinal].template != template:
                del self.pods[ordinal]
                return
            if not self.pods[ordinal].ready:
                return

    def load(self, ordinal: int) -> None:
        """What was loading either becomes ready or fails."""
        pod = self.pods[ordinal]
        if pod.state == "loading":
            pod.state = "ready" if pod.template.kind == GOOD else "failing"

    def side(self) -> Side:
        engines = {
            ordinal: Engine(
                pod.template.revision,
                updated=pod.template == self.template,
                ready=pod.ready,
                base=pod.template == self.current,
                started=pod.state in {"ready", "blip"},
                failing=pod.state == "failing",
            )
            for ordinal, pod in self.pods.items()
        }
        opened = self.partition if self.seen == (self.template, self.partition) else self.replicas
        return Side(self.replicas, self.max_unavailable, self.template.revision, engines, opened)

    @property
    def ready(self) -> int:
        return sum(pod.ready for pod in self.pods.values())

    @property
    def floor(self) -> int:
        return max(0, self.replicas - self.max_unavailable)


class World:
    """Both StatefulSets and the operator."""

    def __init__(self, replicas: tuple[int, int], max_unavailable: tuple[int, int]) -> None:
        first = Template(0, "0")
        self.sets = {
            role: StatefulSetSim(n, m, first, first, pods={ordinal: Pod(first, "ready") for ordinal in range(n)})
            for role, n, m in zip(ROLES, replicas, max_unavailable, strict=True)
        }
        self.last: Rollout | None = None

    def sides(self) -> Sides:
        return {role: one.side() for role, one in self.sets.items()}

    def operate(self) -> Rollout:
        """One pass of the operator; by itself it must never plan to go below the floor."""
        self.last = step(self.sides())
        for role, partition in self.last.partitions.items():
            one = self.sets[role]
            one.partition = partition
            ready = [pod for o, pod in one.pods.items() if o >= partition and o < one.replicas and pod.ready]
            planned = sum(pod.template != one.template for pod in ready)
            kept = sum(pod.ready for o, pod in one.pods.items() if o < one.replicas)
            assert planned == 0 or kept - planned >= one.floor
        for role, ordinal in self.last.delete:
            assert not self.sets[role].pods[ordinal].ready or self.sets[role].max_unavailable > 1
            del self.sets[role].pods[ordinal]
        return self.last

    def edit(self, template: Template) -> None:
        for one in self.sets.values():
            one.template = template

    def pairs(self) -> set[str]:
        """Revisions that serve."""
        ready = [{pod.template.revision for pod in one.pods.values() if pod.ready} for one in self.sets.values()]
        return set.intersection(*ready)

    def settle(self) -> bool:
        """Everybody does their work until nothing changes; True when the rollout is done."""
        for _ in range(40 * sum(one.replicas + 1 for one in self.sets.values())):
            before = [
                (one.partition, {o: (p.template, p.state) for o, p in one.pods.items()}) for one in self.sets.values()
            ]
            self.operate()
            for one in self.sets.values():
                one.sync()
                for ordinal in one.pods:
                    one.load(ordinal)
            after = [
                (one.partition, {o: (p.template, p.state) for o, p in one.pods.items()}) for one in self.sets.values()
            ]
            if before == after:
                break
        return step(self.sides()).done


SIZES = st.tuples(st.integers(0, 6), st.integers(0, 6))
ALLOWANCES = st.tuples(st.integers(1, 3), st.integers(1, 3))


class AnythingGoes(RuleBasedStateMachine):
    """Edits, scaling, evictions, engines that come and go, controllers that lag: in any order."""

    @initialize(replicas=SIZES, max_unavailable=ALLOWANCES)
    def start(self, replicas: tuple[int, int], max_unavailable: tuple[int, int]) -> None:
        self.world = World(replicas, max_unavailable)
        self.templates = [Template(0, "0")]

    @rule()
    def operate(self) -> None:
        self.world.operate()

    @rule(role=st.sampled_from(ROLES), fresh=st.booleans())
    def sync(self, role: Role, fresh: bool) -> None:
        self.world.sets[role].sync(fresh=fresh)

    @rule(role=st.sampled_from(ROLES), pick=st.integers(0, 5))
    def load(self, role: Role, pick: int) -> None:
        if pods := sorted(self.world.sets[role].pods):
            self.world.sets[role].load(pods[pick % len(pods)])

    @rule(kind=st.sampled_from([GOOD, BAD]), same_revision=st.booleans())
    def edit(self, kind: str, same_revision: bool) -> None:
        number = len(self.templates)
        self.templates.append(Template(number, self.templates[-1].revision if same_revision else str(number), kind))
        self.world.edit(self.templates[-1])
        self.world.operate()  # one apply carries the new template together with its partition

    @rule(pick=st.integers(0, 5))
    def edit_back(self, pick: int) -> None:
        self.world.edit(self.templates[pick % len(self.templates)])
        self.world.operate()

    @rule(role=st.sampled_from(ROLES), replicas=st.integers(0, 6))
    def scale(self, role: Role, replicas: int) -> None:
        self.world.sets[role].replicas = replicas

    @rule(role=st.sampled_from(ROLES), allowed=st.integers(1, 3))
    def allow(self, role: Role, allowed: int) -> None:
        self.world.sets[role].max_unavailable = allowed

    @rule(role=st.sampled_from(ROLES), pick=st.integers(0, 5))
    def evict(self, role: Role, pick: int) -> None:
        if pods := sorted(self.world.sets[role].pods):
            del self.world.sets[role].pods[pods[pick % len(pods)]]

    @rule(role=st.sampled_from(ROLES), pick=st.integers(0, 5), state=st.sampled_from(["blip", "loading", "failing"]))
    def disturb(self, role: Role, pick: int, state: str) -> None:
        ready = sorted(ordinal for ordinal, pod in self.world.sets[role].pods.items() if pod.ready)
        if ready:
            self.world.sets[role].pods[ready[pick % len(ready)]].state = state

    def teardown(self) -> None:
        """Once the newest template is good and every pod comes up, the rollout ends."""
        if not hasattr(self, "world"):
            return
        self.world.edit(Template(len(self.templates), "last"))
        for one in self.world.sets.values():
            for pod in one.pods.values():
                if pod.state == "blip" or (pod.state == "failing" and pod.template.kind == GOOD):
                    pod.state = "ready"
        assert self.world.settle()
        for one in self.world.sets.values():
            assert one.partition == 0
            assert sorted(one.pods) == list(range(one.replicas))
            assert all(pod.template == one.template and pod.ready for pod in one.pods.values())


AnythingGoes.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestAnythingGoes = AnythingGoes.TestCase


class Order:
    """Who acts next, drawn by hypothesis, until all have nothing left to do."""

    ACTS = ("operate", "sync", "lag", "load")

    def __init__(self, data: st.DataObject, world: World) -> None:
        self.data, self.world = data, world

    def act(self) -> None:
        act = self.data.draw(st.sampled_from(self.ACTS))
        if act == "operate":
            self.world.operate()
            return
        one = self.world.sets[self.data.draw(st.sampled_from(ROLES))]
        if act in {"sync", "lag"}:
            one.sync(fresh=act == "sync")
        elif one.pods:
            one.load(self.data.draw(st.sampled_from(sorted(one.pods))))


@settings(max_examples=60)
@given(st.data(), SIZES, ALLOWANCES)
def test_edits_alone_never_bring_it_below_the_floor(
    data: st.DataObject, replicas: tuple[int, int], allowed: tuple[int, int]
) -> None:
    """Whatever is edited, and whether or not it works: without outside trouble the floor holds at every moment."""
    world = World(replicas, allowed)
    order = Order(data, world)
    for number in range(1, data.draw(st.integers(2, 5))):
        world.edit(Template(number, str(number), data.draw(st.sampled_from([GOOD, BAD]))))
        world.operate()
        for _ in range(data.draw(st.integers(0, 30))):
            order.act()
            for one in world.sets.values():
                assert one.ready >= one.floor


@settings(max_examples=60)
@given(st.data(), st.tuples(st.integers(2, 6), st.integers(2, 6)), st.sampled_from([GOOD, BAD]))
def test_a_pair_serves_and_the_ratio_holds_throughout(
    data: st.DataObject, replicas: tuple[int, int], kind: str
) -> None:
    allowed = (data.draw(st.integers(1, replicas[0] - 1)), data.draw(st.integers(1, replicas[1] - 1)))
    # When some fail, what is in flight on the other side comes back as it was.
    in_flight = [Fraction(m, n) for m, n in zip(allowed, replicas, strict=True)] if kind == BAD else []
    bound = max([Fraction(1, min(replicas)), *in_flight])
    world = World(replicas, allowed)
    order = Order(data, world)
    world.edit(Template(1, "1", kind))
    world.operate()
    for _ in range(data.draw(st.integers(0, 80))):
        order.act()
        assert world.pairs()
        shares = [Fraction(one.partition, one.replicas) for one in world.sets.values()]
        assert abs(shares[0] - shares[1]) <= bound
    assert world.settle() == (kind == GOOD)
    assert world.pairs() == ({"1"} if kind == GOOD else {"0"})


@settings(max_examples=60)
@given(st.data(), SIZES.filter(lambda sizes: min(sizes) > 0), ALLOWANCES)
def test_a_bad_edit_stops_and_a_good_one_heals(
    data: st.DataObject, replicas: tuple[int, int], allowed: tuple[int, int]
) -> None:
    """Row 9 of the list of faults: no pod of a superseded revision is left, and none has to be deleted by hand."""
    world = World(replicas, allowed)
    order = Order(data, world)
    world.edit(Template(1, "1", BAD))
    world.operate()
    for _ in range(data.draw(st.integers(0, 30))):
        order.act()
    assert not world.settle()
    for one in world.sets.values():
        assert sum(pod.template.number == 1 for pod in one.pods.values()) <= one.max_unavailable
    world.edit(data.draw(st.sampled_from([Template(0, "0"), Template(2, "2")])))
    assert world.settle()
