"""What is usual, from what is at the moment."""

import random

import pytest

from kvloop.controller.usual import Averaged
from kvloop.plan.measured import Usual

from .doubles import Clock


def test_the_first_is_all_that_is_known(clock: Clock) -> None:
    first = Usual(2.0, 500.0, 10.0)
    assert Averaged(clock).take(first) == first


def test_a_busy_minute_moves_it_little_and_another_load_does_within_days(clock: Clock) -> None:
    chance, averaged, seen = random.Random(3), Averaged(clock), []  # noqa: S311 (data of a test)
    for _ in range(1440):
        clock.now += 60
        seen.append(averaged.take(Usual(chance.expovariate(1), chance.uniform(0, 1000))).running_tokens)
    assert all(each is not None and 400 < each < 600 for each in seen[200:])
    for _ in range(3 * 1440):
        clock.now += 60
        usual = averaged.take(Usual(5.0, 2000.0))
    assert usual.turns_per_second == pytest.approx(5, rel=0.05)
    assert usual.running_tokens == pytest.approx(2000, rel=0.05)


def test_what_is_not_known_now_stays(clock: Clock) -> None:
    averaged = Averaged(clock)
    averaged.take(Usual(running_tokens=7.0))
    clock.now += 60
    usual = averaged.take(Usual(cache_hit_percent=30.0))
    assert (usual.running_tokens, usual.cache_hit_percent) == (7, 30)
