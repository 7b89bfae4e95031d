"""Histograms that can be added up: sparse, with buckets of equal ratio, in JSON as {"<bucket>": <count>}.

Bucket i holds the values from `least` * RATIO**i up to the next one's begin; bucket 0 holds smaller ones too. A value
is known to within 19 percent, a percentile of many to within a few, since values are taken to lie evenly in a bucket.
Router, operator and command line count in the same buckets: times in seconds with the default `least`, lengths in
tokens with `TOKEN`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Final

from pydantic import Field

RATIO: Final = 2**0.25
"""Four buckets to a doubling."""
MILLISECOND: Final = 0.001
"""Begin of bucket 0 for times, in seconds."""
TOKEN: Final = 1.0
"""Begin of bucket 0 for lengths, in tokens."""
MOST: Final = 160
"""The last bucket: of times, it begins at 35 years."""

Histogram = Annotated[
    dict[Annotated[int, Field(ge=0, le=MOST)], Annotated[int, Field(ge=0)]], Field(max_length=MOST + 1)
]
"""A field that holds one."""


def bucket(value: float, least: float = MILLISECOND) -> int:
    """Number of the bucket that holds a value."""
    if value < least * RATIO:
        return 0
    return min(MOST, math.floor(4 * math.log2(value / least) + 1e-9))


def start(index: int, least: float = MILLISECOND) -> float:
    """Least value of a bucket."""
    return least * RATIO**index


def octave(tokens: int) -> int:
    """Number of the power of two that a length reaches: 11 for 2048 to 4095 tokens; 0 below 2."""
    return max(0, tokens.bit_length() - 1)


def merge(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """The sum."""
    total: Counter[int] = Counter()
    for each in histograms:
        total.update(each)
    return dict(total)


def count(counts: Mapping[int, int]) -> int:
    """How many values were counted."""
    return sum(counts.values())


def mean(counts: Mapping[int, int], least: float = MILLISECOND) -> float:
    """Mean of the counted values; 0 where there are none."""
    number = count(counts)
    return sum(n * (start(i, least) + start(i + 1, least)) / 2 for i, n in counts.items()) / number if number else 0.0


def unresolved(deviation: float) -> float:
    """Buckets by which the mean number of buckets may be off, for values with that standard deviation, in buckets.

    Of values that lie closer together than a bucket is wide, nobody knows where in it they lie; else it evens out.
    """
    return max(0.0, 0.5 - deviation)


def percentile(counts: Mapping[int, float], share: float, least: float = MILLISECOND) -> float:
    """Value that `share` (0 to 1) of the counted values do not exceed; 0 where there are none.

    The counts may be weighted.
    """
    wanted, seen = share * sum(counts.values()), 0.0
    value = 0.0
    for index in sorted(index for index, number in counts.items() if number > 0):
        begin, end, number = start(index, least), start(index + 1, least), counts[index]
        if seen + number >= wanted:
            return begin + (end - begin) * max(0.0, wanted - seen) / number
        value, seen = end, seen + number
    return value
