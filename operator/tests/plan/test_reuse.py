"""status.reuse: rounded numbers, written seldom."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvloop.api.contract import FirstToken, FirstTokenByArm, ReuseCounters, ReuseSummary
from kvloop.api.v1alpha1 import Status
from kvloop.api.v1alpha1.status import ReuseStatus
from kvloop.plan.reuse import MIN_SECONDS, is_due, reuse_status, rounded
from kvloop.plan.times import from_rfc3339, to_rfc3339

NOW = 1_700_000_000.0


def summary(window_seconds: float = 600, first_token: FirstTokenByArm | None = None, **window: Any) -> ReuseSummary:
    return ReuseSummary(
        since=0,
        window_seconds=window_seconds,
        counters=ReuseCounters(),
        window=ReuseCounters(**window),
        first_token=first_token or FirstTokenByArm(),
    )


def test_all_numbers() -> None:
    found = reuse_status(
        None,
        summary(
            first_token=FirstTokenByArm(reused=FirstToken(count=1234, p50_ms=460.4, p95_ms=1702.6)),
            turns=12345,
            follow_ups=9876,
            reused_turns=8765,
            prompt_tokens=100_000,
            reused_tokens=87_999,
            recomputed_tokens=12_001,
            misses={"expired": 7, "below": 1111, "none": 0},
            not_eligible={"n": 2},
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
        "firstToken": {"reused": {"turns": 1230, "p50Milliseconds": 460, "p95Milliseconds": 1700}},
    }


def test_nothing_before_the_first_turn() -> None:
    assert reuse_status(None, None, NOW) is None
    assert reuse_status(None, summary(), NOW) is None
    first = reuse_status(None, summary(turns=1), NOW)
    assert first
    assert first.hit_percent == ""


def test_the_last_numbers_stay_while_no_router_answers() -> None:
    known = ReuseStatus(turns=3, updated_at=to_rfc3339(0))
    assert reuse_status(known, None, NOW) is known


def test_traffic_that_has_ended_is_told() -> None:
    known = ReuseStatus(turns=3, updated_at=to_rfc3339(0))
    ended = reuse_status(known, summary(), NOW)
    assert ended
    assert (ended.turns, ended.updated_at) == (0, to_rfc3339(NOW))


@pytest.mark.parametrize("changed", [{"window_seconds": 37.4}, {"turns": 1001}, {"prompt_tokens": 9999}])
def test_what_does_not_show_is_no_change(changed: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"window_seconds": 600.0, "turns": 1000, "prompt_tokens": 10_000, "reused_tokens": 8750}
    known = reuse_status(None, summary(**fields), NOW)
    assert reuse_status(known, summary(**{**fields, **changed}), NOW + 999) is known


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
    assert is_due(Status(), NOW)
    assert is_due(Status(reuse=ReuseStatus()), NOW)
    for status in (Status(reuse=reuse), Status.model_validate({"conditions": [condition]})):
        assert not is_due(status, NOW + MIN_SECONDS - 1)
        assert is_due(status, NOW + MIN_SECONDS)
    assert is_due(Status.model_validate({"conditions": [condition | {"type": "Ready"}]}), NOW)


@given(st.integers(0, 10**15))
def test_rounded_keeps_half_a_percent(number: int) -> None:
    assert abs(rounded(number) - number) <= number * 0.005
    assert rounded(rounded(number)) == rounded(number)
    assert len(str(rounded(number)).rstrip("0")) <= 3


@given(st.integers(0, 4_000_000_000))
def test_times_keep_whole_seconds(seconds: int) -> None:
    assert from_rfc3339(to_rfc3339(seconds + 0.9)) == seconds
