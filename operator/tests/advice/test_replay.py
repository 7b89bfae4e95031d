"""The replay of turns: small cases by hand, and large ones against the formulas of the advice."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.enginesim.speed import PRESETS
from e2e.traces.synthetic import Traffic, requests
from kvloop.advice.advisor import advise
from kvloop.advice.evidence import Line
from kvloop.advice.published import MODELS, Model
from kvloop.advice.replay import Replay, Settings, System
from kvloop.advice.turns import Turn, evidence

MODEL = Model("by-hand", Line(0.0, 0.001), Line(0.1, 0.0001), decode_seconds=0.01, capacity_tokens=10_000)
TURNS = [
    Turn(start=0, end=10, prompt_tokens=1000, held_tokens=1100),
    Turn(start=20, end=30, prompt_tokens=1200, held_tokens=1300, before=0, gap=10, history_tokens=1100),
    Turn(start=90, end=95, prompt_tokens=1400, held_tokens=1500, before=1, gap=60, history_tokens=1300),
]


def run(ttl: float, threshold: int = 64, turns: list[Turn] = TURNS, **system: float) -> dict[str, float]:
    replay = Replay(turns, replace(System(MODEL), **system))  # type: ignore[arg-type] # any of its numbers
    result = replay.run(Settings(ttl, threshold))
    return {name: getattr(result, name) for name in result.__dataclass_fields__ if name != "settings"}


def test_without_reuse_everything_is_computed() -> None:
    found = run(0)
    assert found["reused"] == found["pinned_peak"] == 0
    assert found["prefill_seconds"] == pytest.approx(1.0 + 1.2 + 1.4)
    assert (found["first_token_p50"], found["first_token_p95"]) == pytest.approx((1.2, 1.4))


@pytest.mark.parametrize(("ttl", "reused", "expired"), [(9, 0, 2), (11, 1, 1), (59, 1, 1), (61, 2, 0)])
def test_who_comes_in_time_fetches(ttl: float, reused: int, expired: int) -> None:
    found = run(ttl)
    assert (found["reused"], found["expired"], found["displaced"]) == (reused, expired, 0)


def test_a_fetch_takes_its_time_and_new_tokens_theirs() -> None:
    found = run(11)
    fetched = 100 * 0.001 + 0.1 + 1100 * 0.0001
    assert found["prefill_seconds"] == pytest.approx(1.0 + fetched + 1.4)
    assert found["reused_tokens"] == 1100
    assert found["history_tokens"] == 2400


def test_too_little_is_computed_but_frees_its_memory() -> None:
    found = run(61, threshold=1200)
    assert found["reused"] == 1
    assert found["pinned_peak"] == 1500
    assert found["expired"] == found["displaced"] == 0


def test_memory_is_held_until_the_follow_up_or_the_end() -> None:
    found = run(20)
    held = 1100 * 10 + 1300 * 20
    assert found["pinned_mean"] == pytest.approx(held / 95)
    assert found["concurrency_left"] == pytest.approx((10_000 - found["pinned_p95"]) / 1300)


def test_one_is_given_up_for_want_of_memory() -> None:
    turns = [
        Turn(start=0, end=1, prompt_tokens=3000, held_tokens=3000),
        Turn(start=0, end=2, prompt_tokens=3000, held_tokens=3000),
        Turn(start=10, end=11, prompt_tokens=3100, held_tokens=3100, before=0, gap=9, history_tokens=3000),
        Turn(start=10, end=12, prompt_tokens=3100, held_tokens=3100, before=1, gap=8, history_tokens=3000),
    ]
    found = run(100, turns=turns)
    assert (found["reused"], found["displaced"]) == (1, 1)
    assert found["pinned_peak"] == 3100
    assert run(100, turns=turns, decode_pods=2)["reused"] == 2
    assert run(100, turns=turns, max_pinned_percent=70)["reused"] == 2


def conversations(gap: float) -> list[Turn]:
    """Ten at once, of ten turns each, that take turns."""
    turns: list[Turn] = []
    for i in range(100):
        before = i - 10 if i >= 10 else None
        start = (gap + 1) * i / 10
        turn = Turn(start=start, end=start + 1, prompt_tokens=1000, held_tokens=1000)
        turns.append(turn if before is None else replace(turn, before=before, gap=gap, history_tokens=1000))
    return turns


def test_of_conversations_that_take_turns_as_many_are_held_as_fit() -> None:
    """To give up the oldest would lose each just before its next turn."""
    assert run(100, turns=conversations(10), max_pinned_percent=50)["reused"] >= 40


def test_who_has_waited_longer_than_most_is_given_up_first() -> None:
    """Five conversations have ended after a turn; the others come again, and find room."""
    ended = [Turn(start=-50, end=-50, prompt_tokens=1000, held_tokens=1000)] * 5
    going = [turn if turn.before is None else replace(turn, before=turn.before + 5) for turn in conversations(10)]
    found = run(1000, turns=[*ended, *going], decode_pods=2, max_pinned_percent=50)
    assert found["reused"] == 90


def test_a_turn_that_is_said_to_be_the_last_is_not_held() -> None:
    assert run(100, turns=[replace(TURNS[0], last=True)])["pinned_peak"] == 0


def test_a_follow_up_whose_former_turn_is_older_than_the_log_goes_by_its_gap() -> None:
    alone = [replace(TURNS[1], before=None)]
    assert run(11, turns=alone)["reused"] == 1
    assert run(9, turns=alone)["expired"] == 1
    assert run(0, turns=[replace(alone[0], gap=0.0)])["reused"] == 0


def test_turns_wait_for_prefill_pods() -> None:
    both = [Turn(0, 9, 1000, 0, gap=99, history_tokens=0), Turn(0, 9, 1000, 0, gap=99, history_tokens=0)]
    assert run(10, turns=both)["first_token_p95"] == 1.0
    assert run(10, turns=both, prefill_pods=1)["first_token_p95"] == 2.0
    assert run(10, turns=both, prefill_pods=2)["first_token_p95"] == 1.0


def test_what_prefill_finds_in_its_own_cache_is_neither_fetched_nor_computed() -> None:
    found = run(11, prefill_cache_hit_percent=50)
    assert found["reused_tokens"] == 550
    assert found["prefill_seconds"] == pytest.approx(1.0 + 0.1 + 0.1 + 0.055 + (100 + 650) * 0.001)


def synthetic_turns(seed: int) -> list[Turn]:
    made = requests(Traffic(conversations=400, between_seconds=5), seed)
    turns: list[Turn] = []
    last: dict[int, int] = {}
    for i, each in enumerate(made):
        before = last.get(each.conversation)
        history = 0 if before is None else turns[before].held_tokens
        turns.append(Turn(each.start, each.end, each.prompt, each.prompt + each.output, before, each.gap, history))
        last[each.conversation] = i
    return turns


def test_the_curve_of_the_advice_is_what_the_replay_gives() -> None:
    """Hit share and pinned tokens by formula, against every single turn."""
    turns = synthetic_turns(3)
    replay = Replay(turns, System(MODELS["qwen3-32b"]))
    for point in advise(evidence(turns)).curve[:9]:
        result = replay.run(Settings(point.ttl, 0))
        assert result.hit_share == pytest.approx(point.hit_share, abs=0.03)
        assert result.pinned_mean == pytest.approx(point.pinned_tokens, rel=0.1)


def test_published_systems_are_those_of_the_simulated_engine() -> None:
    for name, model in MODELS.items():
        speed = PRESETS[name]
        assert model.prefill.at(0) == pytest.approx(speed.prefill(0, 0))
        assert model.prefill.at(10_000) == pytest.approx(speed.prefill(10_000, 0))
        fetched = speed.prefill(150, 10_000) + speed.transfer(10_000) - speed.prefill(150, 0)
        assert model.transfer.at(10_000) == pytest.approx(fetched)
        assert model.decode_seconds == speed.decode(1)


amounts = st.floats(0, 1e6)
some_turns = st.lists(
    st.builds(
        Turn,
        start=amounts,
        end=amounts,
        prompt_tokens=st.integers(0, 10**7),
        held_tokens=st.integers(0, 10**7),
        before=st.none() | st.integers(0, 20),
        gap=st.none() | amounts,
        history_tokens=st.integers(0, 10**7),
        last=st.booleans(),
    ),
    max_size=20,
)


@given(some_turns, st.floats(0, 1e6), st.integers(0, 10**6), st.none() | st.integers(1, 3))
def test_no_turns_are_too_strange(turns: list[Turn], ttl: float, threshold: int, pods: int | None) -> None:
    result = Replay(turns, System(MODEL, prefill_pods=pods)).run(Settings(ttl, threshold))
    assert result.reused + result.expired + result.displaced <= result.follow_ups
    assert 0 <= result.hit_share <= 1
    assert result.pinned_peak <= MODEL.capacity_tokens / 2
    assert math.isfinite(result.concurrency_left)
    advise(evidence(turns))


def test_a_longer_ttl_never_reuses_less_while_memory_suffices() -> None:
    replay = Replay(synthetic_turns(1), System(MODELS["qwen3-32b"]))
    reused = [replay.run(Settings(ttl, 0)).reused for ttl in range(0, 200, 5)]
    assert reused == sorted(reused)
    assert reused[0] == 0 < reused[1] < reused[-1]
