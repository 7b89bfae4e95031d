"""Histograms that router, operator and command line share."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvloop.api import histogram
from kvloop.api.histogram import MOST, RATIO, TOKEN


@given(st.floats(1e-9, 1e12), st.sampled_from([histogram.MILLISECOND, TOKEN]))
@settings(derandomize=True)
def test_a_value_lies_in_its_bucket(value: float, least: float) -> None:
    index = histogram.bucket(value, least)
    assert 0 <= index <= MOST
    assert index == 0 or histogram.start(index, least) <= value * (1 + 1e-9)
    assert index == MOST or value <= histogram.start(index + 1, least) * (1 + 1e-9)


def test_the_begin_of_each_bucket_belongs_to_it() -> None:
    for least in (histogram.MILLISECOND, TOKEN):
        begins = [histogram.start(index, least) for index in range(MOST + 1)]
        assert [histogram.bucket(begin, least) for begin in begins] == list(range(MOST + 1))


@pytest.mark.parametrize(("tokens", "octave"), [(0, 0), (1, 0), (2, 1), (3, 1), (2047, 10), (2048, 11), (4095, 11)])
def test_octaves(tokens: int, octave: int) -> None:
    assert histogram.octave(tokens) == octave


def test_percentiles_and_means_are_close_to_exact_ones() -> None:
    chance = random.Random(1)  # noqa: S311 (a sample, not a secret)
    times = sorted(chance.lognormvariate(-2, 2) for _ in range(5000))
    counts = histogram.merge({histogram.bucket(time): 1} for time in times)
    assert histogram.count(counts) == 5000
    assert histogram.mean(counts) == pytest.approx(sum(times) / 5000, rel=0.03)
    for share in (0.05, 0.5, 0.95, 0.99):
        assert histogram.percentile(counts, share) == pytest.approx(times[int(share * 5000) - 1], rel=0.06)


def test_weights_shift_a_percentile() -> None:
    assert histogram.percentile({0: 1, 40: 1}, 0.5) == pytest.approx(0.001 * RATIO)
    assert histogram.percentile({0: 0.1, 40: 1}, 0.5) > 1


def test_nothing_counted() -> None:
    assert histogram.percentile({}, 0.5) == histogram.percentile({3: 0}, 0.5) == histogram.mean({}) == 0
