"""Straight lines through measured times, and where two of them cross."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from kvloop.advice.evidence import Line

MIN_SAMPLES: Final = 30
"""Fewer measurements make no line."""
MIN_SPREAD: Final = 1.5
"""Nor do measurements of nearly one length: the longest must be so many times the shortest."""
GROUPS: Final = 48
"""More points are first grouped into so many of like length, each with its medians: the pairs stay few."""
DEVIATIONS: Final = 1.96
"""Standard errors on either side that hold 95 percent."""
_MAD: Final = 1.4826
"""Standard deviations of a normal distribution per median absolute deviation."""
_MEDIAN: Final = math.sqrt(math.pi / 2)
"""How much wider medians of a normal distribution scatter than means do."""
_MOST: Final = 1e12
"""Tokens, seconds or measurements beyond this are none."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement, or the mean or median of `weight` ones of like length."""

    tokens: float
    seconds: float
    weight: float = 1.0


def fit(points: Iterable[Point]) -> Line | None:
    """The line through the points that outliers do not move; None where they are too few or of nearly one length.

    Weighted Theil-Sen: the slope is the median of the slopes of all pairs, weighted with the distance of each pair, and
    stands while less than 29 percent of the points are wrong. What can be no measurement is passed over.
    """
    usable = [each for each in points if _usable(each)]
    weight = sum(each.weight for each in usable)
    if weight < MIN_SAMPLES or max(each.tokens for each in usable) < MIN_SPREAD * min(each.tokens for each in usable):
        return None
    grouped = _grouped(sorted(usable, key=lambda each: each.tokens), weight)
    slopes = [
        ((b.seconds - a.seconds) / (b.tokens - a.tokens), a.weight * b.weight * (b.tokens - a.tokens))
        for a, b in combinations(grouped, 2)
        if b.tokens > a.tokens
    ]
    if not slopes:
        return None
    slope = median(slopes)
    intercept = median([(each.seconds - slope * each.tokens, each.weight) for each in grouped])
    return _with_errors(usable, weight, intercept, slope)


def median(values: Sequence[tuple[float, float]]) -> float:
    """Weighted median of at least one (value, weight)."""
    ordered = sorted(values)
    half, seen = sum(weight for _, weight in ordered) / 2, 0.0
    for value, weight in ordered:
        seen += weight
        if seen >= half:
            return value
    return ordered[-1][0]


@dataclass(frozen=True, slots=True)
class Leg:
    """One prefill leg, or the means of `weight` ones of like length."""

    computed: float
    """Tokens."""
    fetched: float
    """Tokens."""
    seconds: float
    weight: float = 1.0


def fit_legs(legs: Iterable[Leg]) -> tuple[Line | None, Line | None]:
    """The prefill line, from legs that fetched nothing, and the transfer line, from what the others take beyond it.

    So the transfer line holds all that reuse costs prefill: the pull itself, the handshake, attention over what came.
    """
    fetching: list[Leg] = []
    computing: list[Leg] = []
    for leg in legs:
        (fetching if leg.fetched > 0 else computing).append(leg)
    prefill = fit(Point(leg.computed, leg.seconds, leg.weight) for leg in computing)
    if prefill is None:
        return None, None
    beyond = (Point(leg.fetched, leg.seconds - prefill.at(leg.computed), leg.weight) for leg in fetching)
    transfer = fit(beyond)
    if transfer is None:
        return prefill, None
    return prefill, replace(transfer, intercept_error=math.hypot(transfer.intercept_error, prefill.intercept_error))


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Tokens from which fetching is quicker than computing; infinite where it never is."""

    low: float
    tokens: float
    high: float


def break_even(prefill: Line, transfer: Line) -> BreakEven:
    """Where the transfer line crosses the prefill line, with a 95 percent interval.

    The prefill's own start is paid on both ways, for the new tokens, so only its slope counts. The errors are taken at
    their worst together, which makes the interval rather too wide.
    """
    gain, error = prefill.slope - transfer.slope, DEVIATIONS * math.hypot(prefill.error, transfer.error)
    start, start_error = transfer.intercept, DEVIATIONS * transfer.intercept_error
    return BreakEven(
        _crossing(start - start_error, gain + error),
        _crossing(start, gain),
        _crossing(start + start_error, gain - error),
    )


def _crossing(start: float, gain: float) -> float:
    return max(0.0, start) / gain if gain > 0 else math.inf


def _usable(point: Point) -> bool:
    """Whether it can be a measurement at all; a comparison with NaN is never true."""
    return 1 <= point.tokens <= _MOST and abs(point.seconds) <= _MOST and 0 < point.weight <= _MOST


def _grouped(points: list[Point], weight: float) -> list[Point]:
    """Neighbours of about equal weight together, unless they are few."""
    if len(points) <= GROUPS:
        return points
    groups: list[list[Point]] = [[]]
    seen = 0.0
    for point in points:
        if seen >= weight * len(groups) / GROUPS:
            groups.append([])
        groups[-1].append(point)
        seen += point.weight
    return [
        Point(
            median([(each.tokens, each.weight) for each in group]),
            median([(each.seconds, each.weight) for each in group]),
            sum(each.weight for each in group),
        )
        for group in groups
    ]


def _with_errors(points: Sequence[Point], weight: float, intercept: float, slope: float) -> Line:
    """Errors as of least squares, with a scale that outliers do not move."""
    residuals = [
        (abs(each.seconds - intercept - slope * each.tokens) * math.sqrt(each.weight), each.weight) for each in points
    ]
    scale = _MEDIAN * _MAD * median(residuals)
    mean = sum(each.tokens * each.weight for each in points) / weight
    spread = sum(each.weight * (each.tokens - mean) ** 2 for each in points)
    if spread <= 0:
        return Line(intercept, slope, round(weight), math.inf, math.inf)
    return Line(
        intercept,
        slope,
        round(weight),
        error=scale / math.sqrt(spread),
        intercept_error=scale * math.sqrt(1 / weight + mean * mean / spread),
    )
