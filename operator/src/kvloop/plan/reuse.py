"""`status.reuse`: what routers and engines count, rounded, and written seldom.

Every write wakes everybody who watches the resource. So the numbers have three significant digits, a change of what
nobody would act on does not count, and at least a minute lies between two changes.
"""

from collections.abc import Mapping
from typing import Final

from kvloop.api import histogram
from kvloop.api.contract import ReuseCounters
from kvloop.api.labels import Condition, Role
from kvloop.api.v1alpha1 import Status
from kvloop.api.v1alpha1.reuse import (
    Comparison,
    CountedReason,
    DecodeCacheStatus,
    FirstTokensStatus,
    FirstTokenStatus,
    ReuseStatus,
    SavedStatus,
    TasksStatus,
    TaskTimeStatus,
    TimeStatus,
    TransferStatus,
)
from kvloop.plan import compare
from kvloop.plan.advice import prefill_line
from kvloop.plan.compare import MIN_SAMPLES, Strata
from kvloop.plan.measured import Measured
from kvloop.plan.times import from_rfc3339, to_rfc3339

MIN_SECONDS: Final = 60
"""Least time between two changes, unless the operator is set to another."""
DIGITS: Final = 3
"""Significant digits of a count: within half a percent of it."""

_LABELS: Final = {"updated_at": None, "window_seconds": 0}


def is_due(previous: Status, now: float, seconds: float) -> bool:
    """Whether numbers, and what is concluded from them, may change again at `now` (Unix seconds).

    A time far ahead is of a node whose clock was wrong: it must not hold everything up until then.
    """
    times = [each.last_transition_time for each in previous.conditions if each.type == Condition.KV_TRANSFER_VERIFIED]
    times += [each.updated_at for each in (previous.reuse, previous.advice) if each and each.updated_at]
    return all(abs(now - from_rfc3339(each)) >= seconds for each in times)


def reuse_status(previous: ReuseStatus | None, measured: Measured | None, now: float) -> ReuseStatus | None:
    """What is to be written when it `is_due`: the previous numbers, or those of all routers and engines together.

    None until there was a first turn. While no router answers, the last numbers stay.
    """
    if measured is None:
        return previous
    fresh = _numbers(measured)
    if previous is None and not fresh.turns:
        return None
    if previous is not None and fresh.model_copy(update=_LABELS) == previous.model_copy(update=_LABELS):
        return previous
    return fresh.model_copy(update={"updated_at": to_rfc3339(now)})


def _numbers(measured: Measured) -> ReuseStatus:
    window = measured.window
    return ReuseStatus(
        window_seconds=round(measured.window_seconds),
        turns=rounded(window.turns),
        follow_ups=rounded(window.follow_ups),
        reused_turns=rounded(window.reused_turns),
        hit_percent=_percent(window.reused_tokens, window.prompt_tokens),
        reused_tokens=rounded(window.reused_tokens),
        recomputed_tokens=rounded(window.recomputed_tokens),
        misses=_counted(window.misses),
        not_eligible=_counted(window.not_eligible),
        first_token=_first_tokens(window),
        saved=_saved(measured),
        transfer=_transfer(measured),
        decode_cache=_decode_cache(measured),
        time=_time(window),
    )


def _counted(reasons: Mapping[str, int]) -> list[CountedReason]:
    return [CountedReason(reason=reason, count=rounded(count)) for reason, count in sorted(reasons.items()) if count]


# First tokens.


def _first_tokens(window: ReuseCounters) -> FirstTokensStatus | None:
    arms = {arm: strata for arm in ("reused", "recomputed", "holdout") if (strata := window.first_token.get(arm))}
    if not arms:
        return None
    lengths = compare.common(*arms.values())
    found = {arm: _first_token(arms.get("reused", strata), strata, lengths) for arm, strata in arms.items()}
    per_conversation = window.follow_ups / max(1, window.continued_conversations)
    comparison = _comparison(arms, per_conversation, "turns", "start")
    return FirstTokensStatus.model_validate({**found, "comparison": comparison})


def _first_token(reused: Strata, arm: Strata, lengths: set[int]) -> FirstTokenStatus:
    """At like lengths, as far as the arms have any in common."""
    counts: Mapping[int, float] = (
        compare.at_lengths_of(reused, arm, lengths) if lengths else histogram.merge(arm.values())
    )
    p50, p95 = (rounded(1000 * histogram.percentile(counts, share)) for share in (0.5, 0.95))
    turns = compare.samples(arm, lengths or set(arm))
    return FirstTokenStatus(turns=rounded(turns), p50_milliseconds=p50, p95_milliseconds=p95)


