"""Counters since the start, and over a window that slides."""

from dataclasses import dataclass, replace

import pytest

from kvloop.api import histogram
from kvloop.api.contract import Legs, TimeBudget
from kvloop.api.contract.summary import first_token_by_arm
from kvloop.router.outcome import CLIENT_LEFT, Arm, Outcome
from kvloop.router.tally import Tally


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def follow_up(reused: int = 900, seconds: float = 0.2, miss: str = "") -> Outcome:
    return Outcome(
        dialect="chat",
        stream=True,
        follow_up=True,
        prompt_tokens=1000,
        offered_tokens=950,
        verified_tokens=reused,
        reused_tokens=reused,
        miss=miss,
        first_byte_seconds=seconds,
    )


def test_counters_are_those_of_the_contract() -> None:
    tally = Tally(600, Clock())
    tally.add(Outcome())
    tally.add(follow_up())
    tally.add(follow_up(0, miss="expired"))
    tally.add(Outcome(not_eligible="n"))
    tally.add(Outcome(not_eligible="n", unsplit=True))
    tally.add(Outcome(decode_only="no_prefill", failed_transfer=True))
    counters = tally.counters().model_dump()
    assert counters == {
        "turns": 6,
        "follow_ups": 2,
        "reused_turns": 1,
        "prompt_tokens": 2000,
        "offered_tokens": 1900,
        "verified_tokens": 900,
        "reused_tokens": 900,
        "recomputed_tokens": 1100,
        "decode_only_turns": 1,
        "failed_transfers": 1,
        "expired_handles": 1,
        "unsplit_turns": 1,
        "misses": {"expired": 1},
        "not_eligible": {"n": 2},
        "first_token": {"reused": {9: {30: 1}}, "recomputed": {9: {30: 1}}},
        "gaps": {},
        "closed_turns": 0,
        "pinned_turns": 0,
        "pinned_tokens": 0,
        "ended_leases": 0,
        "pinned_token_seconds": 0,
        "prefill_legs": {},
        "fetch_legs": {},
        "time": {"first_token_seconds": 0, "generation_seconds": 0, "gap_seconds": 0},
        "conversations": 0,
        "continued_conversations": 0,
        "tasks": {},
    }
    assert tally.window().model_dump() == counters


def test_refused_turns_are_none() -> None:
    tally = Tally(600, Clock())
    for status in (400, 401, 429, 502, 503):
        tally.add(Outcome(status=status, follow_up=True, decode_only="x", failed_transfer=status == 502))
    tally.add(Outcome(status=CLIENT_LEFT))
    counters = tally.counters()
    assert (counters.turns, counters.follow_ups, counters.decode_only_turns, counters.failed_transfers) == (1, 0, 0, 1)


def test_the_window_forgets_and_the_counters_do_not() -> None:
    clock = Clock()
    tally = Tally(600, clock)
    tally.add(follow_up())
    clock.now += 300
    tally.add(follow_up())
    assert tally.window().turns == 2
    clock.now += 310
    assert tally.window().turns == 1
    clock.now += 310
    assert tally.window().turns == 0
    assert not tally.window().first_token
    assert tally.counters().turns == 2


def test_a_silence_longer_than_the_window_leaves_nothing_in_it() -> None:
    clock = Clock()
    tally = Tally(600, clock)
    tally.add(follow_up())
    clock.now += 100_000
    assert tally.window().turns == 0
    assert 600 <= tally.window_seconds() <= 620


def test_the_window_is_as_long_as_it_says() -> None:
    clock = Clock()
    tally = Tally(600, clock)
    clock.now += 45
    assert tally.window_seconds() == 45
    for _ in range(2000):
        clock.now += 1
        tally.add(Outcome())
        assert tally.window().turns <= tally.window_seconds() + 1  # the first one came right at its begin
    assert 600 <= tally.window_seconds() <= 620
    assert tally.window().turns >= 600


def test_first_token_times_by_arm() -> None:
    tally = Tally(600, Clock())
    for i in range(100):
        tally.add(follow_up(seconds=(i + 1) / 1000))
    tally.add(follow_up(0, seconds=2.0, miss="used"))
    window = tally.window()
    assert [set(window.first_token[arm]) for arm in ("reused", "recomputed")] == [{9}, {9}], "512 to 1023 tokens"
    times = first_token_by_arm(window)
    assert (times.reused.count, times.recomputed.count, times.holdout.count) == (100, 1, 0)
    assert times.reused.p50_ms == pytest.approx(50, rel=0.03)
    assert times.reused.p95_ms == pytest.approx(95, rel=0.05)
    assert times.recomputed.p50_ms == pytest.approx(2000, rel=0.1)


def test_where_the_time_goes_and_what_is_held() -> None:
    tally = Tally(600, Clock())
    first = Outcome(stream=True, turn=1, pinned_tokens=500, first_byte_seconds=0.25, total_seconds=1.0)
    second = replace(first, turn=2, gap_seconds=2.0, ends=True, pinned_tokens=0)
    for outcome in (first, second, Outcome(total_seconds=9.0), replace(first, status=502)):
        tally.add(outcome)
    tally.released(500, 2.0)
    counters = tally.counters()
    assert (counters.conversations, counters.continued_conversations, counters.closed_turns) == (1, 1, 1)
    assert (counters.pinned_turns, counters.pinned_tokens, counters.pinned_token_seconds) == (1, 500, 1000)
    assert counters.gaps == {histogram.bucket(2.0): 1}
    assert counters.time == TimeBudget(first_token_seconds=0.5, generation_seconds=1.5, gap_seconds=2.0)


def test_whole_tasks_by_arm_and_turns() -> None:
    tally = Tally(600, Clock())
    tally.finished(Arm.REUSED, 5, 8.0)
    tally.finished(Arm.HOLDOUT, 2, 8.0)
    tally.finished(Arm.REUSED, 1, 8.0)
    at = {histogram.bucket(8.0): 1}
    assert tally.counters().tasks == {"reused": {2: at}, "holdout": {1: at}}


def test_legs_by_length() -> None:
    """What was tried again says little of a leg's time, and what decode did alone nothing."""
    tally = Tally(600, Clock())
    computed = Outcome(prompt_tokens=1000, computed_tokens=1000, leg_seconds=0.5)
    fetched = replace(computed, computed_tokens=100, reused_tokens=900, leg_seconds=0.2)
    for outcome in (computed, computed, fetched, replace(computed, retries=1), Outcome(), Outcome(leg_seconds=1.0)):
        tally.add(outcome)
    counters = tally.counters()
    thousand = Legs(count=2, computed_tokens=2000, seconds=1.0)
    assert counters.prefill_legs == {39: thousand, 0: Legs(count=1, seconds=1.0)}
    assert counters.fetch_legs == {39: Legs(count=1, computed_tokens=100, fetched_tokens=900, seconds=0.2)}


def test_another_length_of_the_window_loses_no_count() -> None:
    clock = Clock()
    tally = Tally(600, clock)
    tally.add(follow_up())
    tally.resize(60)
    tally.add(follow_up())
    clock.now += 30
    assert (tally.counters().turns, tally.window().turns, tally.window_seconds()) == (2, 1, 30)


def test_the_usual_gap_is_known_after_some() -> None:
    clock = Clock()
    tally = Tally(600, clock)
    for i in range(40):
        assert (tally.usual_gap() > 0) == (i >= 20)
        tally.add(Outcome(turn=2, gap_seconds=100.0 if i % 4 == 3 else 5.0))
    assert tally.usual_gap() == pytest.approx(5, rel=0.2)
    clock.now += 1300
    assert tally.usual_gap() == 0, "it is that of the window"
