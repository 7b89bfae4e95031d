"""Means over a day: what is advised for weeks must not swing from minute to minute, or between day and night."""

from collections.abc import Callable
from typing import Final

from kvloop.plan.measured import Usual

DAY: Final = 86_400.0


class Averaged:
    """The mean of all that it was told, later ones fading within a day."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._at = clock()
        self._times = 0
        self._mean = Usual()

    def take(self, present: Usual) -> Usual:
        """Take how it is now; gives how it usually is."""
        now, before = self._clock(), self._mean
        passed, self._at, self._times = (now - self._at) / DAY, now, self._times + 1
        share = min(1.0, max(1 / self._times, passed))
        self._mean = Usual(
            turns_per_second=before.turns_per_second + share * (present.turns_per_second - before.turns_per_second),
            running_tokens=_between(before.running_tokens, present.running_tokens, share),
            cache_hit_percent=_between(before.cache_hit_percent, present.cache_hit_percent, share),
        )
        return self._mean


def _between(before: float | None, present: float | None, share: float) -> float | None:
    """What is not known now stays as it was."""
    if before is None or present is None:
        return before if present is None else present
    return before + share * (present - before)