def _comparison(arms: Mapping[str, Strata], per_conversation: float, what: str, verb: str) -> Comparison:
    """Against the holdout where there is any, since only that is fair.

    On the other side are then all that were not held out: those that reused alone came in time, and their clients had
    changed no history.
    """
    against = "recomputed" if "recomputed" in arms and "holdout" not in arms else "holdout"
    reused, other = arms.get("reused", {}), arms.get(against, {})
    if against == "holdout":
        reused = compare.together(reused, arms.get("recomputed", {}))
    found = compare.ratio(reused, other, per_conversation)
    if found is None:
        strata = compare.common(reused, other)
        count, others = (rounded(compare.samples(arm, strata)) for arm in (reused, other))
        few = f"{count} {what} with reuse and {others} of {against} have like lengths, of the {MIN_SAMPLES} needed."
        remedy = "" if other else " Set router.holdoutPercent to keep some conversations from reuse."
        return Comparison(against=against, message=f"Not enough data: {few}{remedy}")
    factor, low, high = (f"{each:.2f}x" for each in (found.value, found.low, found.high))
    message = f"With reuse {what} {verb} {factor} as fast as those of {against}; with 95% confidence {low} to {high}."
    if found.low <= 1 <= found.high:
        message += " No difference is proven."
    if against == "recomputed":
        message += " Recomputed turns differ in other ways, too: set router.holdoutPercent for a fair comparison."
    return Comparison(against=against, faster=factor, low=low, high=high, message=message)


# What the engines count.


def _saved(measured: Measured) -> SavedStatus | None:
    prefill, line = measured.prefill, prefill_line(measured.life)
    if not prefill.prompt_tokens:
        return None
    reads = min(prefill.transfers, measured.beside.reused_turns)
    reading = reads * prefill.transfer_seconds / prefill.transfers if prefill.transfers else 0.0
    seconds = None if line is None else line.slope * prefill.fetched_tokens - reading
    return SavedStatus(
        tokens=rounded(prefill.fetched_tokens),
        prefill_seconds=None if seconds is None else rounded(max(0.0, seconds)),
        cached_tokens=rounded(prefill.cached_tokens),
    )


def _transfer(measured: Measured) -> TransferStatus | None:
    prefill, decode = measured.prefill, measured.decode
    failures = prefill.failed_transfers + decode.failed_transfers
    expiries = decode.expired + max(0, prefill.expired - measured.beside.ended_leases)
    if not prefill.transfers + failures + expiries:
        return None
    seconds = prefill.transfer_seconds
    return TransferStatus(
        transfers=rounded(prefill.transfers),
        p95_milliseconds=rounded(1000 * quantile(prefill.transfer_buckets, 0.95)),
        megabytes_per_second=rounded(prefill.transfer_bytes / seconds / 1e6) if seconds else 0,
        failures=rounded(failures),
        expiries=rounded(expiries),
    )


def quantile(buckets: Mapping[str, float], share: float) -> float:
    """Of a Prometheus histogram: cumulative counts by upper bound; 0 where nothing was counted."""
    bounds = sorted((float(bound), count) for bound, count in buckets.items() if bound)
    wanted = share * (bounds[-1][1] if bounds else 0)
    begin, before = 0.0, 0.0
    for bound, count in bounds:
        if count >= wanted and count > before:
            return begin if bound == float("inf") else begin + (bound - begin) * (wanted - before) / (count - before)
        begin, before = (begin if bound == float("inf") else bound), count
    return 0.0


def _decode_cache(measured: Measured) -> DecodeCacheStatus | None:
    """What is pinned is what the routers know of, and never more than what is used."""
    engines = [engine for engine in measured.of(Role.DECODE) if engine.capacity_tokens]
    capacity = sum(engine.capacity_tokens for engine in engines)
    if not capacity:
        return None
    used = sum(engine.capacity_tokens * engine.used_percent for engine in engines) / capacity
    pinned = min(100 * measured.pinned_tokens / capacity, used)
    return DecodeCacheStatus(pinned_percent=f"{round(pinned)}%", used_percent=f"{round(used)}%")


# Where the time goes.


def _time(window: ReuseCounters) -> TimeStatus | None:
    spent = window.time
    total = spent.first_token_seconds + spent.generation_seconds + spent.gap_seconds
    if not total:
        return None
    return TimeStatus(
        conversations=rounded(window.conversations),
        first_token_percent=_percent(spent.first_token_seconds, total),
        generation_percent=_percent(spent.generation_seconds, total),
        gap_percent=_percent(spent.gap_seconds, total),
        tasks=_tasks(window),
    )


def _tasks(window: ReuseCounters) -> TasksStatus | None:
    if not window.tasks:
        return None
    found = {arm: _task(strata) for arm, strata in window.tasks.items() if strata}
    return TasksStatus.model_validate({**found, "comparison": _comparison(window.tasks, 1, "tasks", "end")})


def _task(strata: Strata) -> TaskTimeStatus:
    counts = histogram.merge(strata.values())
    return TaskTimeStatus(
        tasks=rounded(histogram.count(counts)), p50_seconds=rounded(histogram.percentile(counts, 0.5))
    )


def _percent(part: float, whole: float) -> str:
    return f"{min(100, int(100 * part / whole))}%" if whole else ""


def rounded(number: float) -> int:
    """The number with `DIGITS` significant digits; whole, so small ones have fewer."""
    whole = round(number)
    return round(whole, min(0, DIGITS - len(str(whole))))
