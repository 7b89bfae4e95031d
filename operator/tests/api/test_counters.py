"""Arithmetic on counters that lie in each other."""

from kvloop.api.contract import ReuseCounters
from kvloop.api.counters import Flat, Sliding, add, difference, fell, flat, nested

TREE = {"turns": 3, "misses": {"expired": 1}, "first_token": {"reused": {11: {40: 2, 41: 1}}}, "time": {"gap": 0.5}}


def test_there_and_back() -> None:
    assert nested(flat(TREE)) == TREE
    assert flat({"turns": 0, "misses": {}}) == {}
    counters = ReuseCounters(turns=1, gaps={3: 4}, first_token={"holdout": {0: {2: 1}}})
    assert ReuseCounters.model_validate(nested(flat(counters.model_dump()))) == counters


def test_sums_and_differences() -> None:
    total: Flat = {}
    add(total, flat(TREE))
    add(total, {("turns",): 2, ("misses", "used"): 1})
    assert total["turns",] == 5
    assert difference(total, flat(TREE)) == {("turns",): 2, ("misses", "used"): 1}
    assert difference(flat(TREE), total) == {}


def test_a_fall_is_noticed() -> None:
    assert not fell(flat(TREE), flat(TREE))
    assert fell({("turns",): 2}, {("turns",): 3})
    assert fell({}, {("turns",): 3})
    assert not fell({("turns",): 1}, {})


def test_what_came_before_is_in_the_window_for_one_more_length_of_it() -> None:
    now = [1000.0]
    sliding = Sliding(600, lambda: now[0])
    sliding.reach_back(500, {("turns",): 40})
    sliding.count(2, "turns")
    assert (sliding.window_seconds(), sliding.window(), sliding.total()) == (500, {("turns",): 42}, {("turns",): 42})
    now[0] += 300
    sliding.add({("turns",): 3})
    assert (sliding.window_seconds(), sliding.window()["turns",]) == (800, 45)
    now[0] += 310
    assert (sliding.window_seconds(), sliding.window()["turns",]) == (600, 3)
    assert sliding.total()["turns",] == 45


def test_nothing_is_counted_as_nothing() -> None:
    sliding = Sliding(600, lambda: 0.0)
    sliding.count(0, "turns")
    sliding.add({})
    assert sliding.total() == {}
