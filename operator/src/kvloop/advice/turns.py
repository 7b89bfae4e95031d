"""Turns of a log or a trace, and the evidence that they are."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kvloop.advice.evidence import Evidence
from kvloop.advice.lines import Leg, fit_legs
from kvloop.api import histogram

BUSIEST_SECONDS: Final = 60.0
"""Length of the time that counts as the busiest."""
UNSEEN_SHARE: Final = 0.1
"""Of the turns in the last tenth of the time it is not known yet whether they are followed: they are left out."""

_TREATED: Final = ("reused", "recomputed")
"""Arms of follow-ups that may reuse."""
_HOLDOUT: Final = "holdout"


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a client. Times in seconds, from any one origin."""

    start: float
    """Arrival."""
    end: float
    """Decode's last byte."""
    prompt_tokens: int
    held_tokens: int
    """Tokens that decode holds at the end: prompt and answer; 0: none, so that nothing can be reused."""
    before: int | None = None
    """Index of the turn that it follows; None: it is a first one, or that is not known."""
    gap: float | None = None
    """Seconds since the end of the turn that it follows; None: it is a first one, or that is not known."""
    history_tokens: int = 0
    """First tokens of the prompt whose KV decode held for the turn that it follows."""
    last: bool = False
    """The client said that none will follow."""


@dataclass(frozen=True, slots=True)
class Timed:
    """What a log tells of one turn's prefill leg and first token; None: nothing."""

    arm: str
    """As in the router's metrics."""
    leg_seconds: float | None
    computed_tokens: int
    fetched_tokens: int
    own_tokens: int
    """Prompt tokens that prefill found in its own cache."""
    first_token_seconds: float | None


def evidence(turns: Sequence[Turn], timed: Iterable[Timed] = ()) -> Evidence:
    """All that turns tell, on one decode pod; what they do not, such as its memory, is for the caller to fill in."""
    if not turns:
        return Evidence()
    first, last = min(turn.end for turn in turns), max(turn.end for turn in turns)
    seen = last - UNSEEN_SHARE * (last - first)
    open_ends = sum(turn.end <= seen and not turn.last for turn in turns)
    gaps = [turn.gap for turn in turns if turn.gap is not None and first <= turn.start - turn.gap <= seen]
    held = [turn.held_tokens for turn in turns if turn.held_tokens and not turn.last]
    span = last - first
    rate = len(held) / span if span > 0 else 0.0
    told = list(timed)
    prefill, transfer = fit_legs(_legs(told))
    return Evidence(
        gaps=dict(Counter(histogram.bucket(gap) for gap in gaps)),
        ended=max(0, open_ends - len(gaps)),
        conversations=_conversations(turns),
        turn_tokens=sum(held) / len(held) if held else 0.0,
        turns_per_second=rate,
        peak_turns_per_second=max(rate, _busiest(turns)),
        prefill=prefill,
        transfer=transfer,
        prefill_cache_hit_percent=_own_percent(told),
        decode_running_tokens=_running(turns) / span if span > 0 else None,
        treated_first_token=_first_tokens(told, *_TREATED),
        holdout_first_token=_first_tokens(told, _HOLDOUT),
    )


def _conversations(turns: Sequence[Turn]) -> int:
    """Follow-ups that follow no other one that is there."""
    follow_ups = {index for index, turn in enumerate(turns) if turn.gap is not None}
    return sum(turns[index].before not in follow_ups for index in follow_ups)


def _running(turns: Iterable[Turn]) -> float:
    """Tokens that decode holds while turns run, each times the seconds for which it does."""
    return sum(turn.held_tokens * max(0.0, turn.end - turn.start) for turn in turns)


def _own_percent(timed: Iterable[Timed]) -> float | None:
    """Share of follow-ups' prompts that prefill found in its own cache."""
    legs = [turn for turn in timed if turn.leg_seconds is not None and turn.arm in (*_TREATED, _HOLDOUT)]
    own = sum(turn.own_tokens for turn in legs)
    whole = own + sum(turn.computed_tokens + turn.fetched_tokens for turn in legs)
    return 100 * own / whole if whole else None


def _legs(timed: Iterable[Timed]) -> Iterable[Leg]:
    for turn in timed:
        if turn.leg_seconds is not None and turn.computed_tokens + turn.fetched_tokens > 0:
            yield Leg(turn.computed_tokens, turn.fetched_tokens, turn.leg_seconds)


def _first_tokens(timed: Iterable[Timed], *arms: str) -> dict[int, int]:
    times = (turn.first_token_seconds for turn in timed if turn.arm in arms)
    return dict(Counter(histogram.bucket(each) for each in times if each is not None))


def _busiest(turns: Sequence[Turn]) -> float:
    """Most turns that end within `BUSIEST_SECONDS`, by the second."""
    ends = sorted(turn.end for turn in turns if turn.held_tokens and not turn.last)
    most = begin = 0
    for i, end in enumerate(ends):
        while ends[begin] < end - BUSIEST_SECONDS:
            begin += 1
        most = max(most, i - begin + 1)
    return most / BUSIEST_SECONDS
