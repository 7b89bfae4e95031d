"""Advice that stays as it is until something better is real."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kvloop.advice.advice import Recommendation

NEAR: Final = 0.2
"""A value that differs by no more than this share is the same advice."""
TO_CHANGE: Final = 1.96
"""Standard errors by which a value must be better than the one in force, or the one advised before."""
TO_STAY: Final = 1.0
"""While a change is advised already, so few are enough to go on with it: the advice does not swing to and fro."""


def settle(
    best: Recommendation[int],
    in_force: int | None,
    before: Recommendation[int],
    better: Callable[[int, int], float],
) -> Recommendation[int]:
    """What to advise: the best value, or else the one in force or the one advised before, if they are as good.

    `better` gives the standard errors by which its first value is better than its second. Where nothing can be told
    now, former advice stands.
    """
    advised = before.value
    if best.value is None:
        return best if advised is None else before
    chosen = _choose(best.value, in_force, advised, better)
    if chosen == advised:
        return replace(before, confident=before.confident or best.confident)
    if chosen == in_force and chosen != best.value:
        reason = f"{in_force}, in force, is as good as any value that can be told from it."
        return Recommendation(chosen, reason, best.confident)
    return best


def _choose(best: int, in_force: int | None, advised: int | None, better: Callable[[int, int], float]) -> int:
    if in_force is not None:
        enough = TO_CHANGE if advised in (None, in_force) else TO_STAY
        if near(best, in_force) or better(best, in_force) < enough:
            return in_force
    if advised is not None and (near(best, advised) or better(best, advised) < TO_CHANGE):
        return advised
    return best


def never(_: int, __: int) -> float:
    """Nothing is better than anything else."""
    return 0.0


def near(value: float, other: float) -> bool:
    """Whether two values are the same advice."""
    return abs(value - other) <= NEAR * other


def rounded(number: float) -> int:
    """Whole, with two significant digits."""
    whole = round(number)
    return round(whole, min(0, 2 - len(str(abs(whole)))))
