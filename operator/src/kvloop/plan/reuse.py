"""`status.reuse`: what the routers count, rounded, and written seldom.

Every write wakes everybody who watches the resource. So the numbers have three significant digits, a change of what
nobody would act on does not count, and at least a minute lies between two changes.
"""

from collections.abc import Mapping
from typing import Final

from kvloop.api.contract import FirstToken, FirstTokenByArm, ReuseSummary
from kvloop.api.labels import Condition
from kvloop.api.v1alpha1 import Status
from kvloop.api.v1alpha1.status import CountedReason, FirstTokensStatus, FirstTokenStatus, ReuseStatus
from kvloop.plan.times import from_rfc3339, to_rfc3339

MIN_SECONDS: Final = 60
"""Least time between two changes."""
DIGITS: Final = 3
"""Significant digits of a count: within half a percent of it."""

_LABELS: Final = {"updated_at": None, "window_seconds": 0}


def is_due(previous: Status, now: float) -> bool:
    """Whether numbers, and what is concluded from them, may change again at `now` (Unix seconds)."""
    times = [each.last_transition_time for each in previous.conditions if each.type == Condition.KV_TRANSFER_VERIFIED]
    if previous.reuse and previous.reuse.updated_at:
        times.append(previous.reuse.updated_at)
    return all(now >= from_rfc3339(each) + MIN_SECONDS for each in times)


def reuse_status(previous: ReuseStatus | None, summary: ReuseSummary | None, now: float) -> ReuseStatus | None:
    """What is to be written when it `is_due`: the previous numbers, or those of all routers together.

    None until there was a first turn. While no router answers, the last numbers stay.
    """
    if summary is None:
        return previous
    fresh = _numbers(summary)
    if previous is None and not fresh.turns:
        return None
    if previous is not None and fresh.model_copy(update=_LABELS) == previous.model_copy(update=_LABELS):
        return previous
    return fresh.model_copy(update={"updated_at": to_rfc3339(now)})


def _numbers(summary: ReuseSummary) -> ReuseStatus:
    window = summary.window
    return ReuseStatus(
        window_seconds=round(summary.window_seconds),
        turns=rounded(window.turns),
        follow_ups=rounded(window.follow_ups),
        reused_turns=rounded(window.reused_turns),
        hit_percent=f"{100 * window.reused_tokens // window.prompt_tokens}%" if window.prompt_tokens else "",
        reused_tokens=rounded(window.reused_tokens),
        recomputed_tokens=rounded(window.recomputed_tokens),
        misses=_counted(window.misses),
        not_eligible=_counted(window.not_eligible),
        first_token=_first_tokens(summary.first_token),
    )


def _counted(reasons: Mapping[str, int]) -> list[CountedReason]:
    return [CountedReason(reason=reason, count=rounded(count)) for reason, count in sorted(reasons.items()) if count]


def _first_tokens(arms: FirstTokenByArm) -> FirstTokensStatus | None:
    found = {name: _first_token(arm) for name, arm in arms if arm.count}
    return FirstTokensStatus.model_validate(found) if found else None


def _first_token(arm: FirstToken) -> FirstTokenStatus:
    return FirstTokenStatus(
        turns=rounded(arm.count), p50_milliseconds=rounded(arm.p50_ms), p95_milliseconds=rounded(arm.p95_ms)
    )


def rounded(number: float) -> int:
    """The number with `DIGITS` significant digits; whole, so small ones have fewer."""
    whole = round(number)
    return round(whole, min(0, DIGITS - len(str(whole))))
