"""What many counters amount to, while those who count come, go and restart from 0."""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from kvloop.api.counters import Flat, Path, Sliding, add, difference, fell

NOTHING: Final[Mapping[Path, float]] = MappingProxyType({})
MOST_PATHS: Final = 10_000
"""A busy router has a third as many counters after months. More would fill the operator's memory."""


class Reading(NamedTuple):
    """The counters of a source; `boot` changes when it restarts, empty where it does not tell."""

    boot: str
    numbers: Flat


class Ledger:
    """Sums over sources: of what has come within a window, and of all that they ever counted."""

    def __init__(self, window_seconds: float, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._sum = Sliding(window_seconds, clock)
        self._last: dict[str, Reading] = {}
        self._gone: Flat = {}
        """What those had counted who are no more, or began anew."""
        self.reach_back = self._sum.reach_back
        self.window = self._sum.window
        self.window_seconds = self._sum.window_seconds

    def read(self, source: str, reading: Reading, earlier: Mapping[Path, float] = NOTHING) -> None:
        """Take a source's counters; `earlier` is what of them has not come within the window, if it is new here.

        Raises:
            ValueError: they are more than anybody has, or others ever again.
        """
        if max(len(reading.numbers), len(self._gone)) > MOST_PATHS:
            raise ValueError(f"more than {MOST_PATHS} counters")
        last = self._last.get(source)
        if last is None:
            come = difference(reading.numbers, earlier)
        elif last.boot != reading.boot or fell(reading.numbers, last.numbers):
            add(self._gone, last.numbers)
            come = reading.numbers
        else:
            come = difference(reading.numbers, last.numbers)
        self._last[source] = reading
        self._sum.add(come)

    def keep(self, sources: Collection[str]) -> None:
        """Only these are there still; what the others had counted stays."""
        for source in self._last.keys() - set(sources):
            add(self._gone, self._last.pop(source).numbers)

    def knows(self, source: str) -> bool:
        """Whether it was read before."""
        return source in self._last

    def life(self) -> Flat:
        """All that was ever counted."""
        total = dict(self._gone)
        for reading in self._last.values():
            add(total, reading.numbers)
        return total
