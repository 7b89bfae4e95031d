"""Arithmetic on counters that lie in each other, as in a summary's JSON: sums, differences, and back to the model.

Flat, each number has a path: ("misses", "expired") or ("first_token", "reused", 11, 40).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

Path = tuple[str | int, ...]
Flat = dict[Path, float]


SLOTS: Final = 60
"""A window moves on in steps of a sixtieth of its length."""


class Sliding:
    """Counters since the start, and over a window: what came in each step of it is kept apart, and so left behind."""

    def __init__(self, window_seconds: float, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._step = window_seconds / SLOTS
        self._before: Flat = {}
        """What came before the present step."""
        self._steps: list[tuple[float, Flat]] = [(clock(), {})]
        """Begin of each step, and what came in it; the last one is the present. At most one more than the slots."""

    def resize(self, window_seconds: float) -> None:
        """Go over to another length; the window begins anew."""
        self._step = window_seconds / SLOTS
        add(self._before, self._steps[-1][1])
        self._steps.clear()
        self._steps.append((self._clock(), {}))

    def reach_back(self, seconds: float, numbers: Mapping[Path, float]) -> None:
        """These have come within so many seconds before now; to be called before anything else is counted."""
        self._before = dict(numbers)
        self._steps.insert(0, (self._clock() - seconds, dict(numbers)))

    def count(self, number: float, *path: str | int) -> None:
        """Count under one path; 0 is not counted."""
        if number:
            now = self._present()
            now[path] = now.get(path, 0) + number

    def add(self, numbers: Mapping[Path, float]) -> None:
        """Count all of these."""
        if numbers:
            add(self._present(), numbers)

    def total(self) -> Flat:
        """Since the start."""
        total = dict(self._before)
        add(total, self._steps[-1][1])
        return total

    def window(self) -> Flat:
        """Over the window."""
        self._present()
        total: Flat = {}
        for _, numbers in self._steps:
            add(total, numbers)
        return total

    def window_seconds(self) -> float:
        """Length of what `window` tells, in seconds."""
        self._present()
        return self._clock() - self._steps[0][0]

    def _present(self) -> Flat:
        now, (last, numbers) = self._clock(), self._steps[-1]
        if now < last + self._step:
            return numbers
        add(self._before, numbers)
        passed = int((now - last) / self._step)
        for i in range(max(1, passed - SLOTS), passed + 1):
            self._steps.append((last + i * self._step, {}))
        del self._steps[: -SLOTS - 1]
        return self._steps[-1][1]


def flat(tree: Mapping[Any, Any], path: Path = ()) -> Flat:
    """Every number but zeros, by path."""
    return dict(_walk(tree, path))


_PATHS: dict[Path, Path] = {}
"""One object for equal paths: a thousand resources have the same ones."""
_MOST_PATHS: Final = 100_000


def _walk(tree: Mapping[Any, Any], path: Path) -> Iterator[tuple[Path, float]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _walk(value, (*path, name))
        elif value:
            here = (*path, name)
            yield (_PATHS.setdefault(here, here) if len(_PATHS) < _MOST_PATHS else here), value


def nested(numbers: Mapping[Path, float]) -> dict[Any, Any]:
    """The tree of these paths."""
    tree: dict[Any, Any] = {}
    for path, value in numbers.items():
        node = tree
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = value
    return tree


def add(to: Flat, numbers: Mapping[Path, float]) -> None:
    """Add in place."""
    for path, value in numbers.items():
        to[path] = to.get(path, 0) + value


def difference(now: Mapping[Path, float], before: Mapping[Path, float]) -> Flat:
    """What has come since; nothing where a counter has not grown."""
    return {path: more for path, value in now.items() if (more := value - before.get(path, 0)) > 0}


def fell(now: Mapping[Path, float], before: Mapping[Path, float]) -> bool:
    """Whether a counter is less than before: whoever counts has restarted, and counts from 0."""
    return any(now.get(path, 0) < value for path, value in before.items())
