"""status.reuse: rounded numbers, written seldom."""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from kvloop.api import histogram
from kvloop.api.contract import Legs, ReuseCounters, TimeBudget
from kvloop.api.crd import structural
from kvloop.api.labels import Role
from kvloop.api.v1alpha1 import Status
from kvloop.api.v1alpha1.reuse import AdviceStatus, FirstTokensStatus, ReuseStatus
from kvloop.plan.measured import Engine, EngineCounters, Measured
from kvloop.plan.reuse import MIN_SECONDS, is_due, quantile, reuse_status, rounded
from kvloop.plan.times import from_rfc3339, to_rfc3339

NOW = 1_700_000_000.0


def measured(window_seconds: float = 600, **window: Any) -> Measured:
    """What routers counted in the window."""
    return Measured(window=ReuseCounters(**window), window_seconds=window_seconds)


def test_all_numbers() -> None:
    prefill = EngineCounters(
        prompt_tokens={"external_kv_transfer": 81_234_567, "local_cache_hit": 4567, "local_compute": 12_001},
        transfers=8765,
        transfer_seconds=400.0,
        transfer_buckets={"0.05": 8000, "0.1": 8765, "+Inf": 8765},
        transfer_bytes=2.4e12,
        failed_transfers=2,
        expired=40,
    )
    found = reuse_status(
        None,
        Measured(
            window=ReuseCounters(
                turns=12345,
                follow_ups=9876,
                reused_turns=8765,
                prompt_tokens=100_000,
                reused_tokens=87_999,
                recomputed_tokens=12_001,
                misses={"expired": 7, "below": 1111, "none": 0},
                not_eligible={"n": 2},
                first_token={"reused": {11: {36: 1234}}},
                conversations=987,
                time=TimeBudget(first_token_seconds=100, generation_seconds=650, gap_seconds=250),
                tasks={"reused": {2: {70: 60}}, "holdout": {2: {70: 3}}},
            ),
            window_seconds=600.4,
            life=ReuseCounters(prefill_legs=legs(40e-3, 30e-6)),
            beside=ReuseCounters(ended_leases=30, reused_turns=8765),
            engines=(
                Engine("d-0", Role.DECODE, capacity_tokens=100_000, used_percent=40),
                Engine("d-1", Role.DECODE, capacity_tokens=300_000, used_percent=20),
                Engine("p-0", Role.PREFILL, capacity_tokens=100_000, used_percent=90),
            ),
            prefill=prefill,
            decode=EngineCounters(failed_transfers=1, expired=7),
            pinned_tokens=50_000,
        ),
        NOW,
    )
    assert found
    assert found.model_dump(by_alias=True, exclude_none=True) == {
        "updatedAt": "2023-11-14T22:13:20Z",
        "windowSeconds": 600,
        "turns": 12300,
        "followUps": 9880,
        "reusedTurns": 8760,
        "hitPercent": "87%",
        "reusedTokens": 88000,
        "recomputedTokens": 12000,
        "misses": [{"reason": "below", "count": 1110}, {"reason": "expired", "count": 7}],
        "notEligible": [{"reason": "n", "count": 2}],
        "firstToken": {
            "reused": {"turns": 1230, "p50Milliseconds": 560, "p95Milliseconds": 604},
            "comparison": {
                "against": "holdout",
                "faster": "",
                "low": "",
                "high": "",
                "message": "Not enough data: 0 turns with reuse and 0 of holdout have like lengths, of the 30 needed."
                " Set router.holdoutPercent to keep some conversations from reuse.",
            },
        },
        "saved": {"tokens": 81200000, "prefillSeconds": 2040, "cachedTokens": 4570},
        "transfer": {
            "transfers": 8760,
            "p95Milliseconds": 71,
            "megabytesPerSecond": 6000,
            "failures": 3,
            "expiries": 17,
        },
        "decodeCache": {"pinnedPercent": "12%", "usedPercent": "25%"},
        "time": {
            "conversations": 987,
            "firstTokenPercent": "10%",
            "generationPercent": "65%",
            "gapPercent": "25%",
            "tasks": {
                "reused": {"tasks": 60, "p50Seconds": 203},
                "holdout": {"tasks": 3, "p50Seconds": 203},
                "comparison": {
                    "against": "holdout",
                    "faster": "",
                    "low": "",
                    "high": "",
                    "message": "Not enough data: 60 tasks with reuse and 3 of holdout have like lengths, of the 30"
                    " needed.",
                },
            },
        },
    }


