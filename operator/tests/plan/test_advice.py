"""status.advice: what advice is given to judge by, and what is written of it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvloop.api.contract import Legs, ReuseCounters
from kvloop.api.labels import Role
from kvloop.api.v1alpha1 import DisaggregatedInference
from kvloop.plan.advice import advice_status, evidence, transfer_line
from kvloop.plan.measured import Engine, EngineCounters, Measured, Usual

Make = Callable[..., DisaggregatedInference]
NOW = 1_700_000_000.0
LENGTHS = {36: 512, 40: 1024, 44: 2048, 48: 4096, 52: 8192}


def legs(fetched: bool = False) -> dict[int, Legs]:
    """40 ms and 30 us for each computed token; fetching takes 15 ms and 5 us for each token, and 100 are computed."""
    return {
        bucket: Legs(
            count=20,
            computed_tokens=20 * (100 if fetched else tokens),
            fetched_tokens=20 * tokens if fetched else 0,
            seconds=20 * (0.04 + (0.003 + 0.015 + 5e-6 * tokens if fetched else 30e-6 * tokens)),
        )
        for bucket, tokens in LENGTHS.items()
    }


def seen(**life: Any) -> Measured:
    counters = {
        "turns": 1100,
        "not_eligible": {"n": 100},
        "follow_ups": 800,
        "continued_conversations": 60,
        "closed_turns": 50,
        "gaps": {40: 300, 50: 100},
        "pinned_turns": 900,
        "pinned_tokens": 900 * 4000,
        "first_token": {"reused": {11: {30: 5}, 12: {30: 1}}, "recomputed": {11: {35: 4}}, "holdout": {11: {33: 2}}},
        "prefill_legs": legs(),
        "fetch_legs": legs(fetched=True),
    }
    return Measured(
        window=ReuseCounters(turns=70, not_eligible={"n": 10}),
        window_seconds=600,
        busiest_per_second=0.7,
        life=ReuseCounters.model_validate(counters | life),
        engines=(
            Engine("d-0", Role.DECODE, capacity_tokens=100_000, used_percent=50),
            Engine("d-1", Role.DECODE, capacity_tokens=100_000, used_percent=30),
            Engine("p-0", Role.PREFILL, capacity_tokens=7),
        ),
        prefill=EngineCounters(queried_tokens=1000, hit_tokens=250),
        pinned_tokens=30_000,
    )


def test_what_it_is_made_from(make: Make) -> None:
    spec = make({"router": {"leaseSeconds": 60, "holdoutPercent": 5, "maxPinnedPercent": 40}}).spec
    found = evidence(spec, seen())
    assert found.gaps == {40: 300, 50: 100}
    assert found.ended == 75, "150 of 1000 turns were not followed; half of the gaps were seen"
    assert (found.turn_tokens, found.conversations) == (4000, 60)
    assert (found.turns_per_second, found.peak_turns_per_second) == (0.1, 0.7)
    assert found.prefill
    assert [found.prefill.intercept, found.prefill.slope] == pytest.approx([0.04, 30e-6])
    assert found.transfer
    assert [found.transfer.intercept, found.transfer.slope] == pytest.approx([0.015, 5e-6])
    assert found.prefill_cache_hit_percent == 25
    assert (found.decode_capacity_tokens, found.decode_pods) == (100_000, 2)
    assert found.decode_running_tokens == 25_000
    assert found.treated_first_token == {30: 6, 35: 4}
    assert found.holdout_first_token == {33: 2}
    assert (found.ttl, found.threshold, found.holdout_percent, found.max_pinned_percent) == (60, 64, 5, 40)


def test_load_is_what_is_usual_where_that_is_known(make: Make) -> None:
    """Or advice would change with every busy minute."""
    usual = Usual(turns_per_second=0.3, running_tokens=11.0, cache_hit_percent=5.0)
    found = evidence(make({}).spec, replace(seen(), usual=usual))
    assert (found.turns_per_second, found.peak_turns_per_second) == (0.3, 0.7)
    assert (found.decode_running_tokens, found.prefill_cache_hit_percent) == (11, 5)


def test_the_ttl_in_force_is_decode_s_less_the_margin(make: Make) -> None:
    assert evidence(make({}).spec, seen()).ttl == 470


def test_nothing_is_made_up(make: Make) -> None:
    found = evidence(make({}).spec, Measured())
    assert (found.gaps, found.ended, found.turn_tokens, found.turns_per_second) == ({}, 0, 0, 0)
    unknown = (found.prefill, found.transfer, found.prefill_cache_hit_percent, found.decode_capacity_tokens)
    assert unknown == (None, None, None, None)
    assert transfer_line(ReuseCounters.model_validate({"fetch_legs": legs(fetched=True)}), None) is None


def test_it_is_written_when_it_changes_only(make: Make) -> None:
    spec = make({}).spec
    assert advice_status(None, spec, None, NOW) is None
    assert advice_status(None, spec, Measured(), NOW) is None
    first = advice_status(None, spec, seen(), NOW)
    assert first
    assert first.updated_at == "2023-11-14T22:13:20Z"
    assert all(each.reason for each in (first.lease_seconds, first.threshold_tokens, first.holdout_percent))
    assert first.verdict.reason
    assert advice_status(first, spec, seen(), NOW + 999) is first
    assert advice_status(first, spec, None, NOW + 999) is first


def test_what_was_advised_is_kept(make: Make) -> None:
    """Through the status, since the operator remembers nothing."""
    spec = make({}).spec
    first = advice_status(None, spec, seen(), NOW)
    assert first
    assert first.threshold_tokens.value
    few = seen(prefill_legs={}, fetch_legs={})
    second = advice_status(first, spec, few, NOW)
    assert second
    assert second.threshold_tokens.value == first.threshold_tokens.value
