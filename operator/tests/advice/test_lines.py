"""Lines through measured times, and where they cross."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvloop.advice.evidence import Line
from kvloop.advice.lines import MIN_SAMPLES, Point, break_even, fit, median

QWEN_PREFILL = Line(0.039, 26.9e-6)
QWEN_TRANSFER = Line(0.0107, 4.55e-6)


def measured(line: Line, samples: int, noise: float = 0.0, seed: int = 1) -> list[Point]:
    """Times of prompts of 500 to 24,000 tokens."""
    random_ = random.Random(seed)  # noqa: S311 (data of a test)
    tokens = [random_.uniform(500, 24_000) for _ in range(samples)]
    return [Point(each, line.at(each) * random_.lognormvariate(0, noise)) for each in tokens]


def test_a_line_is_found_again() -> None:
    found = fit(measured(QWEN_PREFILL, 100))
    assert found is not None
    assert found.slope == pytest.approx(QWEN_PREFILL.slope, rel=1e-6)
    assert found.intercept == pytest.approx(QWEN_PREFILL.intercept, rel=1e-6)
    assert found.samples == 100


def test_a_fifth_of_wild_outliers_does_not_move_it() -> None:
    points = measured(QWEN_PREFILL, 500, noise=0.05)
    wild = [Point(each.tokens, each.seconds + 30) for each in points[:100]]
    found = fit(wild + points[100:])
    assert found is not None
    assert found.slope == pytest.approx(QWEN_PREFILL.slope, rel=0.1)


def test_sums_by_length_give_the_same_line() -> None:
    """The operator has means of many turns of like length, with their numbers."""
    found = fit([Point(each, QWEN_PREFILL.at(each), weight=40) for each in (700, 1500, 3000, 6000, 12_000, 24_000)])
    assert found is not None
    assert found.slope == pytest.approx(QWEN_PREFILL.slope)
    assert found.samples == 240


def test_the_error_is_that_of_many_repetitions() -> None:
    slopes, errors = [], []
    for seed in range(60):
        found = fit(measured(QWEN_PREFILL, 200, noise=0.2, seed=seed))
        assert found is not None
        slopes.append(found.slope)
        errors.append(found.error)
    mean = sum(slopes) / len(slopes)
    spread = math.sqrt(sum((each - mean) ** 2 for each in slopes) / len(slopes))
    assert sum(errors) / len(errors) == pytest.approx(spread, rel=0.5)


def test_too_few_or_too_equal_points_are_no_line() -> None:
    assert fit([]) is None
    assert fit(measured(QWEN_PREFILL, MIN_SAMPLES - 1)) is None
    assert fit([Point(1000 + i, 0.1) for i in range(100)]) is None
    assert fit([Point(math.nan, 1), Point(5, math.inf)] * 50) is None


def test_break_even_of_the_published_lines() -> None:
    found = break_even(QWEN_PREFILL, QWEN_TRANSFER)
    assert found.tokens == pytest.approx(479, abs=1)
    assert found.low == found.high == found.tokens


def test_a_transfer_slower_than_prefill_never_pays() -> None:
    found = break_even(Line(0, 1e-6), Line(0.01, 2e-6))
    assert found.tokens == found.high == math.inf


def test_the_interval_holds_the_truth() -> None:
    inside = 0
    for seed in range(40):
        prefill = fit(measured(QWEN_PREFILL, 300, noise=0.1, seed=seed))
        transfer = fit(measured(QWEN_TRANSFER, 300, noise=0.1, seed=1000 + seed))
        assert prefill is not None
        assert transfer is not None
        found = break_even(prefill, transfer)
        inside += found.low <= 479 <= found.high
    assert inside >= 36


@given(
    st.lists(
        st.builds(
            Point,
            st.floats(allow_nan=True, allow_infinity=True),
            st.floats(allow_nan=True, allow_infinity=True),
            st.floats(allow_nan=True, allow_infinity=True),
        ),
        max_size=80,
    )
)
def test_no_points_are_too_strange(points: list[Point]) -> None:
    fit(points)


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0.1, 10)), min_size=1))
def test_a_median_is_one_of_its_values(values: list[tuple[float, float]]) -> None:
    assert median(values) in [value for value, _ in values]
