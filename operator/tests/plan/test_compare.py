"""The comparison of arms: right on average, and wrong no more often than it says."""

import math
import random

from kvloop.api import histogram
from kvloop.plan.compare import MIN_SAMPLES, ratio

LENGTHS = {11: 0.1, 13: 0.3, 15: 1.0}
"""Median time without reuse, by octave."""


def arm(chance: random.Random, shares: dict[int, int], factor: float = 1.0) -> dict[int, dict[int, int]]:
    """Times that spread by factors, so many for each octave."""
    return {
        length: histogram.merge(
            {histogram.bucket(chance.lognormvariate(math.log(LENGTHS[length] * factor), 0.5)): 1} for _ in range(count)
        )
        for length, count in shares.items()
    }


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    chance = random.Random(7)  # noqa: S311 (a sample, not a secret)
    holds = 0
    for _ in range(400):
        found = ratio(arm(chance, {11: 20, 13: 60, 15: 200}, 0.5), arm(chance, {11: 40, 13: 20, 15: 10}), 1)
        assert found
        holds += found.low <= 2 <= found.high
        assert 1.5 < found.value < 2.7
    assert 0.93 <= holds / 400 <= 1, "95 percent, and a little more for what the buckets hide"


def test_outliers_move_it_little() -> None:
    chance = random.Random(8)  # noqa: S311 (a sample, not a secret)
    reused, other = arm(chance, {13: 300}, 0.5), arm(chance, {13: 100})
    reused[13][histogram.bucket(300.0)] = 6
    found = ratio(reused, other, 1)
    assert found
    assert 1.5 < found.value < 2.2, "their mean would be 40 times as long"


def test_few_conversations_prove_less_than_many() -> None:
    chance = random.Random(9)  # noqa: S311 (a sample, not a secret)
    reused, other = arm(chance, {13: 300}, 0.5), arm(chance, {13: 100})
    many, few = ratio(reused, other, 1), ratio(reused, other, 20)
    assert many
    assert few
    assert few.value == many.value
    assert few.high / few.low > (many.high / many.low) ** 2


def test_times_within_one_bucket_may_lie_anywhere_in_it() -> None:
    """As of one prompt again and again on an idle system: 101 and 118 ms are in one bucket, 99 and 101 ms are not."""
    found = ratio({11: {27: 500}}, {11: {27: 500}}, 1)
    assert found
    assert found.low < 101 / 118 < 118 / 101 < found.high
    found = ratio({11: {26: 500}}, {11: {27: 500}}, 1)
    assert found
    assert found.low < 101 / 99


def test_too_few_at_like_lengths() -> None:
    full = {0: MIN_SAMPLES}
    assert ratio({11: full}, {11: full}, 1)
    assert ratio({11: full}, {12: full}, 1) is None
    assert ratio({11: full}, {11: {0: MIN_SAMPLES - 1}, 12: full}, 1) is None
    assert ratio({}, {}, 1) is None
