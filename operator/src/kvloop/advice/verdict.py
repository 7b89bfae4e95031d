"""Whether reuse pays at all."""

from dataclasses import replace
from typing import Final

from kvloop.advice.advice import Recommendation
from kvloop.advice.case import MIN_TURNS, Case
from kvloop.advice.holdout import saving
from kvloop.advice.lines import DEVIATIONS, break_even
from kvloop.advice.settle import rounded

LITTLE: Final = 0.05
"""Saving less than this share of a follow-up's prefill, or of its time to first token, is not worth the trouble."""
ENOUGH: Final = 0.1
"""Once reuse is advised against, it has to save this share before it is advised again."""


def recommend(case: Case, before: Recommendation[bool]) -> Recommendation[bool]:
    """On or off: by the holdout if it shows anything, or else by what is known of times and memory."""
    found = _by_holdout(case) or _by_times(case, before) or _by_memory(case, before)
    if before.value is not None and found.value in (None, before.value):
        return replace(before, confident=before.confident or found.confident)
    return found


def _by_holdout(case: Case) -> Recommendation[bool] | None:
    seen = saving(case)
    if seen is None or seen.low <= 0 <= seen.high - LITTLE:
        return None
    pays = seen.high >= LITTLE and seen.low > 0
    reason = (
        f"{'On' if pays else 'Off'}: reuse saves {seen.share:.0%} of the time to first token, measured against the"
        f" holdout (95% sure: {seen.low:.0%} to {seen.high:.0%})."
    )
    return Recommendation(pays, reason, confident=True)


def _by_times(case: Case, before: Recommendation[bool]) -> Recommendation[bool] | None:
    """Off where fetching saves next to nothing."""
    evidence, saved = case.evidence, case.saved
    if case.gaps.turns < MIN_TURNS or saved is None or evidence.prefill is None or evidence.transfer is None:
        return None
    least = ENOUGH if before.value is False else LITTLE
    if saved > least * max(0.0, evidence.prefill.slope) * evidence.turn_tokens:
        return None
    hits = evidence.prefill_cache_hit_percent or 0
    if hits and break_even(evidence.prefill, evidence.transfer).tokens < evidence.turn_tokens / 2:
        reason = f"prefill finds {hits:.0f}% of the tokens in its own prefix cache, and fetching saves next to nothing"
    else:
        reason = f"turns hold {rounded(evidence.turn_tokens)} tokens on average, too few for fetching to be quicker"
    return Recommendation(False, f"Off: {reason}.", case.measured)


def _by_memory(case: Case, before: Recommendation[bool]) -> Recommendation[bool]:
    if case.best is None:
        return Recommendation(None, f"Cannot tell yet: {case.lack}.")
    worth = case.gaps.compare(case.best.ttl, 0, case.best.stake)
    confident = case.measured and abs(worth.deviations) > DEVIATIONS
    if before.value is not None and abs(worth.deviations) < DEVIATIONS:
        return before
    if worth.mean > 0:
        saved = f"{rounded(1000 * case.best.stake.value)} ms of prefill"
        reason = f"On: a follow-up in time saves about {saved}, which is worth more than the memory held."
        return Recommendation(True, reason, confident)
    reason = "Off: too few turns are followed soon, and the memory held is worth more than the prefill it saves."
    return Recommendation(False, reason, confident)
