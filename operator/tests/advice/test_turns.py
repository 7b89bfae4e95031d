"""Evidence from turns."""

import pytest

from kvloop.advice.turns import Timed, Turn, evidence
from kvloop.api import histogram


def conversation(begin: float, gaps: list[float], tokens: int = 1000) -> list[Turn]:
    """Turns of 2 s each."""
    turns = [Turn(begin, begin + 2, tokens, tokens)]
    for gap in gaps:
        start = turns[-1].end + gap
        turns.append(
            Turn(start, start + 2, tokens, tokens, before=len(turns) - 1, gap=gap, history_tokens=tokens - 100)
        )
    return turns


def test_no_turns_are_no_evidence() -> None:
    assert evidence([]).gaps == {}
    assert evidence([Turn(0, 1, 10, 10)]).turns_per_second == 0


def test_gaps_and_ends_are_counted() -> None:
    turns = [*conversation(0, [5, 5, 5]), *conversation(0, [50]), *conversation(0, []), Turn(999, 1000, 10, 10)]
    found = evidence(turns)
    assert found.gaps == {histogram.bucket(5): 3, histogram.bucket(50): 1}
    assert (found.ended, found.conversations) == (3, 2)


def test_turns_too_late_to_be_followed_in_the_time_are_left_out() -> None:
    """Or else every log would look as if conversations had just ended."""
    turns = [turn for i in range(100) for turn in conversation(10 * i, [])]
    assert evidence(turns).ended == 90


def test_turns_of_which_the_client_said_that_they_are_the_last_hold_nothing() -> None:
    turns = [Turn(0, 1, 10, 10), Turn(1, 2, 10, 10, last=True), Turn(99, 100, 10, 10)]
    assert evidence(turns).ended == 1


def test_rates_tokens_and_running_turns() -> None:
    turns = [turn for i in range(101) for turn in conversation(10 * i, [], tokens=500)]
    turns += [turn for i in range(60) for turn in conversation(500 + i / 2, [], tokens=500)]
    found = evidence(turns)
    assert found.turns_per_second == pytest.approx(0.161)
    assert found.peak_turns_per_second == pytest.approx(66 / 60, rel=0.02)
    assert found.turn_tokens == 500
    assert found.decode_running_tokens == pytest.approx(0.161 * 2 * 500)


def test_first_tokens_by_arm() -> None:
    """Misses count as well: conversations are compared as they were drawn, not as they fared."""
    times = {"reused": 0.1, "recomputed": 0.8, "holdout": 0.4, "first": 9.0}
    arms = [Timed(arm, None, 0, 0, 0, seconds) for arm, seconds in times.items()]
    found = evidence([Turn(0, 1, 10, 10)], arms)
    assert found.treated_first_token == {histogram.bucket(0.1): 1, histogram.bucket(0.8): 1}
    assert found.holdout_first_token == {histogram.bucket(0.4): 1}
    assert found.prefill is None


def test_what_prefill_finds_in_its_own_cache() -> None:
    legs = [Timed("reused", 1.0, 100, 200, 100, None), Timed("first", 1.0, 0, 0, 900, None)]
    assert evidence([Turn(0, 1, 10, 10)], legs).prefill_cache_hit_percent == 25
    assert evidence([Turn(0, 1, 10, 10)]).prefill_cache_hit_percent is None
