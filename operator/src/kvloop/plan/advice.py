"""`status.advice`: from what was measured to the evidence that advice is made from, and from advice to the status."""

from collections.abc import Mapping
from typing import Final

from kvloop.advice.advice import UNKNOWN, Advice
from kvloop.advice.advice import Recommendation as Advised
from kvloop.advice.advisor import advise
from kvloop.advice.evidence import Evidence, Line
from kvloop.advice.lines import Point, fit
from kvloop.api import histogram
from kvloop.api.contract import Legs, ReuseCounters
from kvloop.api.labels import Role
from kvloop.api.v1alpha1 import Spec
from kvloop.api.v1alpha1.reuse import AdviceStatus, Recommendation, Verdict
from kvloop.plan.measured import Measured
from kvloop.plan.times import to_rfc3339

LEASE_MARGIN_SECONDS: Final = 10
"""A handle is forgotten by the router so long before decode's lease ends."""
_MOST: Final = 1024
"""Characters of a reason."""


def advice_status(
    previous: AdviceStatus | None, spec: Spec, measured: Measured | None, now: float
) -> AdviceStatus | None:
    """What is to be written when it is due; None until there was a first turn."""
    if measured is None or not measured.life.turns:
        return previous
    found = _to_status(advise(evidence(spec, measured), _from_status(previous)))
    if previous is not None and found == previous.model_copy(update={"updated_at": None}):
        return previous
    return found.model_copy(update={"updated_at": to_rfc3339(now)})


def evidence(spec: Spec, measured: Measured) -> Evidence:
    """What is known of traffic and engines.

    Distributions are of all that was seen since the routers started, and load is that of a day: a window is too short.
    """
    life, usual = measured.life, measured.usual or measured.present
    prefill = prefill_line(life)
    engines = [engine for engine in measured.of(Role.DECODE) if engine.capacity_tokens]
    capacity = sum(engine.capacity_tokens for engine in engines)
    ttl = spec.transfer.decoder_kv_blocks_ttl_seconds - LEASE_MARGIN_SECONDS
    return Evidence(
        gaps=life.gaps,
        ended=_ended(life),
        conversations=life.continued_conversations or None,
        turn_tokens=life.pinned_tokens / life.pinned_turns if life.pinned_turns else 0.0,
        turns_per_second=usual.turns_per_second,
        peak_turns_per_second=measured.busiest_per_second,
        prefill=prefill,
        transfer=transfer_line(life, prefill),
        prefill_cache_hit_percent=usual.cache_hit_percent,
        decode_capacity_tokens=capacity // len(engines) if engines else None,
        decode_running_tokens=usual.running_tokens,
        decode_pods=max(1, len(engines)),
        treated_first_token=_first_tokens(life, "reused", "recomputed"),
        holdout_first_token=_first_tokens(life, "holdout"),
        ttl=min(ttl, spec.router.lease_seconds or ttl),
        threshold=spec.transfer.kv_recompute_threshold_tokens,
        holdout_percent=spec.router.holdout_percent,
        max_pinned_percent=spec.router.max_pinned_percent,
    )


def prefill_line(life: ReuseCounters) -> Line | None:
    """Seconds of a prefill leg over its computed tokens, from the legs that read nothing."""
    legs = [each for each in life.prefill_legs.values() if each.count]
    return fit(Point(each.computed_tokens / each.count, each.seconds / each.count, each.count) for each in legs)


def transfer_line(life: ReuseCounters, prefill: Line | None) -> Line | None:
    """Seconds of a prefill leg over the tokens it reads from decode, beyond what its computed tokens take."""
    if prefill is None:
        return None
    return fit(_beyond(each, prefill) for each in life.fetch_legs.values() if each.count)


def _beyond(legs: Legs, prefill: Line) -> Point:
    computing = prefill.at(legs.computed_tokens / legs.count)
    return Point(legs.fetched_tokens / legs.count, legs.seconds / legs.count - computing, legs.count)


def _ended(life: ReuseCounters) -> int:
    """Turns that were not followed, in proportion to the gaps: with several routers some gaps are seen by none."""
    seen = histogram.count(life.gaps)
    continued = max(seen, life.follow_ups)
    ended = max(0, life.eligible - life.closed_turns - continued)
    return round(ended * seen / continued) if continued else ended


def _first_tokens(life: ReuseCounters, *arms: str) -> Mapping[int, int]:
    return histogram.merge(counts for arm in arms for counts in life.first_token.get(arm, {}).values())


def _to_status(advice: Advice) -> AdviceStatus:
    verdict = advice.verdict
    return AdviceStatus(
        lease_seconds=_recommendation(advice.ttl),
        threshold_tokens=_recommendation(advice.threshold),
        holdout_percent=_recommendation(advice.holdout),
        verdict=Verdict(reuse=verdict.value, reason=verdict.reason[:_MOST], confident=verdict.confident),
    )


def _recommendation(advised: Advised[int]) -> Recommendation:
    return Recommendation(value=advised.value, reason=advised.reason[:_MOST], confident=advised.confident)


def _from_status(previous: AdviceStatus | None) -> Advice:
    if previous is None:
        return UNKNOWN
    verdict = previous.verdict
    return Advice(
        ttl=_advised(previous.lease_seconds),
        threshold=_advised(previous.threshold_tokens),
        holdout=_advised(previous.holdout_percent),
        verdict=Advised(verdict.reuse, verdict.reason, verdict.confident),
    )


def _advised(told: Recommendation) -> Advised[int]:
    return Advised(told.value, told.reason, told.confident)
