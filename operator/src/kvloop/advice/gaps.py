"""How long turns wait for the next one, and what keeping their KV for so long would bring and cost."""

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final, Self

from kvloop.advice.evidence import Counts
from kvloop.api import histogram

ALIKE: Final = 0.1
"""Intraclass correlation of the turns of one conversation: how far they are no independent measurements. Assumed."""


@dataclass(frozen=True, slots=True)
class Stake:
    """What a turn that is followed in time saves, and what each second of keeping a turn costs; same unit."""

    value: float
    cost: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean of a difference over turns, and its standard error."""

    mean: float
    error: float

    @property
    def deviations(self) -> float:
        """Standard errors between the mean and 0."""
        if self.error > 0:
            return self.mean / self.error
        return math.copysign(math.inf, self.mean) if self.mean else 0.0


@dataclass(frozen=True, slots=True)
class Gaps:
    """Turns by the gap to their follow-up. Within a bucket gaps spread evenly over the logarithm of time."""

    buckets: tuple[tuple[float, float, float], ...]
    """Bounds in seconds and density over the logarithm of time, by rising time."""
    before: tuple[tuple[float, float, float], ...]
    """Number of gaps before each bucket, and sums of their first and second powers; and a last one: of all."""
    continued: int
    ended: int

    @classmethod
    def of(cls, counts: Counts, ended: int) -> Self:
        """From a histogram in seconds."""
        filled = sorted((i, n) for i, n in counts.items() if n > 0)
        width = math.log(histogram.RATIO)
        buckets = tuple((histogram.start(i), histogram.start(i + 1), n / width) for i, n in filled)
        sums = [(0.0, 0.0, 0.0)]
        for low, high, density in buckets:
            sums.append(_added(sums[-1], low, high, density))
        return cls(buckets, tuple(sums), sum(n for _, n in filled), max(0, ended))

    @property
    def turns(self) -> int:
        return self.continued + self.ended

    @property
    def longest(self) -> float:
        """Bound of the gaps, in seconds."""
        return self.buckets[-1][1] if self.buckets else 0.0

    @property
    def independent(self) -> float:
        """Turns that would tell as much if each were a conversation of its own."""
        return self.turns / (1 + ALIKE * (self.turns / max(1, self.ended) - 1)) if self.turns else 0.0

    def within(self, ttl: float) -> float:
        """Turns that are followed in time."""
        return self._until(ttl)[0]

    def kept_seconds(self, ttl: float) -> tuple[float, float]:
        """Seconds for which all turns together are kept, and how many of these for turns not followed in time."""
        number, seconds, _ = self._until(ttl)
        in_vain = ttl * max(0.0, self.turns - number)
        return seconds + in_vain, in_vain

    def compare(self, ttl: float, other: float, stake: Stake) -> Difference:
        """What a turn gains by `ttl` over `other`: paired, since both would have met the same turns."""
        if ttl < other:
            reverse = self.compare(other, ttl, stake)
            return Difference(-reverse.mean, reverse.error)
        if not self.turns:
            return Difference(0, 0)
        until, before = self._until(ttl), self._until(other)
        number, first, second = (a - b for a, b in zip(until, before, strict=True))
        waited = first - other * number
        squares = second - 2 * other * first + other * other * number
        later, lost = max(0.0, self.turns - until[0]), stake.cost * (ttl - other)
        mean = (stake.value * number - stake.cost * waited - lost * later) / self.turns
        power = stake.value**2 * number - 2 * stake.value * stake.cost * waited + stake.cost**2 * squares
        variance = max(0.0, (power + lost * lost * later) / self.turns - mean * mean)
        return Difference(mean, math.sqrt(variance / self.independent))

    def _until(self, time: float) -> tuple[float, float, float]:
        """Gaps up to a time: their number, and the sums of their first and second powers."""
        at = bisect_left(self.buckets, (time,))
        if at == 0:
            return self.before[0]
        low, high, density = self.buckets[at - 1]
        return _added(self.before[at - 1], low, min(high, time), density)


def _added(sums: tuple[float, float, float], low: float, high: float, density: float) -> tuple[float, float, float]:
    """The sums with those of a density over the logarithm of time between two times."""
    number, first, second = sums
    return (
        number + density * math.log(high / low),
        first + density * (high - low),
        second + density * (high * high - low * low) / 2,
    )
