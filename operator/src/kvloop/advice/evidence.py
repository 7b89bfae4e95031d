"""What advice is made from: measurements of one custom resource, or of one log or trace."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Counts = Mapping[int, int]
"""A histogram of `kvloop.api.histogram`: how many, by index of the bucket."""


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds as a straight line through tokens, and how well it is known."""

    intercept: float
    """Seconds at no tokens."""
    slope: float
    """Seconds per token."""
    samples: int = 0
    """Measurements behind it; 0 for a published or assumed line."""
    error: float = 0.0
    """Standard error of the slope, in seconds per token."""
    intercept_error: float = 0.0
    """Standard error of the intercept, in seconds."""

    def at(self, tokens: float) -> float:
        """Seconds for that many tokens."""
        return self.intercept + self.slope * tokens


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known. What is not known is None, empty or 0; advice then says what it lacks.

    Counts are of the same stretch of time and of turns that can take part in reuse, those of the holdout included.
    """

    gaps: Counts = field(default_factory=dict)
    """Seconds from decode's last byte to the arrival of the next turn, also where that came too late for its KV."""
    ended: int = 0
    """Turns that were not followed: all turns less the gaps, without those of which the client said so. A turn counts
    here until its follow-up comes, which earlier turns make up for once the time is much longer than the TTL."""
    conversations: int | None = None
    """Conversations that had follow-ups; None: unknown, and taken to be many, as far as gaps and ends allow."""
    turn_tokens: float = 0.0
    """Mean tokens that decode holds for a turn when it ends: prompt and answer."""
    turns_per_second: float = 0.0
    """Mean rate at which turns end, over all decode pods."""
    peak_turns_per_second: float | None = None
    """The same at the busiest time, such as the busiest minute; None: the mean."""

    prefill: Line | None = None
    """Prefill seconds over computed tokens."""
    transfer: Line | None = None
    """Seconds of a prefill leg over fetched tokens, beyond what its computed tokens take."""
    prefill_cache_hit_percent: float | None = None
    """Share of queried prompt tokens that prefill finds in its own prefix cache, 0 to 100."""

    decode_capacity_tokens: int | None = None
    """Tokens that the KV cache of one decode pod holds."""
    decode_running_tokens: float | None = None
    """Tokens of it that running turns take on average, without what is held for later turns; None: unknown."""
    decode_pods: int = 1
    pod_cost: float = 1.0
    """Cost of a decode pod in prefill pods."""

    treated_first_token: Counts = field(default_factory=dict)
    """Time to first token of follow-ups outside the holdout, whether they reused or not; a histogram of any unit. Those
    that reused alone are no fair comparison: they came in time, and had not changed their history."""
    holdout_first_token: Counts = field(default_factory=dict)
    """The same of follow-ups in the holdout, in the same unit."""

    ttl: float | None = None
    """Seconds in force for which a handle can be used: the lesser of `router.leaseSeconds` and the TTL less the
    router's margin of 10 s."""
    threshold: int | None = None
    """kvRecomputeThresholdTokens in force."""
    holdout_percent: int | None = None
    """router.holdoutPercent in force."""
    max_pinned_percent: int = 50
    """router.maxPinnedPercent in force: above it the router ends leases early."""
