"""Counts of turns: since the start, and over a sliding window."""

import time
from collections.abc import Callable

from kvloop.api import histogram
from kvloop.api.contract import Miss, ReuseCounters
from kvloop.api.counters import Sliding, nested
from kvloop.router.outcome import Arm, Outcome

ENOUGH_GAPS = 20
"""A median of fewer says little."""


class Tally:
    """Counters that only grow, and a window over them."""

    def __init__(self, window_seconds: float, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self.restart(window_seconds)

    def restart(self, window_seconds: float) -> None:
        """Count from 0 again."""
        self.since = time.time()
        """Begin of the counts, in seconds since the epoch."""
        self._counts = Sliding(window_seconds, self._clock)
        self._count = self._counts.count
        self.resize = self._counts.resize
        self.window_seconds = self._counts.window_seconds

    def add(self, outcome: Outcome) -> None:
        """Count a turn that has ended. Of one that was refused only a failed transfer counts."""
        self._count(outcome.failed_transfer, "failed_transfers")
        if not outcome.served:
            return
        self._count(1, "turns")
        self._count(bool(outcome.decode_only), "decode_only_turns")
        self._count(outcome.unsplit, "unsplit_turns")
        if outcome.not_eligible:
            self._count(1, "not_eligible", outcome.not_eligible)
        elif outcome.follow_up:
            self._add_follow_up(outcome)
        self._add_conversation(outcome)
        self._add_leg(outcome)

    def released(self, tokens: int, seconds: float) -> None:
        """Decode no longer holds a turn's KV, or nobody will ask for it; it did for so long."""
        self._count(tokens * max(0.0, seconds), "pinned_token_seconds")

    def ended(self) -> None:
        """A lease was ended before its time."""
        self._count(1, "ended_leases")

    def finished(self, arm: Arm, turns: int, seconds: float) -> None:
        """A conversation has ended, so many turns and seconds after it began."""
        if turns > 1:
            self._count(1, "tasks", arm, histogram.octave(turns), histogram.bucket(seconds))

    def usual_gap(self) -> float:
        """Median of the gaps between turns within the window, in seconds; 0 while too few are known."""
        gaps = {int(path[1]): int(number) for path, number in self._counts.window().items() if path[0] == "gaps"}
        return histogram.percentile(gaps, 0.5) if histogram.count(gaps) >= ENOUGH_GAPS else 0.0

    def _add_follow_up(self, outcome: Outcome) -> None:
        self._count(1, "follow_ups")
        for name in ("prompt_tokens", "offered_tokens", "verified_tokens", "reused_tokens"):
            self._count(getattr(outcome, name), name)
        self._count(outcome.prompt_tokens - outcome.reused_tokens, "recomputed_tokens")
        self._count(outcome.miss == Miss.EXPIRED, "expired_handles")
        if outcome.reused_tokens:
            self._count(1, "reused_turns")
        else:
            self._count(1, "misses", outcome.miss or Miss.UNKNOWN)
        if outcome.stream and outcome.first_byte_seconds is not None:
            length = histogram.octave(outcome.prompt_tokens)
            self._count(1, "first_token", outcome.arm, length, histogram.bucket(outcome.first_byte_seconds))

    def _add_conversation(self, outcome: Outcome) -> None:
        if not outcome.turn:
            return
        self._count(outcome.turn == 1, "conversations")
        self._count(outcome.turn == 2, "continued_conversations")
        self._count(outcome.ends, "closed_turns")
        self._count(bool(outcome.pinned_tokens), "pinned_turns")
        self._count(outcome.pinned_tokens, "pinned_tokens")
        self._count(outcome.wait_seconds, "time", "first_token_seconds")
        self._count(outcome.total_seconds - outcome.wait_seconds, "time", "generation_seconds")
        if outcome.gap_seconds is not None:
            self._count(outcome.gap_seconds, "time", "gap_seconds")
            self._count(1, "gaps", histogram.bucket(outcome.gap_seconds))

    def _add_leg(self, outcome: Outcome) -> None:
        """Only of legs whose first try was good: what was tried twice says little about either."""
        if outcome.leg_seconds is None or outcome.retries or outcome.decode_only:
            return
        fetched, computed = outcome.reused_tokens, outcome.computed_tokens
        name, length = ("fetch_legs", fetched) if fetched else ("prefill_legs", computed)
        where = (name, histogram.bucket(length, histogram.TOKEN))
        self._count(1, *where, "count")
        self._count(computed, *where, "computed_tokens")
        self._count(fetched, *where, "fetched_tokens")
        self._count(outcome.leg_seconds, *where, "seconds")

    def counters(self) -> ReuseCounters:
        """Since the start."""
        return ReuseCounters.model_validate(nested(self._counts.total()))

    def window(self) -> ReuseCounters:
        """Over the window."""
        return ReuseCounters.model_validate(nested(self._counts.window()))