def legs(intercept: float, slope: float) -> dict[int, Legs]:
    """Prefill legs of many lengths on one line."""
    return {
        bucket: Legs(count=10, computed_tokens=10 * tokens, seconds=10 * (intercept + slope * tokens))
        for bucket, tokens in ((40, 1024), (44, 2048), (48, 4096), (52, 8192))
    }


def times(median: float, count: int, seed: int) -> dict[int, int]:
    """First-token times that spread by a factor of 1.5 around a median, in seconds."""
    chance = random.Random(seed)  # noqa: S311 (a sample, not a secret)
    return histogram.merge({histogram.bucket(chance.lognormvariate(math.log(median), 0.4)): 1} for _ in range(count))


def compared(**arms: dict[int, dict[int, int]]) -> FirstTokensStatus:
    counters = ReuseCounters(turns=1, follow_ups=200, continued_conversations=200, first_token=arms)
    found = reuse_status(None, Measured(window=counters), NOW)
    assert found
    assert found.first_token
    return found.first_token


def test_first_tokens_are_compared_at_like_lengths() -> None:
    """Reused turns are the long ones here. Without strata they would look slower than the holdout."""
    found = compared(
        reused={11: times(0.1, 50, 1), 14: times(0.4, 450, 2)},
        holdout={11: times(0.2, 180, 3), 14: times(0.8, 40, 4)},
    )
    assert found.reused
    assert found.holdout
    assert found.comparison.against == "holdout"
    assert float(found.comparison.low[:-1]) < 2 < float(found.comparison.high[:-1])
    assert 1.7 < float(found.comparison.faster[:-1]) < 2.3
    assert "With reuse turns start" in found.comparison.message
    assert found.holdout.p50_milliseconds > 1.6 * found.reused.p50_milliseconds
    assert (found.reused.turns, found.holdout.turns) == (500, 220)


def test_what_makes_no_difference_is_said_to() -> None:
    found = compared(reused={11: times(0.2, 100, 1)}, holdout={11: times(0.2, 40, 5)})
    assert found.comparison.message.endswith("No difference is proven.")


def test_lengths_that_only_one_arm_has_do_not_count() -> None:
    found = compared(reused={11: times(0.1, 20, 1), 15: times(0.8, 500, 2)}, holdout={11: times(0.2, 300, 3)})
    assert found.comparison.message.startswith("Not enough data: 20 turns with reuse and 300 of holdout have like")
    assert found.comparison.faster == ""
    assert found.reused
    assert found.reused.turns == 20


def test_misses_count_against_the_holdout_too() -> None:
    """Half of the turns that may reuse do not: that is part of what reuse is worth."""
    treated = compared(
        reused={11: times(0.1, 100, 1)}, recomputed={11: times(0.2, 100, 2)}, holdout={11: times(0.2, 100, 3)}
    )
    assert 1.2 < float(treated.comparison.faster[:-1]) < 1.6


def test_without_a_holdout_recomputed_turns_give_a_hint() -> None:
    found = compared(reused={11: times(0.1, 100, 1)}, recomputed={11: times(0.2, 100, 2)})
    assert found.comparison.against == "recomputed"
    assert found.comparison.faster
    assert found.comparison.message.endswith("set router.holdoutPercent for a fair comparison.")


def test_no_first_tokens_no_comparison() -> None:
    found = reuse_status(None, measured(turns=5), NOW)
    assert found
    assert found.first_token is None
    assert found.time is None
    assert found.saved is None
    assert found.transfer is None
    assert found.decode_cache is None


def test_what_ranks_read_at_once_counts_once_against_the_saving() -> None:
    """A read is counted by each rank: with tensor parallelism of 8, eight that take their time together."""
    line = ReuseCounters(prefill_legs=legs(40e-3, 30e-6))

    def saved(ranks: int) -> int | None:
        reads = EngineCounters(
            prompt_tokens={"external_kv_transfer": 1_000_000}, transfers=100 * ranks, transfer_seconds=10.0 * ranks
        )
        seen = Measured(window=ReuseCounters(turns=1), life=line, prefill=reads, beside=ReuseCounters(reused_turns=100))
        found = reuse_status(None, seen, NOW)
        assert found
        assert found.saved
        return found.saved.prefill_seconds

    assert saved(8) == saved(1) == 20


