"""Made-up evidence with a known best answer."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvloop.advice.evidence import Evidence, Line
from kvloop.api import histogram

Draw = Callable[[random.Random], float]

PREFILL = Line(0.039, 26.9e-6, samples=1000, error=1e-7, intercept_error=1e-4)
TRANSFER = Line(0.0107, 4.55e-6, samples=1000, error=1e-7, intercept_error=1e-4)
TOKENS = 10_000.0
RUNNING = 0.5
"""Share of decode's memory that running turns take."""


def capacity(break_even_seconds: float) -> int:
    """Tokens of a decode pod with which holding a turn for so long costs what its return saves."""
    saved = (PREFILL.slope - TRANSFER.slope) * TOKENS - TRANSFER.intercept
    return round((0.02 + 0.98 * RUNNING**3) * break_even_seconds * TOKENS / saved)


def counts(values: list[float]) -> dict[int, int]:
    return dict(Counter(histogram.bucket(value) for value in values))


def evidence(draw: Draw, turns: int, *, ended: float = 0.15, seed: int = 0, hold: float = 80, **known: Any) -> Evidence:
    """Evidence of turns with such gaps, of which some are never followed; holding pays for `hold` seconds."""
    chance = random.Random(seed)  # noqa: S311 (data of a test)
    last = round(turns * ended)
    made = Evidence(
        gaps=counts([draw(chance) for _ in range(turns - last)]),
        ended=last,
        turn_tokens=TOKENS,
        turns_per_second=0.01,
        prefill=PREFILL,
        transfer=TRANSFER,
        decode_capacity_tokens=capacity(hold),
        decode_running_tokens=RUNNING * capacity(hold),
    )
    return replace(made, **known)


def exponential(mean: float) -> Draw:
    return lambda chance: chance.expovariate(1 / mean)


def lomax(scale: float, shape: float) -> Draw:
    """Heavy tails: many at once, a few after hours."""
    return lambda chance: scale * ((1 - chance.random()) ** (-1 / shape) - 1)


def best_lomax(scale: float, shape: float, ended: float, hold: float) -> float:
    """Where the hazard of a return has fallen to 1 / hold, by halving."""
    low, high = 0.0, 86_400.0
    for _ in range(60):
        time = (low + high) / 2
        survivors = (1 - ended) * (1 + time / scale) ** -shape
        hazard = survivors * shape / (scale + time) / (survivors + ended)
        low, high = (time, high) if hazard > 1 / hold else (low, time)
    return low
