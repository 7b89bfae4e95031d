"""The router's access log: a line a turn, without any content and without any name of a conversation."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvloop.advice.turns import Timed, Turn
from kvloop.cli.traces.loaded import FieldError, Loaded, Reader, Row, number, whole

WANTED: Final = "the router's access log, a line of JSON a turn with at least time, status and arm"
CLIENT_LEFT: Final = 499
SAME_SECONDS: Final = 0.1
"""A turn follows the one that ended when its gap began, give or take this."""


@dataclass(frozen=True, slots=True)
class _Line:
    turn: Turn
    timed: Timed


def read_log(file: str) -> Loaded:
    """Turns of a router's log, or of what `kubectl logs` gives of one; `-` is standard input.

    Turns that failed, and such as can take no part in reuse, are left out.

    Raises:
        TraceError: nothing of it can be used.
    """
    reader = Reader(file, strict=False)
    lines = []
    for place, row in reader.rows():
        try:
            found = _line(row)
        except FieldError as error:
            reader.wrong(place, str(error))
            continue
        if found:
            lines.append(found)
    if not lines:
        raise reader.nothing(WANTED)
    lines.sort(key=lambda each: each.turn.start)
    turns = _linked([each.turn for each in lines])
    timed = [each.timed for each in lines]
    return Loaded(reader.name, "router's access log", turns, timed, reader.bad, reader.passed_over)


def _line(row: Row) -> _Line | None:
    """One turn; None where it can tell nothing."""
    for name in ("arm", "status", "time"):
        if name not in row:
            raise FieldError(f"{name} is missing; it has {', '.join(sorted(row)) or 'nothing'}")
    status = whole(row, "status")
    if row.get("notEligible") or (status >= 400 and status != CLIENT_LEFT):
        return None
    total = _seconds(row, "totalMs") or 0.0
    end, prompt = number(row, "time"), whole(row, "promptTokens", 0)
    reused = whole(row, "reusedTokens", 0)
    turn = Turn(
        start=end - total,
        end=end,
        prompt_tokens=prompt,
        held_tokens=0 if status == CLIENT_LEFT else whole(row, "pinnedTokens", prompt),
        gap=_seconds(row, "gapMs"),
        history_tokens=min(prompt, reused or whole(row, "offeredTokens", 0)),
        last=bool(row.get("endOfConversation")),
    )
    leg, computed = _seconds(row, "legMs"), whole(row, "computedTokens", prompt - reused)
    timed = Timed(
        arm=str(row["arm"]),
        leg_seconds=None if leg is None or row.get("decodeOnly") else leg,
        computed_tokens=computed,
        fetched_tokens=reused,
        own_tokens=max(0, prompt - reused - computed),
        first_token_seconds=_seconds(row, "firstByteMs") if row.get("stream") else None,
    )
    return _Line(turn, timed)


def _seconds(row: Row, name: str) -> float | None:
    """A field in milliseconds; None where it is left out."""
    return number(row, name) / 1000 if name in row else None


def _linked(turns: Sequence[Turn]) -> list[Turn]:
    """The same, each with the turn that it follows: the log names none, but the gap tells when that one ended.

    A history of which nothing was offered any more is as long as what decode held for the turn before.
    """
    ends = sorted((turn.end, i) for i, turn in enumerate(turns) if not turn.last)
    free = [True] * len(ends)
    linked = []
    for turn in turns:
        found = None if turn.gap is None else _nearest(ends, free, turn.start - turn.gap)
        if found is None:
            linked.append(turn)
            continue
        free[found] = False
        before = ends[found][1]
        history = turn.history_tokens or min(turns[before].held_tokens, turn.prompt_tokens)
        linked.append(replace(turn, before=before, history_tokens=history))
    return linked


def _nearest(ends: Sequence[tuple[float, int]], free: Sequence[bool], time: float) -> int | None:
    """Place of the end nearest to a time, of those not followed yet."""
    at = bisect_left(ends, (time - SAME_SECONDS, -1))
    best = None
    while at < len(ends) and ends[at][0] <= time + SAME_SECONDS:
        if free[at] and (best is None or abs(ends[at][0] - time) < abs(ends[best][0] - time)):
            best = at
        at += 1
    return best
