"""How a change reaches the engines: plain arithmetic on two rows of engines, prefill and decode.

Each side is a row of numbered engines. A side's *partition* is the only lever: engines from that number up are
replaced by the new template, those below stay, and whatever is missing below comes back from the *base*, the template
of the last rollout that ended. Prefill and decode of one revision only talk to each other, so both sides move together.
Nothing is remembered between two steps: the next step follows from what is there now, so that any edit, failure or
restart of the operator in between is just another start.

The rules:

1. Hold while paused, or while an engine of the new template fails: nothing more is replaced.
2. Order: the engine whose turn it is has the lowest midpoint (i - 1/2) / replicas over both sides, from the highest
   number down. The new revision's shares of the two sides thus differ by no more than one engine of the smaller side.
3. An engine that is missing, fails or has not started yet has nothing to lose: it goes when its turn comes. One that
   fails and is of a template between base and newest goes at once: otherwise it would be in the way of both.
4. Floor: any other goes only if its side keeps replicas - maxUnavailable ready engines.
5. While engines are starting, the floor also holds for engines that *serve*: ready, with a ready partner of their own
   revision on the other side. So the last old pair goes only when a new pair serves. Once all have started, waiting
   longer would change nothing, and rule 4 alone decides; that is what keeps a rollout from getting stuck.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from kvloop.api.labels import Role


@dataclass(frozen=True)
class Engine:
    """One engine.

    `updated`: made from the newest template; `base`: from the one that comes back below the partition. `started`: has
    been able to serve since it was last started, even if it is not ready at the moment. `failing`: not ready, and time
    alone will not heal it.
    """

    revision: str
    updated: bool
    ready: bool
    base: bool = False
    started: bool = True
    failing: bool = False

    @property
    def idle(self) -> bool:
        """Nothing is lost when it is replaced."""
        return not self.ready and (self.failing or not self.started)


@dataclass(frozen=True)
class Side:
    """One role: `replicas` engines are wanted, numbered from 0; `revision` is the one of the newest template.

    Numbers without an engine are missing. Engines with numbers beyond are on their way out and count for nothing. What
    is deleted comes back of the newest template from the number `opened` up: its controller may not know the last
    partition yet.
    """

    replicas: int
    max_unavailable: int
    revision: str
    engines: Mapping[int, Engine]
    opened: int = 0

    def __post_init__(self) -> None:
        wanted = {number: self.engines[number] for number in range(self.replicas) if number in self.engines}
        object.__setattr__(self, "engines", wanted)

    @property
    def floor(self) -> int:
        """Fewest ready engines that a replacement may leave."""
        return max(0, self.replicas - self.max_unavailable)

    @property
    def ready(self) -> int:
        """How many are ready."""
        return sum(engine.ready for engine in self.engines.values())

    @property
    def updated(self) -> int:
        """How many are of the newest template, ready or not."""
        return sum(engine.updated for engine in self.engines.values())

    @property
    def outdated(self) -> list[int]:
        """Numbers of the engines of older templates."""
        return [number for number, engine in self.engines.items() if not engine.updated]

    @property
    def missing(self) -> list[int]:
        """Numbers without an engine."""
        return [number for number in range(self.replicas) if number not in self.engines]

    @property
    def starting(self) -> list[int]:
        """Numbers that are missing, or of the newest template and not yet ready."""
        new = [number for number, engine in self.engines.items() if engine.updated and not engine.ready]
        return sorted(self.missing + new)

    @property
    def failing(self) -> list[int]:
        """Numbers of the engines of the newest template that fail."""
        return [number for number, engine in self.engines.items() if engine.updated and engine.failing]

    @property
    def partition(self) -> int:
        """Lowest number from which up all are of the newest template; 0 when nothing older is left to protect."""
        return max(self.outdated + self.missing) + 1 if self.outdated else 0

    def renew(self, number: int, *, ready: bool) -> "Side":
        """The same side with an engine of the newest template under that number."""
        new = Engine(self.revision, updated=True, ready=ready, started=ready)
        return replace(self, engines={**self.engines, number: new})


Sides = Mapping[Role, Side]
Place = tuple[Role, int]


@dataclass(frozen=True)
class Rollout:
    """The next step.

    `delete` names engines in whose place another comes. A StatefulSet replaces one at a time and waits for each to
    become ready: it would wait for ever where one does not, and go no faster where maxUnavailable allows several. (Its
    own maxUnavailable is off by default up to Kubernetes 1.35.) `message` is for people, empty when all is done.
    """

    partitions: Mapping[Role, int]
    delete: tuple[Place, ...] = ()
    done: bool = False
    message: str = ""


def step(sides: Sides, *, paused: bool = False) -> Rollout:
    """The next step from what is there now; the same again as long as nothing changes."""
    outdated = any(side.outdated for side in sides.values())
    holding = paused or any(side.failing for side in sides.values())
    taken = tuple(_turns(sides)) if outdated and not holding else ()
    partitions = {role: side.partition for role, side in _renew(sides, taken).items()}
    done = not outdated and not any(side.starting for side in sides.values())
    message = "" if done else _message(sides, taken, paused=paused)
    return Rollout(partitions, () if paused else _deletions(sides, taken), done, message)


def steps(sides: Sides) -> Iterator[Rollout]:
    """The whole rollout, for people to look at beforehand: whatever starts becomes ready before the next step."""
    while True:
        rollout = step(sides)
        yield rollout
        turns = [(r, n) for r, partition in rollout.partitions.items() for n in sides[r].outdated if n >= partition]
        starting = [(role, number) for role, side in sides.items() for number in side.starting]
        if not turns and not starting:
            return
        sides = _renew(sides, [*turns, *starting], ready=True)


def _turns(sides: Sides) -> Iterator[Place]:
    """Whom to replace now, in order."""
    settled = not any(side.starting for side in sides.values())
    while (turn := _next(sides)) is not None and _allowed(sides, turn, settled=settled):
        yield turn
        sides = _renew(sides, [turn])
        settled = False


def _next(sides: Sides) -> Place | None:
    pending = {role: side.outdated + side.missing for role, side in sides.items()}
    midpoints = {r: Fraction(2 * sides[r].updated + 1, sides[r].replicas) for r, numbers in pending.items() if numbers}
    if not midpoints:
        return None
    role = min(midpoints, key=midpoints.__getitem__)
    return role, max(pending[role])


def _allowed(sides: Sides, turn: Place, *, settled: bool) -> bool:
    role, number = turn
    engine = sides[role].engines.get(number)
    if engine is None or engine.idle:
        return True
    after = _renew(sides, [turn])
    if after[role].ready < sides[role].floor:
        return False
    return settled or all(
        _serving(after, role) >= min(side.floor, _serving(sides, role)) for role, side in sides.items()
    )


def _serving(sides: Sides, role: Role) -> int:
    partners = {e.revision for other, side in sides.items() if other != role for e in side.engines.values() if e.ready}
    return sum(engine.ready and engine.revision in partners for engine in sides[role].engines.values())


def _renew(sides: Sides, places: Iterable[Place], *, ready: bool = False) -> Sides:
    renewed = dict(sides)
    for role, number in places:
        renewed[role] = renewed[role].renew(number, ready=ready)
    return renewed


def _deletions(sides: Sides, taken: Sequence[Place]) -> tuple[Place, ...]:
    engines = {(role, number): engine for role, side in sides.items() for number, engine in side.engines.items()}
    superseded = {place for place, e in engines.items() if e.failing and not e.updated and not e.base}
    return tuple(sorted(superseded.union(_replaced(sides, taken))))


def _replaced(sides: Sides, taken: Sequence[Place]) -> Iterator[Place]:
    """Those to delete of the engines whose turn it is; not before all with an earlier turn have gone."""
    for role, number in taken:
        side = sides[role]
        if engine := side.engines.get(number):
            if number < side.opened or not (engine.idle or side.max_unavailable > 1):
                return
            yield role, number


def _message(sides: Sides, taken: Sequence[Place], *, paused: bool) -> str:
    """Where it stands, and what it waits for."""
    outdated = _places({role: side.outdated for role, side in sides.items()})
    starting = _places({role: side.starting for role, side in sides.items()})
    failing = _places({role: side.failing for role, side in sides.items()})
    if paused and outdated:
        why = "paused"
    elif failing and outdated:
        why = f"held, because {_names(failing)} of the new template fails"
    elif moving := [place for place in taken if place in outdated]:
        why = f"replacing {_names(moving)}"
    elif starting:
        why = f"waiting for {_names(starting)}"
    else:
        down = [(role, number) for role, number in outdated if not sides[role].engines[number].ready]
        why = (
            f"held, because {_names(down)} is down and maxUnavailable allows no more: heal it, or raise maxUnavailable"
        )
    counts = ", ".join(f"{role} {side.updated} of {side.replicas}" for role, side in sides.items())
    return f"{counts} updated; {why}"


def _places(numbers: Mapping[Role, Iterable[int]]) -> list[Place]:
    return [(role, number) for role, ns in numbers.items() for number in ns]


def _names(places: Sequence[Place], most: int = 3) -> str:
    names = [f"{role}-{number}" for role, number in places]
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return ", ".join([*names[:most], *more])
