"""Advice from made-up evidence whose best answer is known."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from e2e.traces.synthetic import best_ttl
from kvloop.advice.advice import UNKNOWN
from kvloop.advice.advisor import advise
from kvloop.advice.case import MIN_TURNS, Case
from kvloop.advice.evidence import Evidence, Line
from kvloop.advice.gaps import Gaps
from kvloop.advice.holdout import EFFECT, saving
from kvloop.advice.lines import Leg, fit_legs
from kvloop.advice.price import pinned_tokens, room

from .synthetic import (
    PREFILL,
    TOKENS,
    TRANSFER,
    Draw,
    best_lomax,
    counts,
    evidence,
    exponential,
    lomax,
)

KNOWN = [
    pytest.param(exponential(20), 0.15, 80, best_ttl(20, 0.15, 80), id="exponential"),
    pytest.param(exponential(30), 0.05, 200, best_ttl(30, 0.05, 200), id="few-end"),
    pytest.param(lomax(20, 1.2), 0.15, 120, best_lomax(20, 1.2, 0.15, 120), id="heavy-tail"),
    pytest.param(lambda chance: chance.uniform(1, 30), 0.15, 80, 30.0, id="never-after-30-s"),
    pytest.param(
        lambda chance: chance.uniform(1, 20) if chance.random() < 0.8 else chance.uniform(3000, 4000),
        0.1, 60, 20.0, id="tools-and-lunch-breaks",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("draw", "ended", "hold", "best"), KNOWN)
@pytest.mark.parametrize("seed", range(3))
def test_the_ttl_is_within_a_fifth_of_the_best(draw: Draw, ended: float, hold: float, best: float, seed: int) -> None:
    found = advise(evidence(draw, 5000, ended=ended, hold=hold, seed=seed)).ttl
    assert found.value == pytest.approx(best, rel=0.2)


def test_many_samples_give_confidence_and_few_do_not() -> None:
    assert advise(evidence(exponential(20), 5000)).ttl.confident
    assert not advise(evidence(lomax(20, 1.2), 400)).ttl.confident


@pytest.mark.parametrize(("draw", "ended", "hold", "best"), KNOWN)
def test_no_other_ttl_is_worth_more(draw: Draw, ended: float, hold: float, best: float) -> None:
    """By counting every single gap, without histogram or interpolation."""
    chance = random.Random(7)  # noqa: S311 (data of a test)
    gaps = [draw(chance) if chance.random() >= ended else math.inf for _ in range(20_000)]

    def worth(ttl: float) -> float:
        return sum((gap <= ttl) - min(gap, ttl) / hold for gap in gaps)

    advised = advise(evidence(draw, 5000, ended=ended, hold=hold)).ttl.value
    assert advised is not None
    assert worth(advised) >= 0.97 * max(worth(15 * 1.1**i) for i in range(40))


def test_thirty_turns_tell_nothing_and_how_many_more_would() -> None:
    found = advise(evidence(exponential(20), 30))
    assert found.ttl.value is found.verdict.value is None
    assert "Cannot tell yet: 30 turns were seen and 300 are needed, 270 more" in found.ttl.reason
    assert found.ttl.reason == found.verdict.reason


def test_three_hundred_turns_of_five_conversations_tell_nothing() -> None:
    found = advise(evidence(exponential(20), 300, ended=5 / 300)).ttl
    assert found.value is None
    assert "5 conversations were seen to their end and 20 are needed" in found.reason


@pytest.mark.parametrize("lacking", ["prefill", "transfer", "decode_capacity_tokens"])
def test_what_is_not_known_is_named(lacking: str) -> None:
    unknown: dict[str, Any] = {lacking: None}
    found = advise(replace(evidence(exponential(20), 1000), **unknown))
    assert found.ttl.value is None
    assert "not" in found.ttl.reason
    assert found.curve[0].hit_share > 0


def test_nothing_at_all_is_no_error() -> None:
    found = advise(Evidence())
    assert {found.ttl.value, found.threshold.value, found.holdout.value, found.verdict.value} == {None}
    assert found.curve == ()


def test_a_few_stragglers_and_a_few_instant_returns_do_not_move_it() -> None:
    clean = evidence(exponential(20), 5000)
    odd = {**clean.gaps, 0: 50, 100: 50}
    found = advise(replace(clean, gaps=odd)).ttl.value
    assert found == pytest.approx(best_ttl(20, 0.15, 80), rel=0.2)


def test_the_busiest_minute_must_fit_into_memory() -> None:
    calm = evidence(exponential(20), 5000, turns_per_second=1.0, hold=200)
    burst = replace(calm, peak_turns_per_second=4.0)
    lease = advise(burst).ttl
    gaps = Gaps.of(burst.gaps, burst.ended)
    assert lease.value is not None
    assert lease.value < (advise(calm).ttl.value or 0)
    assert pinned_tokens(burst, gaps, lease.value, rate=4.0) <= (room(burst) or 0) * 1.05
    assert "memory allows no longer" in lease.reason


def test_advice_that_overfills_memory_does_not_stand() -> None:
    found = advise(evidence(exponential(20), 5000, turns_per_second=4.0, hold=200, ttl=100)).ttl
    assert found.value != 100
    assert "The 100 s in force want" in found.reason


def test_advice_does_not_swing_with_new_samples_of_the_same_traffic() -> None:
    advised = set()
    before = UNKNOWN
    for seed in range(20):
        before = advise(evidence(exponential(20), 600, seed=seed, ttl=470, threshold=64), before)
        advised.add((before.ttl.value, before.ttl.reason, before.verdict.reason, before.threshold.reason))
    assert len(advised) == 1
    assert before.ttl.value != 470


def test_the_value_in_force_stands_while_none_is_really_better() -> None:
    found = advise(evidence(exponential(20), 2000, ttl=62)).ttl
    assert found.value == 62
    assert "in force" in found.reason


def test_a_change_of_traffic_changes_the_advice() -> None:
    before = advise(evidence(exponential(20), 5000))
    after = advise(evidence(exponential(100), 5000, hold=400), before)
    assert after.ttl.value == pytest.approx(best_ttl(100, 0.15, 400), rel=0.2)


def test_former_advice_outlives_a_quiet_night() -> None:
    before = advise(evidence(exponential(20), 5000))
    assert advise(evidence(exponential(20), 10), before).ttl == before.ttl


def legs(noise: float, seed: int = 3) -> list[Leg]:
    chance = random.Random(seed)  # noqa: S311 (data of a test)
    made = []
    for _ in range(400):
        computed, fetched = chance.uniform(200, 20_000), chance.choice([0, chance.uniform(100, 20_000)])
        seconds = PREFILL.at(computed) + (TRANSFER.at(fetched) if fetched else 0)
        queued = chance.expovariate(1 / 2.0) if chance.random() < 0.1 else 0
        made.append(Leg(computed, fetched, seconds * chance.lognormvariate(0, noise) + queued))
    return made


def test_the_threshold_is_found_from_legs_of_which_some_have_queued() -> None:
    prefill, transfer = fit_legs(legs(noise=0.002))
    found = advise(Evidence(prefill=prefill, transfer=transfer, threshold=64)).threshold
    assert found.value == pytest.approx(479, rel=0.2)
    assert found.confident


def test_a_threshold_that_cannot_be_told_from_the_one_in_force_stands() -> None:
    prefill, transfer = fit_legs(legs(noise=0.1))
    found = advise(Evidence(prefill=prefill, transfer=transfer, threshold=900)).threshold
    assert (found.value, found.confident) == (900, False)
    assert "in force" in found.reason


def test_a_threshold_does_not_come_and_go_with_lines_of_nearly_one_slope() -> None:
    before, seen, chance = UNKNOWN, [], random.Random(4)  # noqa: S311 (data of a test)
    for _ in range(50):
        transfer = Line(0.01, PREFILL.slope * (0.97 + chance.gauss(0, 0.02)), 100, error=5e-7, intercept_error=1e-3)
        before = advise(evidence(exponential(20), 1000, transfer=transfer, threshold=64), before)
        seen.append(before.threshold.value)
    assert len(set(seen[5:])) == 1
    never = replace(PREFILL, slope=2 * PREFILL.slope)
    assert advise(evidence(exponential(20), 1000, transfer=never, threshold=64), before).threshold.value is None


def test_published_lines_give_a_threshold_without_confidence() -> None:
    found = advise(Evidence(prefill=Line(0.068, 101.7e-6), transfer=Line(0.0099, 4.5e-6))).threshold
    assert found.value == 100
    assert not found.confident


def test_prefill_that_has_it_all_in_its_own_cache_needs_no_reuse() -> None:
    found = advise(evidence(exponential(20), 2000, prefill_cache_hit_percent=96.0)).verdict
    assert found.value is False
    assert "96%" in found.reason
    assert advise(evidence(exponential(20), 2000, prefill_cache_hit_percent=30.0)).verdict.value is True


def test_short_turns_and_slow_links_need_no_reuse() -> None:
    short = advise(evidence(exponential(20), 2000, turn_tokens=300.0)).verdict
    assert short.value is False
    assert "too few for fetching" in short.reason
    slow = advise(evidence(exponential(20), 2000, transfer=Line(0.01, 50e-6, samples=100)))
    assert slow.verdict.value is False
    assert slow.threshold.value is slow.ttl.value is None


def test_one_shot_traffic_holds_memory_in_vain() -> None:
    found = advise(evidence(exponential(20), 2000, ended=0.97))
    assert found.verdict.value is False
    assert "too few turns are followed" in found.verdict.reason
    assert found.ttl.value is None
    assert advise(evidence(exponential(20), 2000, ended=1.0)).verdict.value is False


def test_a_verdict_that_is_a_toss_up_does_not_swing() -> None:
    before, seen = UNKNOWN, set()
    for seed in range(20):
        before = advise(evidence(exponential(20), 400, ended=0.93, seed=seed), before)
        seen.add((before.verdict.value, before.verdict.reason))
    assert len(seen) == 1


def times(median: float, number: int, seed: int) -> dict[int, int]:
    chance = random.Random(seed)  # noqa: S311 (data of a test)
    return counts([median * chance.lognormvariate(0, 0.5) for _ in range(number)])


@pytest.mark.parametrize(("reused", "verdict"), [(0.4, True), (1.02, False)])
def test_the_holdout_has_the_last_word(reused: float, verdict: bool) -> None:
    known = evidence(exponential(20), 20_000, ended=0.5)
    known = replace(known, treated_first_token=times(reused, 20_000, 1), holdout_first_token=times(1, 20_000, 2))
    found = advise(known).verdict
    assert (found.value, found.confident) == (verdict, True)
    assert "holdout" in found.reason


def test_times_within_one_bucket_of_the_histogram_decide_nothing() -> None:
    """Reuse may save 15 percent of them and not show."""
    known = evidence(exponential(20), 20_000, ended=0.5)
    known = replace(known, treated_first_token={27: 5000}, holdout_first_token={27: 5000})
    found = saving(Case.of(known))
    assert found
    assert found.low < -0.15
    assert found.high > 0.15
    assert "holdout" not in advise(known).verdict.reason


def test_conversations_of_one_turn_make_the_others_no_more_independent() -> None:
    """Ten conversations of fifty turns are ten, whatever is asked beside them but once."""
    arms: dict[str, Any] = {"treated_first_token": times(0.8, 490, 1), "holdout_first_token": times(1, 150, 2)}
    alone = evidence(exponential(20), 500, ended=0.02, conversations=10, turns_per_second=0.5, **arms)
    beside = replace(alone, ended=alone.ended + 1000, turns_per_second=1.5)
    few, many = saving(Case.of(alone)), saving(Case.of(beside))
    assert few
    assert few == many
    assert few.low < 0 < few.high
    assert advise(beside).holdout.value == advise(alone).holdout.value


def test_the_holdout_is_just_large_enough() -> None:
    """With the advised share, four of five days show the saving, though conversations differ much in length."""
    known = evidence(exponential(20), 1000, ended=0.2, turns_per_second=0.2)
    daily, share = round(0.2 * 86_400 * 0.2), 0.0
    seen = 0
    for day in range(41):
        chance = random.Random(day)  # noqa: S311 (data of a test)
        arms: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(daily):
            held = chance.random() < share
            size = chance.gauss(0, 0.5)
            arms[held] += [math.exp(size + chance.gauss(0, 0.5)) * (1 if held else 1 - EFFECT) for _ in range(4)]
        known = replace(known, treated_first_token=counts(arms[False]), holdout_first_token=counts(arms[True]))
        if not share:
            advised = advise(known).holdout
            assert advised.value is not None
            share = advised.value / 100
            continue
        found = saving(Case.of(known))
        seen += found is not None and found.low > 0
    assert 0 < share < 0.1
    assert 26 <= seen <= 39


def test_little_traffic_needs_days_or_is_hopeless() -> None:
    base = evidence(exponential(20), 1000, ended=0.2)
    some = replace(base, turns_per_second=0.01, treated_first_token=times(1, 500, 1))
    assert advise(some).holdout.value == 10
    assert "days" in advise(some).holdout.reason
    none = replace(some, turns_per_second=0.0001)
    assert advise(none).holdout.value is None
    assert "Too little traffic" in advise(none).holdout.reason


def test_the_floor_of_samples_is_where_the_interval_can_be_trusted() -> None:
    """Of many draws of the fewest turns, the interval of the best TTL holds the truth in nine of ten at least."""
    inside, best = 0, best_ttl(20, 0.15, 80)
    for seed in range(100):
        known = evidence(exponential(20), MIN_TURNS, seed=seed)
        found = Case.of(known).best
        assert found is not None
        inside += found.low <= best * 1.05 and best <= found.high * 1.05
    assert inside >= 90


def test_turn_tokens_hardly_matter_for_the_ttl() -> None:
    """Both what a hit saves and what memory costs grow with the length."""
    short, long = (advise(evidence(exponential(20), 5000, turn_tokens=n * TOKENS)).ttl.value for n in (0.5, 2))
    assert short == pytest.approx(long, rel=0.1)
