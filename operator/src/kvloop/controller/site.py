"""One custom resource as its routers and engines count it."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kvloop.api.contract import ReuseCounters, ReuseSummary
from kvloop.api.counters import Flat, difference, flat, nested
from kvloop.api.labels import Role
from kvloop.controller.exposition import Exposition
from kvloop.controller.ledger import Ledger, Reading
from kvloop.controller.settings import SCRAPE_MISSES
from kvloop.controller.usual import Averaged
from kvloop.plan.measured import Engine, EngineCounters, Measured

_LARGE = frozenset({"first_token", "gaps", "prefill_legs", "fetch_legs", "tasks"})
"""Counters that are not held beside the engines'."""
MINUTE: Final = 60.0
"""A shorter window does not tell how busy it is."""


@dataclass
class Site:
    """Ledgers, and the last answers of pods by uid."""

    uid: str
    """Of the custom resource; another one of the same name has another site."""
    window_seconds: float
    clock: Callable[[], float]
    fresh: bool
    """Whether all pods were younger than the window at first: then all that they have counted is counted. Otherwise, in
    routers and engines alike, what comes from then on, since their counters are held beside each other."""
    pause: int = 1
    """Rounds from one read to the next: more while nothing changes."""
    rounds: int = 0
    """In which a router answered."""
    misses: int = 0
    """Rounds since then in which none did."""
    engines: dict[str, Engine] = field(default_factory=dict)
    pinned: dict[str, int] = field(default_factory=dict)
    """Tokens that decode holds, as each router knows."""

    def __post_init__(self) -> None:
        self.routers, self.beside = self._ledger(), self._ledger()
        self.counters = {role: self._ledger() for role in Role}
        self.began = self.clock()
        self._busiest = 0.0
        self._averaged = Averaged(self.clock)
        self._known: frozenset[str] = frozenset()

    def _ledger(self) -> Ledger:
        return Ledger(self.window_seconds, self.clock)

    def keep(self, routers: Collection[str], engines: Collection[str]) -> None:
        """These pods are there now."""
        pods = frozenset([*routers, *engines])
        if pods == self._known:
            return
        self._known, self.pause = pods, 1
        for ledger in (self.routers, self.beside):
            ledger.keep(routers)
        for ledger in self.counters.values():
            ledger.keep(engines)
        self.pinned = {uid: tokens for uid, tokens in self.pinned.items() if uid in pods}
        self.engines = {uid: engine for uid, engine in self.engines.items() if uid in pods}

    def hear_router(self, uid: str, summary: ReuseSummary, *, young: bool) -> None:
        """Take a router's answer; what has come before it was first heard is in the window that it keeps itself."""
        reading = Reading(str(summary.since), flat(summary.counters.model_dump()))
        earlier: Flat = {}
        if not self.routers.knows(uid):
            window = flat(summary.window.model_dump())
            earlier = difference(reading.numbers, window)
            if not self.rounds and not self.pinned:
                self.routers.reach_back(summary.window_seconds, window)
                earlier = reading.numbers
        self.routers.read(uid, reading, earlier)
        short = Reading(reading.boot, {path: n for path, n in reading.numbers.items() if path[0] not in _LARGE})
        self.beside.read(uid, short, {} if self._whole(young) else short.numbers)
        self.pinned[uid] = sum(engine.pinned_tokens for engine in summary.engines)

    def hear_engine(self, uid: str, name: str, role: Role, found: Exposition, *, young: bool) -> None:
        """Take an engine's answer."""
        reading = Reading(found.boot, found.counters)
        self.counters[role].read(uid, reading, {} if self._whole(young) else found.counters)
        used = min(100, round(100 * found.gauges.get("used", 0)))
        self.engines[uid] = Engine(name, role, True, found.guard, found.capacity_tokens, used)

    def miss_engine(self, uid: str) -> None:
        """An engine did not answer: what it said last stands."""
        if uid in self.engines:
            self.engines[uid] = replace(self.engines[uid], read=False)

    def _whole(self, young: bool) -> bool:
        """Whether all that a pod has counted is counted, when it is heard for the first time."""
        return young and (self.fresh or self.rounds > 0)

    def measured(self, ready: Iterable[str]) -> Measured | None:
        """All of it together; None while no router answers. Of engines only those that are `ready`."""
        if not self.pinned or self.misses >= SCRAPE_MISSES:
            return None
        engines = [self.engines[uid] for uid in ready if uid in self.engines]
        window, seconds = _counters(self.routers.window()), self.routers.window_seconds()
        young = self.clock() < self.began + self.window_seconds
        if not young:
            self._busiest = max(self._busiest, window.eligible / seconds)
        found = Measured(
            window=window,
            window_seconds=seconds,
            busiest_per_second=self._busiest,
            life=_counters(self.routers.life()),
            engines=tuple(sorted(engines, key=lambda engine: engine.pod)),
            prefill=_engine_counters(self.counters[Role.PREFILL].window()),
            decode=_engine_counters(self.counters[Role.DECODE].window()),
            beside=_counters(self.beside.window()),
            pinned_tokens=sum(self.pinned.values()),
            young=young,
        )
        return replace(found, usual=self._averaged.take(found.present)) if seconds >= MINUTE else found


def _counters(numbers: Flat) -> ReuseCounters:
    return ReuseCounters.model_validate(nested(numbers))


def _engine_counters(numbers: Flat) -> EngineCounters:
    tree: dict[str, Any] = nested(numbers)
    return EngineCounters(**tree)
