"""How long turns wait for the next one, and what keeping their KV for so long would bring and cost."""

import math
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

    buckets: tuple[tuple[float, float, int], ...]
    """Bounds in seconds and number of gaps, by rising time."""
    continued: int
    ended: int

    @classmethod
    def of(cls, counts: Counts, ended: int) -> Self:
        """From a histogram in seconds."""
        buckets = tuple((histogram.start(i), histogram.start(i + 1), n) for i, n in sorted(counts.items()) if n > 0)
        return cls(buckets, sum(n for _, _, n in buckets), max(0, ended))

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
        return self._moments(0, ttl)[0]

    def kept_seconds(self, ttl: float) -> tuple[float, float]:
        """Seconds for which all turns together are kept, and how many of these for turns not followed in time."""
        number, seconds, _ = self._moments(0, ttl)
        in_vain = ttl * max(0.0, self.turns - number)
        return seconds + in_vain, in_vain

    def compare(self, ttl: float, other: float, stake: Stake) -> Difference:
        """What a turn gains by `ttl` over `other`: paired, since both would have met the same turns."""
        if ttl < other:
            reverse = self.compare(other, ttl, stake)
            return Difference(-reverse.mean, reverse.error)
        if not self.turns:
            return Difference(0, 0)
        number, waited, squares = self._moments(other, ttl)
        later = max(0.0, self.turns - self.within(other) - number)
        lost = stake.cost * (ttl - other)
        total = stake.value * number - stake.cost * waited - lost * later
        power = stake.value**2 * number - 2 * stake.value * stake.cost * waited + stake.cost**2 * squares
        mean = total / self.turns
        variance = max(0.0, (power + lost * lost * later) / self.turns - mean * mean)
        return Difference(mean, math.sqrt(variance / self.independent))

    def _moments(self, start: float, end: float) -> tuple[float, float, float]:
        """Gaps between the times: their number, and the sums of what exceeds `start`, and of its square."""
        number = first = second = 0.0
        for bucket_low, bucket_high, count in self.buckets:
            low, high = max(start, bucket_low), min(end, bucket_high)
            if low >= high:
                continue
            density = count / math.log(bucket_high / bucket_low)
            some, sums = density * math.log(high / low), density * (high - low)
            number += some
            first += sums - start * some
            second += density * (high * high - low * low) / 2 - 2 * start * sums + start * start * some
        return number, first, second
