"""Counts of turns: since the start, and over a sliding window."""

from collections import deque
from collections.abc import Callable, Mapping

from kvloop.api import counters, histogram
from kvloop.api.contract import ReuseCounters
from kvloop.api.counters import Flat, Path
from kvloop.router.outcome import Arm, Outcome

SLOTS = 60
"""The window moves on in steps of a sixtieth of its length."""


class Tally:
    """Counters that only grow: what came in each step of the window is kept apart, so that it can be left behind."""

    def __init__(self, window_seconds: float, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._step = window_seconds / SLOTS
        self._before: Flat = {}
        """What came before the present step."""
        self._steps: deque[tuple[float, Flat]] = deque([(clock(), {})], maxlen=SLOTS + 1)
        """Begin of each step, and what came in it; the last one is the present."""

    def resize(self, window_seconds: float) -> None:
        """Go over to another length; the window begins anew."""
        self._step = window_seconds / SLOTS
        counters.add(self._before, self._steps[-1][1])
        self._steps.clear()
        self._steps.append((self._clock(), {}))

    def add(self, outcome: Outcome) -> None:
        """Count a turn that has ended. Of one that was refused only a failed transfer counts."""
        self._roll()
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
        self._roll()
        self._count(tokens * max(0.0, seconds), "pinned_token_seconds")

    def finished(self, arm: Arm, turns: int, seconds: float) -> None:
        """A conversation has ended, so many turns and seconds after it began."""
        if turns > 1:
            self._roll()
            self._count(1, "tasks", arm, histogram.octave(turns), histogram.bucket(seconds))

    def _count(self, number: float, *path: str | int) -> None:
        if number:
            now = self._steps[-1][1]
            now[path] = now.get(path, 0) + number

    def _add_follow_up(self, outcome: Outcome) -> None:
        self._count(1, "follow_ups")
        for name in ("prompt_tokens", "offered_tokens", "verified_tokens", "reused_tokens"):
            self._count(getattr(outcome, name), name)
        self._count(outcome.prompt_tokens - outcome.reused_tokens, "recomputed_tokens")
        self._count(outcome.miss == "expired", "expired_handles")
        if outcome.reused_tokens:
            self._count(1, "reused_turns")
        else:
            self._count(1, "misses", outcome.miss or "unknown")
        if outcome.stream and outcome.first_byte_seconds is not None:
            length = histogram.octave(outcome.prompt_tokens)
            self._count(1, "first_token", outcome.arm, length, histogram.bucket(outcome.first_byte_seconds))

    def _add_conversation(self, outcome: Outcome) -> None:
        if not outcome.turn:
            return
        self._count(outcome.turn == 1, "conversations")
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
        total = dict(self._before)
        counters.add(total, self._steps[-1][1])
        return _model(total)

    def window(self) -> ReuseCounters:
        """Over the window."""
        self._roll()
        total: Flat = {}
        for _, numbers in self._steps:
            counters.add(total, numbers)
        return _model(total)

    def window_seconds(self) -> float:
        """Length of what `window` tells, in seconds."""
        self._roll()
        return self._clock() - self._steps[0][0]

    def _roll(self) -> None:
        now, (last, numbers) = self._clock(), self._steps[-1]
        if now < last + self._step:
            return
        counters.add(self._before, numbers)
        passed = int((now - last) / self._step)
        for i in range(max(1, passed - SLOTS), passed + 1):
            self._steps.append((last + i * self._step, {}))


def _model(numbers: Mapping[Path, float]) -> ReuseCounters:
    return ReuseCounters.model_validate(counters.nested(numbers))
