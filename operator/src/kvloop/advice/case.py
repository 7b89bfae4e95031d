"""Evidence, and what all parts of advice conclude from it."""

from dataclasses import dataclass
from typing import Final, Self

from kvloop.advice.evidence import Evidence
from kvloop.advice.gaps import Gaps
from kvloop.advice.optimum import Optimum, optimum
from kvloop.advice.price import saved_seconds

MIN_TURNS: Final = 300
"""Fewer turns tell nothing."""
MIN_CONVERSATIONS: Final = 20
"""Nor do turns of fewer conversations. Counted as turns that were not followed."""


@dataclass(frozen=True, slots=True)
class Case:
    """One resource's, or one trace's."""

    evidence: Evidence
    gaps: Gaps
    saved: float | None
    """Seconds of prefill that a follow-up in time saves."""
    best: Optimum | None
    """None while turns are too few, or it is not known what is at stake."""
    lack: str
    """What is missing for a best TTL, in words."""

    @classmethod
    def of(cls, evidence: Evidence) -> Self:
        gaps, saved = Gaps.of(evidence.gaps, evidence.ended), saved_seconds(evidence)
        lack = _lack(evidence, gaps)
        best = None if lack or saved is None else optimum(evidence, gaps, saved)
        return cls(evidence, gaps, saved, best, lack)

    @property
    def measured(self) -> bool:
        """Whether both lines were measured on this very system, and not published or assumed."""
        lines = (self.evidence.prefill, self.evidence.transfer)
        return all(line is not None and line.samples for line in lines)


def _lack(evidence: Evidence, gaps: Gaps) -> str:
    if gaps.turns < MIN_TURNS:
        return f"{gaps.turns} turns were seen and {MIN_TURNS} are needed, {MIN_TURNS - gaps.turns} more"
    if gaps.ended < MIN_CONVERSATIONS:
        more = MIN_CONVERSATIONS - gaps.ended
        return f"{gaps.ended} conversations were seen to their end and {MIN_CONVERSATIONS} are needed, {more} more"
    if evidence.prefill is None or evidence.transfer is None:
        return "how long prefill takes to compute and to fetch has not been measured yet"
    if not evidence.decode_capacity_tokens or evidence.turn_tokens <= 0:
        return "the size of decode's KV cache, or of the turns, is not known"
    return ""
