"""Advice from evidence."""

import math

from kvloop.advice import holdout, threshold, ttl, verdict
from kvloop.advice.advice import UNKNOWN, Advice
from kvloop.advice.case import Case
from kvloop.advice.evidence import Evidence
from kvloop.advice.lines import break_even


def advise(evidence: Evidence, previous: Advice = UNKNOWN) -> Advice:
    """What to set, never applied by itself. Of what was advised before, the values and their reasons count."""
    case = Case.of(evidence)
    lease = ttl.recommend(case, previous.ttl)
    shown = {float(each) for each in (*ttl.LADDER, lease.value, evidence.ttl) if each}
    lines = break_even(evidence.prefill, evidence.transfer) if evidence.prefill and evidence.transfer else None
    return Advice(
        ttl=lease,
        threshold=threshold.recommend(case, previous.threshold),
        holdout=holdout.recommend(case, previous.holdout),
        verdict=verdict.recommend(case, previous.verdict),
        curve=ttl.curve(case, sorted(shown)),
        break_even_tokens=(lines.low, lines.high) if lines and math.isfinite(lines.tokens) else None,
        saved_seconds=case.saved,
    )
