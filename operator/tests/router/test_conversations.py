"""Gaps between turns, and whole tasks."""

from dataclasses import dataclass, field

import pytest

from kvloop.router import conversations
from kvloop.router.conversations import MEMORY_SECONDS, QUIET_SECONDS, Conversations
from kvloop.router.outcome import Arm


@dataclass
class Bench:
    """Turns by hand; a turn's key is its number, and the next one finds it by that."""

    now: float = 1000.0
    finished: list[tuple[Arm, int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory = Conversations(lambda: self.now, lambda *task: self.finished.append(task))

    def turn(self, number: int, lasts: float = 1.0, *, ends: bool = False, holdout: bool = False) -> float | None:
        """Serve the turn with that number; gives the gap before it."""
        arrived = self.now
        key, talk = self.memory.arrive([b"%d" % (number - 1)], arrived)
        gap = arrived - talk.left if key is not None else None
        talk.holdout = holdout
        self.now += lasts
        self.memory.leave(b"%d" % number, talk, arrived, ends=ends)
        return gap


def test_gaps_are_from_end_to_arrival() -> None:
    bench = Bench()
    assert bench.turn(1) is None
    bench.now += 5
    assert bench.turn(2) == 5
    bench.now += 7200
    assert bench.turn(3) == 7200


def test_a_branch_is_another_conversation() -> None:
    bench = Bench()
    bench.turn(1)
    assert bench.turn(2) is not None
    assert bench.turn(2) is None


def test_a_refused_turn_comes_again() -> None:
    bench = Bench()
    bench.turn(1)
    key, talk = bench.memory.arrive([b"1"], bench.now)
    assert key is not None
    bench.memory.restore(key, talk)
    bench.now += 3
    assert bench.turn(2, ends=True) == 3
    assert bench.finished == [(Arm.REUSED, 2, 5.0)]


def test_a_day_is_remembered_and_no_more() -> None:
    bench = Bench()
    bench.turn(1)
    bench.now += MEMORY_SECONDS - 1
    assert bench.turn(2) is not None
    bench.now += MEMORY_SECONDS + 1
    bench.memory.sweep()
    assert len(bench.memory) == 0
    assert bench.turn(3) is None


def test_a_task_ends_when_its_client_says_so_or_after_a_silence() -> None:
    bench = Bench()
    bench.turn(1)
    bench.now += 8
    bench.turn(2, ends=True, holdout=True)
    assert bench.finished == [(Arm.HOLDOUT, 2, 10.0)]
    assert bench.turn(3) is None, "it has ended"
    bench.turn(4)
    bench.now += QUIET_SECONDS - 1
    bench.memory.sweep()
    assert len(bench.finished) == 1
    bench.now += 1
    bench.memory.sweep()
    assert bench.finished[1:] == [(Arm.REUSED, 2, 2.0)]


def test_after_a_silence_another_task_begins() -> None:
    """Whether or not anything swept meanwhile; the silence is a gap nevertheless."""
    for sweeps in (True, False):
        bench = Bench()
        bench.turn(1)
        bench.turn(2)
        bench.now += QUIET_SECONDS + 5
        if sweeps:
            bench.memory.sweep()
        assert bench.turn(3) == QUIET_SECONDS + 5
        bench.turn(4, ends=True)
        assert bench.finished == [(Arm.REUSED, 2, 2.0), (Arm.REUSED, 2, 2.0)]


def test_its_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "MOST", 10)
    bench = Bench()
    for number in range(0, 100, 2):
        bench.turn(number)
    assert len(bench.memory) == 10
    bench.now += QUIET_SECONDS
    bench.memory.sweep()
    assert len(bench.finished) == 10, "the others were forgotten, not ended"
