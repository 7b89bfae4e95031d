"""Counts of turns: since the start, and over a sliding window."""

from collections import Counter, deque
from collections.abc import Callable

from kvloop.api.contract import FirstToken, FirstTokenByArm, ReuseCounters
from kvloop.router import histogram
from kvloop.router.outcome import Arm, Outcome

SLOTS = 60
"""The window moves on in steps of a sixtieth of its length."""
_TIMED = (Arm.REUSED, Arm.RECOMPUTED, Arm.HOLDOUT)


class Tally:
    """Counters that only grow, and snapshots of them: what the window holds is a difference."""

    def __init__(self, window_seconds: float, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._step = window_seconds / SLOTS
        self._now: Counter[tuple[str, str] | tuple[Arm, int]] = Counter()
        start: Counter[tuple[str, str] | tuple[Arm, int]] = Counter()
        self._past = deque([(clock(), start)], maxlen=SLOTS + 1)

    def resize(self, window_seconds: float) -> None:
        """Go over to another length; the window begins anew."""
        self._step = window_seconds / SLOTS
        self._past.clear()
        self._past.append((self._clock(), self._now.copy()))

    def add(self, outcome: Outcome) -> None:
        """Count a turn that has ended. Of one that was refused only a failed transfer counts."""
        self._roll()
        count = self._now
        count["failed_transfers", ""] += outcome.failed_transfer
        if not outcome.served:
            return
        count["turns", ""] += 1
        count["decode_only_turns", ""] += bool(outcome.decode_only)
        if outcome.not_eligible:
            count["not_eligible", outcome.not_eligible] += 1
        elif outcome.follow_up:
            self._add_follow_up(outcome)

    def _add_follow_up(self, outcome: Outcome) -> None:
        count = self._now
        count["follow_ups", ""] += 1
        for name in ("prompt_tokens", "offered_tokens", "verified_tokens", "reused_tokens"):
            count[name, ""] += getattr(outcome, name)
        count["recomputed_tokens", ""] += outcome.prompt_tokens - outcome.reused_tokens
        count["expired_handles", ""] += outcome.miss == "expired"
        if outcome.reused_tokens:
            count["reused_turns", ""] += 1
        else:
            count["misses", outcome.miss or "unknown"] += 1
        if outcome.stream and outcome.first_byte_seconds is not None:
            count[outcome.arm, histogram.bucket(outcome.first_byte_seconds * 1000)] += 1

    def counters(self) -> ReuseCounters:
        """Since the start."""
        return _counters(self._now)

    def window(self) -> ReuseCounters:
        """Over the window."""
        return _counters(self._difference())

    def window_seconds(self) -> float:
        """Length of what `window` tells, in seconds."""
        self._roll()
        return self._clock() - self._past[0][0]

    def first_token(self) -> FirstTokenByArm:
        """First-token times of follow-ups over the window."""
        difference = self._difference()
        times = {}
        for arm in _TIMED:
            counts = [difference[arm, i] for i in range(histogram.BUCKETS)]
            times[arm.value] = FirstToken(
                count=sum(counts),
                p50_ms=round(histogram.percentile(counts, 0.5), 1),
                p95_ms=round(histogram.percentile(counts, 0.95), 1),
            )
        return FirstTokenByArm(**times)

    def _difference(self) -> Counter[tuple[str, str] | tuple[Arm, int]]:
        self._roll()
        return self._now - self._past[0][1]

    def _roll(self) -> None:
        now, (last, _) = self._clock(), self._past[-1]
        if now < last + self._step:
            return
        missed = int((now - last) / self._step)
        for i in range(max(1, missed - SLOTS), missed + 1):
            self._past.append((last + i * self._step, self._now.copy()))


def _counters(count: Counter[tuple[str, str] | tuple[Arm, int]]) -> ReuseCounters:
    plain = {name: count[name, ""] for name in ReuseCounters.model_fields if name not in ("misses", "not_eligible")}
    by_reason: dict[str, dict[str, int]] = {"misses": {}, "not_eligible": {}}
    for key, value in count.items():
        name, reason = key
        if isinstance(reason, str) and name in by_reason:
            by_reason[name][reason] = value
    return ReuseCounters(**plain, **by_reason)
