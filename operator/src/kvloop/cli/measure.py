"""What a load came to: times to the first token by length of the prompt, arm by arm."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.table import Table

from kvloop.cli.load import Turn

Arms = Mapping[str, Sequence[Turn]]
"""Turns by what they are compared as; the first arm is what the others are compared with."""


@dataclass(frozen=True)
class Times:
    """Times to the first token, in milliseconds."""

    turns: int
    p50_ms: float
    p95_ms: float

    @classmethod
    def of(cls, turns: Sequence[Turn], scale: float = 1) -> "Times":
        """Of at least one turn; divided by `scale`."""
        times = [turn.ttft_s / scale * 1e3 for turn in turns]
        return cls(len(times), percentile(times, 50), percentile(times, 95))


@dataclass(frozen=True)
class Row:
    """Follow-ups of conversations with system prompts of one length."""

    system_tokens: int
    prompt_tokens: float
    """Median of the whole prompt."""
    arms: dict[str, Times]

    @property
    def faster(self) -> float | None:
        """How many times faster the last arm is than the first, by medians."""
        first, *_, last = self.arms.values() if len(self.arms) > 1 else (None, None)
        return first.p50_ms / last.p50_ms if first and last and last.p50_ms else None


def percentile(values: Sequence[float], percent: float) -> float:
    """Between the two nearest values, where it falls between."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def rows(arms: Arms, scale: float = 1) -> list[Row]:
    """One row for each length that every arm has follow-ups of. First turns have nothing to reuse, and are left out."""
    follow_ups = {name: [turn for turn in turns if turn.number] for name, turns in arms.items()}
    lengths = [{turn.system_tokens for turn in turns} for turns in follow_ups.values()]
    found = []
    for length in sorted(set.intersection(*lengths)) if lengths else []:
        alike = {name: [turn for turn in turns if turn.system_tokens == length] for name, turns in follow_ups.items()}
        prompt = median(turn.prompt_tokens for turns in alike.values() for turn in turns)
        found.append(Row(length, prompt, {name: Times.of(turns, scale) for name, turns in alike.items()}))
    return found


def table(arms: Arms, scale: float = 1, **titles: Any) -> Table:
    """The rows, for people; `titles` are those of a rich table."""
    found = Table(**titles)
    tail = ("Faster",) if len(arms) > 1 else ()
    headers = ("System prompt", "Whole prompt", "Follow-ups", *(f"{name} p50, p95" for name in arms), *tail)
    for header in headers:
        found.add_column(header, justify="right")
    for row in rows(arms, scale):
        times = (f"{each.p50_ms:,.0f}, {each.p95_ms:,.0f} ms" for each in row.arms.values())
        faster = (f"{row.faster:.1f}x" if row.faster else "",) if tail else ()
        counts = "+".join(str(each.turns) for each in row.arms.values())
        found.add_row(f"{row.system_tokens:,}", f"{row.prompt_tokens:,.0f}", counts, *times, *faster)
    return found


def as_csv(arms: Arms) -> str:
    """A line a turn, without what was said."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("arm", "conversation", "turn", "system_tokens", "prompt_tokens", "first_token_ms", "total_ms"))
    for name, turns in arms.items():
        for turn in sorted(turns, key=lambda each: (each.conversation, each.number)):
            times = (f"{seconds * 1e3:.1f}" for seconds in (turn.ttft_s, turn.total_s))
            writer.writerow((name, turn.conversation, turn.number, turn.system_tokens, turn.prompt_tokens, *times))
    return out.getvalue()
