"""From how many tokens fetching pays."""

import math
from typing import Final

from kvloop.advice.advice import Recommendation
from kvloop.advice.case import Case
from kvloop.advice.lines import DEVIATIONS, MIN_SAMPLES, BreakEven, break_even
from kvloop.advice.settle import never, rounded, settle

MOST: Final = 1_048_576
"""Tokens; the API allows no more."""
SHARP: Final = 2.0
"""The threshold is known well where the ends of its interval are at most so many times apart."""


def recommend(case: Case, before: Recommendation[int]) -> Recommendation[int]:
    """The break-even, kept as it is while nothing is really better."""
    evidence = case.evidence
    prefill, transfer = evidence.prefill, evidence.transfer
    if prefill is None or transfer is None:
        missing = "prefill legs that compute" if prefill is None else "prefill legs that fetch from decode"
        reason = f"Cannot tell yet: at least {MIN_SAMPLES} {missing} prompts of different lengths are needed."
        return settle(Recommendation(None, reason), evidence.threshold, before, never)
    found = break_even(prefill, transfer)
    if not math.isfinite(found.tokens):
        none: Recommendation[int] = Recommendation(
            None, "No threshold pays: a token takes longer to fetch than to compute."
        )
        sure = not math.isfinite(found.low)
        return none if sure else settle(none, evidence.threshold, before, never)

    def better(_: int, other: int) -> float:
        return deviations(found, other)

    value = min(MOST, rounded(found.tokens))
    confident = case.measured and found.high <= SHARP * max(found.low, 1)
    return settle(Recommendation(value, _reason(found), confident), evidence.threshold, before, better)


def deviations(found: BreakEven, tokens: float) -> float:
    """Standard errors between the break-even and that many tokens."""
    side = found.low if tokens < found.tokens else found.high
    distance, width = abs(tokens - found.tokens), abs(side - found.tokens)
    if not math.isfinite(width):
        return 0.0
    return DEVIATIONS * distance / width if width > 0 else math.copysign(math.inf, distance) if distance else 0.0


def _reason(found: BreakEven) -> str:
    fewer = f"Fetching fewer than about {rounded(found.tokens)} tokens takes longer than computing them"
    if found.low == found.high:
        return f"{fewer}."
    high = f"{rounded(found.high)}" if math.isfinite(found.high) else "no bound"
    return f"{fewer} (95% sure: {rounded(found.low)} to {high})."
