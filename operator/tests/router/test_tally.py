"""Counters since the start, and over a window that slides."""

import random
from dataclasses import dataclass

import pytest

from kvloop.router import histogram
from kvloop.router.outcome import CLIENT_LEFT, Outcome
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
    tally.add(Outcome(decode_only="no_prefill", failed_transfer=True))
    counters = tally.counters().model_dump()
    assert counters == {
        "turns": 5,
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
        "misses": {"expired": 1},
        "not_eligible": {"n": 1},
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
    assert tally.first_token().reused.count == 0
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
    times = tally.first_token()
    assert (times.reused.count, times.recomputed.count, times.holdout.count) == (100, 1, 0)
    assert times.reused.p50_ms == pytest.approx(50, rel=0.03)
    assert times.reused.p95_ms == pytest.approx(95, rel=0.03)
    assert times.recomputed.p50_ms == pytest.approx(2000, rel=0.03)


def test_percentiles_are_close_to_exact_ones() -> None:
    chance = random.Random(1)  # noqa: S311 (a sample, not a secret)
    times = sorted(chance.lognormvariate(5, 2) for _ in range(5000))
    counts = [0] * histogram.BUCKETS
    for time in times:
        counts[histogram.bucket(time)] += 1
    for share in (0.01, 0.5, 0.95, 0.99):
        assert histogram.percentile(counts, share) == pytest.approx(times[int(share * 5000) - 1], rel=0.06)


def test_percentiles_at_the_edges() -> None:
    assert histogram.percentile([0] * histogram.BUCKETS, 0.5) == 0
    assert histogram.bucket(0) == 0
    assert histogram.bucket(1e12) == histogram.BUCKETS - 1
