"""What a hit saves and what memory costs, in seconds of a prefill pod."""

from kvloop.advice.evidence import Evidence
from kvloop.advice.gaps import Gaps, Stake


def saved_seconds(evidence: Evidence) -> float | None:
    """Prefill time that a follow-up saves which comes in time; 0 where fetching is no quicker; None: unknown.

    Only what prefill does not find in its own prefix cache can be saved. Its start and its new tokens are paid anyhow.
    """
    prefill, transfer = evidence.prefill, evidence.transfer
    if prefill is None or transfer is None:
        return None
    missing = evidence.turn_tokens * (1 - (evidence.prefill_cache_hit_percent or 0) / 100)
    return max(0.0, (prefill.slope - transfer.slope) * missing - max(0.0, transfer.intercept))


def stake(evidence: Evidence) -> Stake | None:
    """What is at stake in one turn; None: unknown.

    A decode pod's whole cost is charged to its KV cache, token by token: as if memory were always short. This is the
    price of the rent in the ski-rental problem, and keeps the TTL rather short.
    """
    saved = saved_seconds(evidence)
    if saved is None or not evidence.decode_capacity_tokens or evidence.turn_tokens <= 0:
        return None
    return Stake(saved, evidence.turn_tokens * evidence.pod_cost / evidence.decode_capacity_tokens)


def pinned_tokens(evidence: Evidence, gaps: Gaps, ttl: float, rate: float) -> float:
    """Mean tokens held on one decode pod for later turns, by Little's law; `rate` in turns per second over all pods."""
    if not gaps.turns:
        return 0.0
    return rate / max(1, evidence.decode_pods) * evidence.turn_tokens * gaps.kept_seconds(ttl)[0] / gaps.turns


def room(evidence: Evidence) -> float | None:
    """Tokens that one decode pod can hold for later turns beside its running ones; None: unknown."""
    if not evidence.decode_capacity_tokens:
        return None
    allowed = evidence.decode_capacity_tokens * evidence.max_pinned_percent / 100
    return max(0.0, min(allowed, evidence.decode_capacity_tokens - (evidence.decode_running_tokens or 0)))
