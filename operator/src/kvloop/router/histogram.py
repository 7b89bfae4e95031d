"""Percentiles of times, in constant memory."""

import math
from collections.abc import Sequence

_LEAST_MS = 0.1
_GROWTH = 1.05
"""Each bucket is 5 percent wider than the one before, so a percentile is off by 2.5 percent at most."""
BUCKETS = 400
"""The last one begins at 0.1 ms x 1.05^399, some eight hours."""
_LOG = math.log(_GROWTH)


def bucket(milliseconds: float) -> int:
    if milliseconds <= _LEAST_MS:
        return 0
    return min(BUCKETS - 1, int(math.log(milliseconds / _LEAST_MS) / _LOG))


def percentile(counts: Sequence[int], share: float) -> float:
    """Time, in milliseconds, that `share` (0 to 1) of the counted times do not exceed; 0 where nothing was counted."""
    wanted, seen = share * sum(counts), 0
    for i, count in enumerate(counts):
        seen += count
        if count and seen >= wanted:
            return _LEAST_MS * math.pow(_GROWTH, i + 0.5)
    return 0.0
