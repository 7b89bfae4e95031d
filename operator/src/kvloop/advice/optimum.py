"""The TTL that is worth most."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvloop.advice.evidence import Evidence
from kvloop.advice.gaps import Gaps, Stake
from kvloop.advice.lines import DEVIATIONS
from kvloop.advice.price import busiest, pinned_tokens, price, rent, room

LEAST: Final = 15.0
"""Seconds; the API allows no less."""
MOST: Final = 86_400.0
_STEP: Final = 2 ** (1 / 16)
"""Ratio of the TTLs that are tried: finer than a histogram's buckets."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best TTL, and between which ones it lies with 95 percent confidence, in seconds."""

    ttl: float
    low: float
    high: float
    bounded: bool
    """Whether decode's memory allows no longer one."""
    stake: Stake
    """At the price of memory that this TTL leads to."""


def optimum(evidence: Evidence, gaps: Gaps, saved: float) -> Optimum:
    """Where keeping a turn is worth most: value of the hits less rent of the memory, as far as memory reaches.

    Near its top that worth is flat, and which TTL comes out first is chance. So the result is the mean of all about the
    top, each with the weight that it is no worse in truth.
    """
    limit = max(LEAST, _limit(evidence, gaps))
    ttls = _ttls(min(limit, MOST, max(LEAST, gaps.longest)))
    top, stake = _market(evidence, gaps, saved, ttls)
    behind = [gaps.compare(ttls[top], ttl, stake).deviations for ttl in ttls]
    first = last = top
    while first > 0 and behind[first - 1] <= DEVIATIONS:
        first -= 1
    while last + 1 < len(ttls) and behind[last + 1] <= DEVIATIONS:
        last += 1
    near = range(first, last + 1)
    weights = [math.exp(-2 * behind[i] ** 2) for i in near]
    mean = sum(weight * math.log(ttls[i]) for weight, i in zip(weights, near, strict=True)) / sum(weights)
    return Optimum(math.exp(mean), ttls[first], ttls[last], ttls[last] == limit, stake)


def _ttls(longest: float) -> list[float]:
    steps = math.ceil(math.log(longest / LEAST, _STEP))
    return [*(LEAST * _STEP**i for i in range(steps)), longest]


def _market(evidence: Evidence, gaps: Gaps, saved: float, ttls: Sequence[float]) -> tuple[int, Stake]:
    """Index of the best TTL, and the price of memory at which it is the best.

    The longer turns are kept the more memory is in use and the dearer it is, and the dearer the shorter they are
    worth keeping: between the two lies one price.
    """
    hits = [gaps.within(ttl) for ttl in ttls]
    kept = [gaps.kept_seconds(ttl)[0] for ttl in ttls]

    def best(cost: float) -> int:
        worth = [saved * hit - cost * seconds for hit, seconds in zip(hits, kept, strict=True)]
        return worth.index(max(worth))

    low, high = 0.0, 1.0
    for _ in range(24):
        middle = (low + high) / 2
        pinned = pinned_tokens(evidence, gaps, ttls[best(rent(evidence, middle))], evidence.turns_per_second)
        low, high = (middle, high) if price(evidence, pinned) > middle else (low, middle)
    cost = rent(evidence, high)
    return best(cost), Stake(saved, cost)


def _limit(evidence: Evidence, gaps: Gaps) -> float:
    """Longest TTL whose turns decode can hold at the busiest time."""
    space, rate = room(evidence), busiest(evidence)
    if space is None or pinned_tokens(evidence, gaps, MOST, rate) <= space:
        return math.inf
    low, high = 0.0, MOST
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if pinned_tokens(evidence, gaps, middle, rate) <= space else (low, middle)
    return low
