"""How many conversations to keep from reuse, so that what it saves can be measured."""

import math
from dataclasses import dataclass
from typing import Final

from kvloop.advice.advice import Recommendation
from kvloop.advice.case import Case
from kvloop.advice.evidence import Counts
from kvloop.advice.lines import DEVIATIONS
from kvloop.advice.settle import settle
from kvloop.api import histogram

MIN_TIMES: Final = 100
"""First-token times of an arm below which nothing is concluded from it."""
EFFECT: Final = 0.1
"""The saving to be seen, as a share of the time to first token."""
POWER_DEVIATIONS: Final = DEVIATIONS + 0.84
"""Standard errors in the effect so that it is seen, with 95 percent confidence, four times in five."""
MOST_PERCENT: Final = 10
"""Holding out more costs more than it tells; with little traffic the measurement takes longer instead."""
MOST_DAYS: Final = 30.0
ALIKE: Final = 0.5
"""Intraclass correlation of the first-token times of one conversation, whose prompts are of like length. Assumed."""
_DAY: Final = 86_400.0
_MOST_LOGARITHM: Final = 50.0
"""Of a ratio of two times; more overflows, and tells nothing."""


@dataclass(frozen=True, slots=True)
class Times:
    """Logarithms of first-token times."""

    count: int
    mean: float
    variance: float

    @classmethod
    def of(cls, counts: Counts) -> "Times":
        """From a histogram of any unit: the unit only shifts the mean."""
        usable = {i: n for i, n in counts.items() if n > 0}
        count = sum(usable.values())
        if not count:
            return cls(0, 0.0, 0.0)
        step = math.log(histogram.RATIO)
        mean = sum(n * i for i, n in usable.items()) * step / count
        return cls(count, mean, sum(n * (i * step - mean) ** 2 for i, n in usable.items()) / count)


@dataclass(frozen=True, slots=True)
class Saving:
    """Share of the time to first token that reuse saves, with a 95 percent interval; below 0 it costs."""

    low: float
    share: float
    high: float


def saving(case: Case) -> Saving | None:
    """What the holdout shows; None while one of the arms has too few times.

    Conversations are held out by chance, so the arms differ in nothing else: misses count, too, as they will when
    everybody may reuse. The unit is the conversation.
    """
    treated, held = Times.of(case.evidence.treated_first_token), Times.of(case.evidence.holdout_first_token)
    if min(treated.count, held.count) < MIN_TIMES:
        return None
    clustered = 1 + ALIKE * (_follow_ups(case) - 1)
    error = DEVIATIONS * math.sqrt(clustered * (treated.variance / treated.count + held.variance / held.count))
    step = math.log(histogram.RATIO)
    error += step * sum(histogram.unresolved(math.sqrt(each.variance) / step) for each in (treated, held))
    difference = treated.mean - held.mean
    return Saving(*(1 - math.exp(min(_MOST_LOGARITHM, difference + each)) for each in (error, 0.0, -error)))


def recommend(case: Case, before: Recommendation[int]) -> Recommendation[int]:
    """The smallest holdout that shows a saving of `EFFECT` within a day, or the largest sensible one and its time."""
    evidence, gaps = case.evidence, case.gaps
    treated = Times.of(evidence.treated_first_token)
    daily = evidence.turns_per_second * _DAY * _conversations(case) / gaps.turns if gaps.turns else 0.0
    if treated.count < MIN_TIMES or daily < 1:
        more = max(1, MIN_TIMES - treated.count)
        reason = f"Cannot tell yet: first-token times of at least {more} more follow-ups are needed."
        return settle(Recommendation(None, reason), evidence.holdout_percent, before, _off_by_two)
    spread = treated.variance * (ALIKE + (1 - ALIKE) / _follow_ups(case))
    needed = spread * (POWER_DEVIATIONS / math.log(1 - EFFECT)) ** 2
    most = MOST_PERCENT / 100
    days = max(1.0, needed / daily / (most * (1 - most)))
    if days > MOST_DAYS:
        reason = f"Too little traffic: a saving of {EFFECT:.0%} would show after {math.ceil(days)} days only."
        return settle(Recommendation(None, reason), evidence.holdout_percent, before, _off_by_two)
    share = (1 - math.sqrt(1 - 4 * min(most * (1 - most), needed / daily))) / 2
    value = max(1, math.ceil(100 * share - 1e-9))
    reason = (
        f"With {value}% of the conversations held out a saving of {EFFECT:.0%} of the time to first token shows within"
        f" {math.ceil(days)} {'day' if days <= 1 else 'days'} (95% confidence, 80% power)."
    )
    return settle(Recommendation(value, reason, confident=True), evidence.holdout_percent, before, _off_by_two)


def _conversations(case: Case) -> int:
    """Conversations with follow-ups; where nobody counted them, at most."""
    return min(case.evidence.conversations or case.gaps.ended, case.gaps.continued)


def _follow_ups(case: Case) -> float:
    """Follow-ups of a conversation that has any."""
    return case.gaps.continued / _conversations(case) if _conversations(case) else 1.0


def _off_by_two(best: int, other: int) -> float:
    """Traffic by day and by night is no reason to change a setting."""
    return 0.0 if best <= 2 * other and other <= 2 * best else math.inf
