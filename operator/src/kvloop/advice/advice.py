"""What advice says."""

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Recommendation(Generic[T]):
    """A value for one setting, and why."""

    value: T | None
    """None where it cannot be told."""
    reason: str
    """In words, for people. Numbers in it are rounded, and it stays as it is while the value does."""
    confident: bool = False
    """Whether the value rests on enough measurements of this very system to act upon."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What one TTL would bring and cost."""

    ttl: float
    """Seconds for which a handle can be used."""
    hit_share: float
    """Follow-ups, of all, that come in time: 0 to 1."""
    pinned_tokens: float
    """Mean tokens held for later turns, on one decode pod."""
    wasted_share: float
    """Share of these held for turns that are never followed, or followed too late: 0 to 1."""
    net_seconds: float | None
    """Prefill time saved per turn less the price of the memory, in seconds of a prefill pod; None: cannot be priced."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Never applied by itself."""

    ttl: Recommendation[int]
    """Seconds for which a handle should be usable: `router.leaseSeconds`, which needs no restart. vLLM's own TTL,
    `transfer.decoderKVBlocksTTLSeconds`, has to be at least 10 s longer."""
    threshold: Recommendation[int]
    """Tokens, for `transfer.kvRecomputeThresholdTokens`."""
    holdout: Recommendation[int]
    """Percent, for `router.holdoutPercent`."""
    verdict: Recommendation[bool]
    """Whether reuse pays at all: `transfer.bidirectional`."""
    curve: tuple[CurvePoint, ...] = ()
    """By rising TTL; empty without gaps."""
    break_even_tokens: tuple[float, float] | None = None
    """Between these, with 95 percent confidence, fetching begins to pay; None: unknown, or it never does."""
    saved_seconds: float | None = None
    """Prefill time that a reused follow-up saves, in seconds; None: unknown."""


_NOTHING: Final = "Nothing was advised before."
UNKNOWN: Final = Advice(
    Recommendation(None, _NOTHING),
    Recommendation(None, _NOTHING),
    Recommendation(None, _NOTHING),
    Recommendation(None, _NOTHING),
)
"""What was advised before the first time."""
