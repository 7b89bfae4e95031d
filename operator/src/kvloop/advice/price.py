"""What a hit saves and what memory costs, in seconds of a prefill pod."""

from typing import Final

from kvloop.advice.evidence import Evidence
from kvloop.advice.gaps import Gaps

IDLE: Final = 0.02
"""Price of memory while all of it is idle: it could still serve decode's own prefix cache. Assumed, as is the cube by
which the price rises: memory is short only where little is left."""


def saved_seconds(evidence: Evidence) -> float | None:
    """Prefill time that a follow-up saves which comes in time; 0 where fetching is no quicker; None: unknown.

    Only what prefill does not find in its own prefix cache can be saved. Its start and its new tokens are paid anyhow.
    """
    prefill, transfer = evidence.prefill, evidence.transfer
    if prefill is None or transfer is None:
        return None
    missing = evidence.turn_tokens * (1 - (evidence.prefill_cache_hit_percent or 0) / 100)
    return max(0.0, (prefill.slope - transfer.slope) * missing - max(0.0, transfer.intercept))


def rent(evidence: Evidence, price: float) -> float:
    """Cost of keeping one turn on decode for a second, at a price in shares of a decode pod's whole cost."""
    return price * evidence.turn_tokens * evidence.pod_cost / (evidence.decode_capacity_tokens or 1)


def price(evidence: Evidence, pinned: float) -> float:
    """What a decode pod's memory costs, in shares of the pod's cost, with so many tokens held for later turns.

    The whole pod's cost where it is full, or where nobody knows how full it is: the rent of the ski-rental problem.
    Memory that nobody else would use costs little.
    """
    if evidence.decode_running_tokens is None or not evidence.decode_capacity_tokens:
        return 1.0
    used = min(1.0, (evidence.decode_running_tokens + pinned) / evidence.decode_capacity_tokens)
    return IDLE + (1 - IDLE) * used**3


def pinned_tokens(evidence: Evidence, gaps: Gaps, ttl: float, rate: float) -> float:
    """Mean tokens held on one decode pod for later turns, by Little's law; `rate` in turns per second over all pods."""
    if not gaps.turns:
        return 0.0
    return rate / max(1, evidence.decode_pods) * evidence.turn_tokens * gaps.kept_seconds(ttl)[0] / gaps.turns


def busiest(evidence: Evidence) -> float:
    """Turns per second at the busiest time."""
    return max(evidence.turns_per_second, evidence.peak_turns_per_second or 0.0)


def room(evidence: Evidence) -> float | None:
    """Tokens that one decode pod can hold for later turns beside its running ones; None: unknown."""
    if not evidence.decode_capacity_tokens:
        return None
    allowed = evidence.decode_capacity_tokens * evidence.max_pinned_percent / 100
    return max(0.0, min(allowed, evidence.decode_capacity_tokens - (evidence.decode_running_tokens or 0)))