def test_no_count_is_too_strange_for_the_crd() -> None:
    """A status that the API server refuses would be refused for ever, with all else that it says."""
    most, longest = 10**15, {24: {histogram.MOST: 10**15}}
    found = reuse_status(
        None,
        measured(
            turns=most,
            follow_ups=most,
            reused_tokens=most,
            prompt_tokens=1,
            first_token={"reused": {24: {0: 1000}}, "holdout": longest},
            tasks={"reused": longest, "holdout": {24: {0: 30}}},
            time=TimeBudget(first_token_seconds=1e18, gap_seconds=1),
        ),
        NOW,
    )
    assert found
    body = found.model_dump(mode="json", by_alias=True, exclude_none=True)
    Draft202012Validator(structural(ReuseStatus)).validate(body)


def test_what_is_pinned_is_never_more_than_what_is_used() -> None:
    """Routers think of leases, too, that others have taken."""
    engines = (Engine("d-0", Role.DECODE, capacity_tokens=1000, used_percent=30),)
    found = reuse_status(None, Measured(window=ReuseCounters(turns=1), engines=engines, pinned_tokens=900), NOW)
    assert found
    assert found.decode_cache
    assert found.decode_cache.pinned_percent == "30%"


@pytest.mark.parametrize(
    ("buckets", "value"),
    [
        ({}, 0),
        ({"0.1": 0, "+Inf": 0}, 0),
        ({"0.1": 10, "+Inf": 10}, 0.095),
        ({"+Inf": 20, "0.2": 20, "0.1": 10}, 0.19),
        ({"0.1": 10, "+Inf": 20}, 0.1),
    ],
)
def test_quantiles_of_prometheus_histograms(buckets: dict[str, float], value: float) -> None:
    assert quantile(buckets, 0.95) == pytest.approx(value)


def test_nothing_before_the_first_turn() -> None:
    assert reuse_status(None, None, NOW) is None
    assert reuse_status(None, measured(), NOW) is None
    first = reuse_status(None, measured(turns=1), NOW)
    assert first
    assert first.hit_percent == ""


def test_the_last_numbers_stay_while_no_router_answers() -> None:
    known = ReuseStatus(turns=3, updated_at=to_rfc3339(0))
    assert reuse_status(known, None, NOW) is known


def test_traffic_that_has_ended_is_told() -> None:
    known = ReuseStatus(turns=3, updated_at=to_rfc3339(0))
    ended = reuse_status(known, measured(), NOW)
    assert ended
    assert (ended.turns, ended.updated_at) == (0, to_rfc3339(NOW))


@pytest.mark.parametrize("changed", [{"window_seconds": 37.4}, {"turns": 1001}, {"prompt_tokens": 9999}])
def test_what_does_not_show_is_no_change(changed: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"window_seconds": 600.0, "turns": 1000, "prompt_tokens": 10_000, "reused_tokens": 8750}
    known = reuse_status(None, measured(**fields), NOW)
    assert reuse_status(known, measured(**{**fields, **changed}), NOW + 999) is known


def test_due_a_minute_after_either_was_written() -> None:
    reuse = ReuseStatus(updated_at=to_rfc3339(NOW))
    condition = {
        "type": "KVTransferVerified",
        "status": "True",
        "observedGeneration": 1,
        "lastTransitionTime": to_rfc3339(NOW),
        "reason": "Verified",
        "message": "",
    }
    assert is_due(Status(), NOW, MIN_SECONDS)
    assert is_due(Status(reuse=ReuseStatus()), NOW, MIN_SECONDS)
    for status in (
        Status(reuse=reuse),
        Status(advice=AdviceStatus(updated_at=to_rfc3339(NOW))),
        Status.model_validate({"conditions": [condition]}),
    ):
        assert not is_due(status, NOW + MIN_SECONDS - 1, MIN_SECONDS)
        assert is_due(status, NOW + MIN_SECONDS, MIN_SECONDS)
        assert is_due(status, NOW - 3600, MIN_SECONDS), "written by a clock that was an hour ahead"
    assert is_due(Status.model_validate({"conditions": [condition | {"type": "Ready"}]}), NOW, MIN_SECONDS)


@given(st.integers(0, 10**15))
def test_rounded_keeps_half_a_percent(number: int) -> None:
    assert abs(rounded(number) - number) <= number * 0.005
    assert rounded(rounded(number)) == rounded(number)
    assert len(str(rounded(number)).rstrip("0")) <= 3


@given(st.integers(0, 4_000_000_000))
def test_times_keep_whole_seconds(seconds: int) -> None:
    assert from_rfc3339(to_rfc3339(seconds + 0.9)) == seconds
