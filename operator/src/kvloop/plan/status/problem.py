"""One thing that is not as it should be."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvloop.api.labels import Reason
from kvloop.plan.observed import Pod


@dataclass(frozen=True)
class Problem:
    """Why the resource is not ready; `stalls` if somebody must act before it can be."""

    reason: Reason
    message: str
    stalls: bool = False


def worst_of(found: Iterable[Problem]) -> Problem | None:
    """The first that needs somebody, or else the first."""
    problems = list(found)
    return next((problem for problem in problems if problem.stalls), problems[0] if problems else None)


def names(pods: Sequence[Pod], most: int = 3) -> str:
    """Names of the first pods, and how many more there are."""
    return names_of([pod.name for pod in pods], most)


def names_of(pods: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    more = [f"{len(pods) - most} more"] if len(pods) > most else []
    return ", ".join([*pods[:most], *more])


def brief(text: str, most: int = 400) -> str:
    """The beginning of somebody else's message, without a full stop."""
    text = " ".join(text.split()).rstrip(".")
    return text if len(text) <= most else f"{text[:most]}..."
