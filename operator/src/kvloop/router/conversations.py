"""When conversations were last heard of: what tells the gaps between turns, and how long whole tasks take.

Longer than the store remembers handles, so that gaps longer than a lease are seen, too: advice on its length would be
blind otherwise. No content, no handle; every call O(1), spread over calls; bounded in number and in time.

With several routers each knows the turns that it served itself: a gap between turns at two routers is not seen.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvloop.router.outcome import Arm

MEMORY_SECONDS = 86_400.0
"""Longest gap that is seen."""
QUIET_SECONDS = 900.0
"""A conversation without a turn for so long counts as a task that has ended: ten times what 90 percent of the gaps
between an agent's turns are below. A later turn begins another task."""
MOST = 50_000
"""Conversations remembered; some 300 bytes each."""


@dataclass(slots=True)
class Talk:
    """A conversation between two turns."""

    began: float
    """Arrival of its task's first turn."""
    left: float = 0.0
    """End of its last turn."""
    turns: int = 0
    """Of the conversation."""
    task_turns: int = 0
    """Of the task; 0 where that has ended."""
    holdout: bool = False


class Conversations:
    """Conversations by the key under which their next turn looks for its handle."""

    def __init__(self, clock: Callable[[], float], finished: Callable[[Arm, int, float], None]) -> None:
        """`clock` is monotonic, in seconds. `finished` is called with arm, turns and seconds of a task that ended."""
        self._clock = clock
        self._finished = finished
        self._talks: OrderedDict[bytes, Talk] = OrderedDict()
        self._running: OrderedDict[bytes, Talk] = OrderedDict()
        """Those of `_talks` whose task has not ended."""

    def __len__(self) -> int:
        return len(self._talks)

    def arrive(self, keys: Sequence[bytes], at: float) -> tuple[bytes | None, Talk]:
        """A turn has arrived: its conversation, and the key it was found by; another turn will not find it."""
        for key in keys:
            if (talk := self._talks.pop(key, None)) is not None:
                if self._running.pop(key, None) is not None and at >= talk.left + QUIET_SECONDS:
                    self._finish(talk)
                return key, talk
        return None, Talk(began=at)

    def leave(self, key: bytes, talk: Talk, arrived: float, *, ends: bool) -> None:
        """A turn that had arrived then has been served; `ends`: the client says that none will follow."""
        now = self._clock()
        if not talk.task_turns:
            talk.began = arrived
        talk.left, talk.turns, talk.task_turns = now, talk.turns + 1, talk.task_turns + 1
        if ends:
            self._finish(talk)
        else:
            self._talks[key] = self._running[key] = talk
            self._talks.move_to_end(key)
            self._running.move_to_end(key)
        self.sweep()

    def restore(self, key: bytes, talk: Talk) -> None:
        """The turn that had arrived was refused: it may come again."""
        self._talks[key] = self._running[key] = talk

    def sweep(self) -> None:
        """End tasks and forget conversations whose time has come."""
        now = self._clock()
        while self._running and now >= next(iter(self._running.values())).left + QUIET_SECONDS:
            self._finish(self._running.popitem(last=False)[1])
        while self._talks and (len(self._talks) > MOST or now >= self._oldest.left + MEMORY_SECONDS):
            key, _ = self._talks.popitem(last=False)
            self._running.pop(key, None)

    @property
    def _oldest(self) -> Talk:
        return next(iter(self._talks.values()))

    def _finish(self, talk: Talk) -> None:
        self._finished(Arm.HOLDOUT if talk.holdout else Arm.REUSED, talk.task_turns, talk.left - talk.began)
        talk.task_turns = 0
