"""What holds for any evidence at all."""

import math
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from kvloop.advice.advice import UNKNOWN, Advice, Recommendation
from kvloop.advice.advisor import advise
from kvloop.advice.case import Case
from kvloop.advice.evidence import Evidence, Line
from kvloop.advice.gaps import Gaps, Stake
from kvloop.advice.price import pinned_tokens, rent
from kvloop.api import histogram

from .synthetic import PREFILL, TRANSFER

some_counts = st.dictionaries(st.integers(0, histogram.MOST), st.integers(0, 10**9), max_size=30)
amounts = st.floats(0, 1e12)
lines = st.none() | st.builds(
    Line, st.floats(-1e3, 1e3), st.floats(-1, 1), st.integers(0, 10**9), st.floats(0, 1), st.floats(0, 1e3)
)
evidences = st.builds(
    Evidence,
    gaps=some_counts,
    ended=st.integers(0, 10**9),
    conversations=st.none() | st.integers(0, 10**9),
    turn_tokens=amounts,
    turns_per_second=amounts,
    peak_turns_per_second=st.none() | amounts,
    prefill=lines,
    transfer=lines,
    prefill_cache_hit_percent=st.none() | st.floats(0, 100),
    decode_capacity_tokens=st.none() | st.integers(0, 10**12),
    decode_running_tokens=st.none() | amounts,
    decode_pods=st.integers(0, 10_000),
    pod_cost=st.floats(0, 1e6),
    treated_first_token=some_counts,
    holdout_first_token=some_counts,
    ttl=st.none() | st.floats(5, 86_400),
    threshold=st.none() | st.integers(0, 1 << 20),
    holdout_percent=st.none() | st.integers(0, 100),
    max_pinned_percent=st.integers(1, 100),
)
usual = st.builds(
    Evidence,
    gaps=st.dictionaries(st.integers(20, 90), st.integers(1, 1000), min_size=2, max_size=30),
    ended=st.integers(400, 5000),
    turn_tokens=st.floats(1000, 100_000),
    turns_per_second=st.floats(0.01, 10),
    prefill=st.just(PREFILL),
    transfer=st.just(TRANSFER),
    decode_capacity_tokens=st.integers(100_000, 10_000_000),
)
recommendations = st.builds(Recommendation, st.none() | st.integers(0, 100_000), st.just("before"), st.booleans())
verdicts = st.builds(Recommendation, st.none() | st.booleans(), st.just("before"), st.booleans())
earlier = st.just(UNKNOWN) | st.builds(Advice, recommendations, recommendations, recommendations, verdicts)


@given(evidences, earlier)
def test_no_evidence_is_too_strange(evidence: Evidence, previous: Advice) -> None:
    found = advise(evidence, previous)
    assert found.ttl.value is None or previous.ttl.value == found.ttl.value or 5 <= found.ttl.value <= 86_400
    assert found.threshold.value is None or 0 <= found.threshold.value <= 1 << 20
    for each in (found.ttl, found.threshold, found.holdout, found.verdict):
        assert each.reason
        assert "nan" not in each.reason
    for point in found.curve:
        assert 0 <= point.hit_share <= 1
        assert 0 <= point.wasted_share <= 1 + 1e-9
        assert math.isfinite(point.pinned_tokens)


@given(evidences, earlier)
def test_the_same_evidence_again_changes_nothing(evidence: Evidence, previous: Advice) -> None:
    once = advise(evidence, previous)
    assert advise(evidence, once) == once


@given(usual)
def test_a_longer_ttl_hits_and_holds_no_less(evidence: Evidence) -> None:
    curve = advise(evidence).curve
    for shorter, longer in pairwise(curve):
        assert longer.hit_share >= shorter.hit_share - 1e-9
        assert longer.pinned_tokens >= shorter.pinned_tokens * (1 - 1e-9)


@given(usual, st.sampled_from([1, 2, 3]))
def test_time_has_no_scale(evidence: Evidence, octaves: int) -> None:
    """All twice as slow, and memory twice as cheap by the second: keep turns twice as long."""
    factor = 2**octaves
    slow = replace(
        evidence,
        gaps={i + 4 * octaves: n for i, n in evidence.gaps.items()},
        turns_per_second=evidence.turns_per_second / factor,
        decode_capacity_tokens=(evidence.decode_capacity_tokens or 0) * factor,
    )
    one, other = Gaps.of(evidence.gaps, evidence.ended), Gaps.of(slow.gaps, slow.ended)
    for ttl in (15, 70, 500):
        near, far = (
            one.compare(ttl, 0, Stake(1, rent(evidence, 1))),
            other.compare(ttl * factor, 0, Stake(1, rent(slow, 1))),
        )
        assert math.isclose(near.mean, far.mean, rel_tol=1e-6, abs_tol=1e-9)
        held = pinned_tokens(evidence, one, ttl, 1), pinned_tokens(slow, other, ttl * factor, 1 / factor)
        assert math.isclose(*held, rel_tol=1e-6)


@given(usual, st.integers(2, 50))
def test_more_of_the_same_samples_give_the_same_ttl(evidence: Evidence, times: int) -> None:
    more = replace(evidence, gaps={i: times * n for i, n in evidence.gaps.items()}, ended=times * evidence.ended)
    one, other = Case.of(evidence).best, Case.of(more).best
    assert one is not None
    assert other is not None
    assert other.low >= one.low * 0.95
    assert other.high <= one.high * 1.05


@given(usual, st.integers(2, 16))
def test_more_memory_never_asks_for_a_shorter_ttl(evidence: Evidence, times: int) -> None:
    roomy = replace(evidence, decode_capacity_tokens=(evidence.decode_capacity_tokens or 0) * times)
    less, more = Case.of(evidence).best, Case.of(roomy).best
    assert less is not None
    assert more is not None
    assert more.high >= less.low


@given(usual, st.floats(1.5, 100))
def test_busier_traffic_never_asks_for_a_longer_ttl(evidence: Evidence, times: float) -> None:
    calm = Case.of(evidence).best
    busy = Case.of(replace(evidence, peak_turns_per_second=evidence.turns_per_second * times)).best
    assert calm is not None
    assert busy is not None
    assert busy.ttl <= calm.ttl * 1.01


@settings(max_examples=50)
@given(st.floats(0.001, 0.1), st.floats(1.1, 10))
def test_a_slower_start_never_lowers_the_threshold(start: float, times: float) -> None:
    def threshold(intercept: float) -> int:
        return advise(Evidence(prefill=PREFILL, transfer=Line(intercept, 4.55e-6))).threshold.value or 0

    assert threshold(start * times) >= threshold(start)


@given(
    some_counts, st.integers(0, 10**6), st.floats(0.01, 1e5), st.floats(0.01, 1e5), st.floats(0, 10), st.floats(0, 1)
)
def test_a_comparison_is_the_difference_of_two_worths(
    counts: dict[int, int], ended: int, ttl: float, other: float, value: float, cost: float
) -> None:
    gaps, stake = Gaps.of(counts, ended), Stake(value, cost)
    direct = gaps.compare(ttl, other, stake).mean
    apart = gaps.compare(ttl, 0, stake).mean - gaps.compare(other, 0, stake).mean
    assert math.isclose(direct, apart, rel_tol=1e-6, abs_tol=1e-6 * (1 + value + cost * max(ttl, other)))
