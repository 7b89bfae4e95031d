"""The TTL that is worth most."""

import math
from dataclasses import dataclass
from typing import Final

from kvloop.advice.evidence import Evidence
from kvloop.advice.gaps import Gaps, Stake
from kvloop.advice.lines import DEVIATIONS
from kvloop.advice.price import pinned_tokens, room

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


def optimum(evidence: Evidence, gaps: Gaps, stake: Stake) -> Optimum:
    """Where keeping a turn is worth most: value of the hits less price of the memory, as far as memory reaches.

    Near its top that worth is flat, and which TTL comes out first is chance. So the result is the mean of all about the
    top, each with the weight that it is no worse in truth.
    """
    limit = max(LEAST, _limit(evidence, gaps))
    ttls = _ttls(min(limit, max(LEAST, _reach(gaps, stake))))
    worth = [gaps.compare(ttl, 0, stake).mean for ttl in ttls]
    top = worth.index(max(worth))
    behind = [gaps.compare(ttls[top], ttl, stake).deviations for ttl in ttls]
    first = last = top
    while first > 0 and behind[first - 1] <= DEVIATIONS:
        first -= 1
    while last + 1 < len(ttls) and behind[last + 1] <= DEVIATIONS:
        last += 1
    near = range(first, last + 1)
    weights = [math.exp(-2 * behind[i] ** 2) for i in near]
    mean = sum(weight * math.log(ttls[i]) for weight, i in zip(weights, near, strict=True)) / sum(weights)
    return Optimum(math.exp(mean), ttls[first], ttls[last], bounded=ttls[last] == limit)


def _ttls(longest: float) -> list[float]:
    steps = math.ceil(math.log(longest / LEAST, _STEP))
    return [*(LEAST * _STEP**i for i in range(steps)), longest]


def _reach(gaps: Gaps, stake: Stake) -> float:
    """A TTL that is longer than the best: nobody comes later, or turns never followed cost more than all hits save."""
    wasted = stake.cost * gaps.ended
    return min(MOST, gaps.longest, stake.value * gaps.turns / wasted if wasted > 0 else math.inf)


def _limit(evidence: Evidence, gaps: Gaps) -> float:
    """Longest TTL whose turns decode can hold at the busiest time."""
    space = room(evidence)
    rate = max(evidence.turns_per_second, evidence.peak_turns_per_second or 0)
    if space is None or pinned_tokens(evidence, gaps, MOST, rate) <= space:
        return math.inf
    low, high = 0.0, MOST
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if pinned_tokens(evidence, gaps, middle, rate) <= space else (low, middle)
    return low
