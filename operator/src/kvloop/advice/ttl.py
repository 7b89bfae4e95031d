"""How long decode should keep a turn."""

import math
from collections.abc import Sequence
from typing import Final

from kvloop.advice.advice import CurvePoint, Recommendation
from kvloop.advice.case import Case
from kvloop.advice.lines import DEVIATIONS
from kvloop.advice.optimum import LEAST, Optimum
from kvloop.advice.price import busiest, pinned_tokens, room
from kvloop.advice.settle import never, rounded, settle

REAL: Final = 0.02
"""A gain of a smaller share is none."""
SHARP: Final = 2.0
"""The TTL is known well where the longest that may be the best is at most so many times the shortest."""
LADDER: Final = (15, 30, 45, 60, 90, 120, 180, 240, 300, 480, 600, 900, 1800, 3600)
"""TTLs to show, in seconds."""


def recommend(case: Case, before: Recommendation[int]) -> Recommendation[int]:
    """The TTL that is worth most, kept as it is while nothing is really better."""
    best = case.best
    in_force = None if case.evidence.ttl is None else round(case.evidence.ttl)
    if best is None:
        return settle(Recommendation(None, f"Cannot tell yet: {case.lack}."), in_force, before, never)
    if best.stake.value <= 0:
        return Recommendation(None, "No TTL pays, since fetching saves no time.")
    if (worth := case.gaps.compare(best.ttl, 0, best.stake)).mean <= 0:
        nothing: Recommendation[int] = Recommendation(None, "No TTL pays, since too few turns are followed soon.")
        return nothing if worth.deviations < -DEVIATIONS else settle(nothing, in_force, before, never)
    value = max(round(LEAST), rounded(best.ttl))
    confident = case.measured and best.high <= SHARP * best.low
    advised = Recommendation(value, _reason(case, value, best), confident)
    return settle(advised, in_force, before, lambda ttl, other: _better(case, best, ttl, other))


def curve(case: Case, ttls: Sequence[float]) -> tuple[CurvePoint, ...]:
    """What each TTL would bring and cost."""
    return tuple(_point(case, ttl) for ttl in ttls) if case.gaps.continued else ()


def _point(case: Case, ttl: float) -> CurvePoint:
    gaps = case.gaps
    kept, in_vain = gaps.kept_seconds(ttl)
    return CurvePoint(
        ttl=ttl,
        hit_share=min(1.0, gaps.within(ttl) / gaps.continued),
        pinned_tokens=pinned_tokens(case.evidence, gaps, ttl, case.evidence.turns_per_second),
        wasted_share=in_vain / kept if kept > 0 else 0.0,
        net_seconds=gaps.compare(ttl, 0, case.best.stake).mean if case.best else None,
    )


def _better(case: Case, best: Optimum, ttl: int, other: int) -> float:
    """Standard errors by which one TTL is better than the other, if it is by as much as matters."""
    if best.bounded and other > best.ttl:
        return math.inf
    difference = case.gaps.compare(ttl, other, best.stake)
    worth = abs(case.gaps.compare(ttl, 0, best.stake).mean)
    return difference.deviations if difference.mean > REAL * worth else 0.0


def _reason(case: Case, value: int, best: Optimum) -> str:
    point = _point(case, value)
    come = f"{point.hit_share:.0%} of follow-ups come within {value} s"
    hold = f"decode holds about {rounded(point.pinned_tokens)} tokens a pod for them"
    if best.bounded:
        return f"{come}, and {hold}; its memory allows no longer TTL at the busiest time.{_overfull(case)}"
    return f"{come}, and {hold}; a longer TTL takes more memory than the prefill it saves is worth.{_overfull(case)}"


def _overfull(case: Case) -> str:
    """A warning where the TTL in force wants more memory than there is."""
    evidence, space = case.evidence, room(case.evidence)
    if evidence.ttl is None or space is None:
        return ""
    wanted = pinned_tokens(evidence, case.gaps, evidence.ttl, busiest(evidence))
    share = f"{wanted / (evidence.decode_capacity_tokens or 1):.0%}"
    return f" The {evidence.ttl:g} s in force want {share} of its memory at the busiest time." if wanted > space else ""
