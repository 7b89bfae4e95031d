"""Times with reuse against times without: a fair comparison, and how sure it is.

Long prompts take longer, whether they are reused or not, and which turns are reused depends on their length. So times
are compared within strata of like length only, and the differences of the strata are put together (Mantel and Haenszel,
https://doi.org/10.1093/jnci/22.4.719). They are differences of logarithms: times spread by factors, a few very long
ones must not decide, and the histograms are logarithmic already. Turns of one conversation are alike, so that many
turns of few conversations prove less than they seem to: the error is widened by Kish's design effect.

Conversations are held out by hash, so that the holdout differs in nothing but reuse. Turns that were recomputed do:
they came after longer gaps, or were the first on a new engine. Against them a comparison is a hint, and says so.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvloop.advice.holdout import ALIKE
from kvloop.api import histogram

Strata = Mapping[int, Mapping[int, int]]
"""Histograms of times, by octave of length."""

MIN_SAMPLES: Final = 30
"""Times in strata that both arms have; fewer in either arm prove nothing."""
_OCTAVE: Final = 4
"""Buckets of a histogram to a doubling."""
_MOST: Final = 30
"""Doublings between two times; more tell nothing, and do not fit into the status."""
_ROUNDING: Final = 1 / 12
"""Variance of where in its bucket a time lies, in buckets."""
_DEVIATIONS: Final = 1.96
"""Standard errors on either side that hold 95 percent of a normal distribution."""


@dataclass(frozen=True)
class Ratio:
    """Typical time without reuse per time with it, and a 95 percent interval."""

    low: float
    value: float
    high: float


@dataclass(frozen=True)
class _Arm:
    """Times of one arm in one stratum, in buckets."""

    count: int
    mean: float
    squares: float
    """Sum of squared distances from the mean."""

    @classmethod
    def of(cls, counts: Mapping[int, int]) -> "_Arm":
        count = histogram.count(counts)
        mean = sum(n * i for i, n in counts.items()) / count
        return cls(count, mean, sum(n * (i - mean) ** 2 for i, n in counts.items()))


def together(*arms: Strata) -> Strata:
    """All times of these arms."""
    lengths = {length for arm in arms for length in arm}
    return {length: histogram.merge(arm.get(length, {}) for arm in arms) for length in lengths}


def common(*arms: Strata) -> set[int]:
    """Strata in which all these arms have times."""
    found = [{length for length, counts in arm.items() if histogram.count(counts)} for arm in arms]
    return set.intersection(*found) if found else set()


def samples(arm: Strata, strata: set[int]) -> int:
    """Times of an arm in these strata."""
    return sum(histogram.count(arm[length]) for length in strata)


def ratio(reused: Strata, other: Strata, per_conversation: float) -> Ratio | None:
    """How much longer the other arm takes; None where there are too few times at like lengths.

    `per_conversation` is how many of the times come from one conversation, on average.
    """
    strata = common(reused, other)
    if min(samples(reused, strata), samples(other, strata)) < MIN_SAMPLES:
        return None
    pairs = [(_Arm.of(reused[length]), _Arm.of(other[length])) for length in strata]
    weights = [a.count * b.count / (a.count + b.count) for a, b in pairs]
    total = sum(weights)
    difference = sum(w * (b.mean - a.mean) for w, (a, b) in zip(weights, pairs, strict=True)) / total
    spread = [_variance([pair[side] for pair in pairs]) for side in (0, 1)]
    variance = sum(
        w * w * ((spread[0] + _ROUNDING) / a.count + (spread[1] + _ROUNDING) / b.count)
        for w, (a, b) in zip(weights, pairs, strict=True)
    ) / (total * total)
    clustered = 1 + ALIKE * max(0.0, per_conversation - 1)
    error = _DEVIATIONS * math.sqrt(variance * clustered)
    error += sum(histogram.unresolved(math.sqrt(each)) for each in spread)
    octaves = ((difference + each) / _OCTAVE for each in (-error, 0.0, error))
    return Ratio(*(2 ** max(-_MOST, min(_MOST, each)) for each in octaves))


def _variance(arms: list[_Arm]) -> float:
    """Within the strata, in all of them together."""
    degrees = sum(arm.count for arm in arms) - len(arms)
    return sum(arm.squares for arm in arms) / max(1, degrees)


def at_lengths_of(reference: Strata, arm: Strata, strata: set[int]) -> dict[int, float]:
    """The arm's times as if its lengths were spread as those of the reference are: counts with weights."""
    weighted: dict[int, float] = {}
    for length in strata:
        weight = histogram.count(reference[length]) / histogram.count(arm[length])
        for index, count in arm[length].items():
            weighted[index] = weighted.get(index, 0) + weight * count
    return weighted
