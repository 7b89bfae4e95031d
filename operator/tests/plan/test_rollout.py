"""The arithmetic of a rollout, case by case."""

import pytest

from kvloop.api.labels import Role
from kvloop.plan.rollout import Engine, Rollout, Side, Sides, step, steps

OLD = Engine("a", updated=False, ready=True, base=True)
NEW = Engine("b", updated=True, ready=True)
LOADING = Engine("b", updated=True, ready=False, started=False)
FAILING = Engine("b", updated=True, ready=False, started=False, failing=True)
OLD_FAILING = Engine("a", updated=False, ready=False, base=True, started=False, failing=True)
OLD_LOADING = Engine("a", updated=False, ready=False, base=True, started=False)
OLD_DOWN = Engine("a", updated=False, ready=False, base=True)
SUPERSEDED = Engine("ab", updated=False, ready=False, started=False, failing=True)


def side(*engines: Engine | None, max_unavailable: int = 1, replicas: int | None = None) -> Side:
    present = {number: engine for number, engine in enumerate(engines) if engine is not None}
    return Side(len(engines) if replicas is None else replicas, max_unavailable, "b", present)


def sides(prefill: Side, decode: Side) -> Sides:
    return {Role.PREFILL: prefill, Role.DECODE: decode}


def partitions(rollout: Rollout) -> tuple[int, int]:
    return rollout.partitions[Role.PREFILL], rollout.partitions[Role.DECODE]


CASES = {
    "all new": (side(NEW, NEW), side(NEW, NEW), (0, 0), ""),
    "nothing there yet": (
        side(None, None),
        side(None),
        (0, 0),
        "prefill 0 of 2, decode 0 of 1 updated; waiting for prefill-0, prefill-1, decode-0",
    ),
    "no engines wanted": (side(), side(), (0, 0), ""),
    "first step": (
        side(OLD, OLD),
        side(OLD, OLD),
        (1, 1),
        "prefill 0 of 2, decode 0 of 2 updated; replacing prefill-1, decode-1",
    ),
    "waits for both sides": (
        side(OLD, NEW),
        side(OLD, LOADING),
        (1, 1),
        "prefill 1 of 2, decode 1 of 2 updated; waiting for decode-1",
    ),
    "last pair": (
        side(OLD, NEW),
        side(OLD, NEW),
        (0, 0),
        "prefill 1 of 2, decode 1 of 2 updated; replacing prefill-0, decode-0",
    ),
    "an engine being replaced is missing meanwhile": (
        side(OLD, OLD, None),
        side(OLD, OLD, OLD),
        (2, 2),
        "prefill 0 of 3, decode 0 of 3 updated; replacing decode-2",
    ),
    "only one side has changed": (
        side(NEW, NEW),
        side(OLD, OLD),
        (0, 1),
        "prefill 2 of 2, decode 0 of 2 updated; replacing decode-1",
    ),
    "a new engine fails": (
        side(OLD, OLD, FAILING),
        side(OLD, OLD, NEW),
        (2, 2),
        "prefill 1 of 3, decode 1 of 3 updated; held, because prefill-2 of the new template fails",
    ),
    "a new engine fails, though more may be down": (
        side(OLD, OLD, FAILING, max_unavailable=2),
        side(OLD, OLD, NEW, max_unavailable=2),
        (2, 2),
        "prefill 1 of 3, decode 1 of 3 updated; held, because prefill-2 of the new template fails",
    ),
    "a new engine fails, but nothing old is left": (
        side(NEW, FAILING),
        side(NEW, NEW),
        (0, 0),
        "prefill 2 of 2, decode 2 of 2 updated; waiting for prefill-1",
    ),
    "scaled up while a new engine fails: more of the old ones": (
        side(OLD, OLD, FAILING, None, None),
        side(OLD, OLD, NEW),
        (5, 2),
        "prefill 1 of 5, decode 1 of 3 updated; held, because prefill-2 of the new template fails",
    ),
    "scaled up in mid-rollout: new ones, as far as both sides keep step": (
        side(OLD, OLD, NEW, None, None, None),
        side(OLD, OLD, NEW),
        (2, 1),
        "prefill 1 of 6, decode 1 of 3 updated; replacing decode-1",
    ),
    "scaled down in mid-rollout": (
        side(OLD, OLD, NEW, NEW, replicas=2),
        side(OLD, OLD),
        (1, 1),
        "prefill 0 of 2, decode 0 of 2 updated; replacing prefill-1, decode-1",
    ),
    "old ones that are down use the allowance up": (
        side(OLD, OLD),
        side(OLD_DOWN, OLD),
        (1, 2),
        "prefill 0 of 2, decode 0 of 2 updated; replacing prefill-1",
    ),
    "nothing to do but heal": (
        side(NEW, NEW),
        side(OLD_DOWN, OLD),
        (0, 2),
        (
            "prefill 2 of 2, decode 0 of 2 updated; held, because decode-0 is down and maxUnavailable allows no more:"
            " heal it, or raise maxUnavailable"
        ),
    ),
    "one prefill engine waits for half of decode": (
        side(OLD),
        side(OLD, OLD, NEW, NEW),
        (0, 1),
        "prefill 0 of 1, decode 2 of 4 updated; replacing prefill-0, decode-1",
    ),
    "many names are cut short": (
        side(*[None] * 5),
        side(),
        (0, 0),
        "prefill 0 of 5, decode 0 of 0 updated; waiting for prefill-0, prefill-1, prefill-2, 2 more",
    ),
}


@pytest.mark.parametrize(("prefill", "decode", "expected", "message"), CASES.values(), ids=CASES.keys())
def test_step(prefill: Side, decode: Side, expected: tuple[int, int], message: str) -> None:
    rollout = step(sides(prefill, decode))
    assert partitions(rollout) == expected
    assert rollout.message == message
    assert rollout.done == (not message)
    taken = [(role, n) for role, one in (("prefill", prefill), ("decode", decode)) for n in one.outdated]
    several = [place for place in taken if {"prefill": prefill, "decode": decode}[place[0]].max_unavailable > 1]
    assert set(rollout.delete) <= set(several)


def test_paused_holds_where_it_is() -> None:
    rollout = step(sides(side(OLD, OLD, NEW), side(OLD, OLD_FAILING, OLD_FAILING)), paused=True)
    assert partitions(rollout) == (2, 3)
    assert rollout.delete == ()
    assert rollout.message == "prefill 1 of 3, decode 0 of 3 updated; paused"


def test_paused_says_nothing_when_nothing_is_left_to_do() -> None:
    assert step(sides(side(NEW), side(NEW)), paused=True).done


@pytest.mark.parametrize("useless", [OLD_FAILING, OLD_LOADING])
def test_what_is_of_no_use_is_deleted_at_once(useless: Engine) -> None:
    """As after a bad image of which no engine ever became ready: the fix does not wait for them."""
    rollout = step(sides(side(useless, useless), side(useless, useless)))
    assert partitions(rollout) == (0, 0)
    assert rollout.delete == tuple((role, number) for role in (Role.DECODE, Role.PREFILL) for number in (0, 1))


def test_a_superseded_change_that_failed_is_replaced_by_the_newest() -> None:
    """An edit failed on one engine of each side; the next one replaces these and touches nothing that serves."""
    prefill, decode = side(OLD, OLD, SUPERSEDED), side(OLD, OLD, SUPERSEDED)
    rollout = step(sides(prefill, decode))
    assert partitions(rollout) == (2, 2)
    assert rollout.delete == ((Role.DECODE, 2), (Role.PREFILL, 2))


def test_roll_back_touches_only_what_was_changed() -> None:
    rollout = step(sides(side(NEW, NEW, OLD_FAILING), side(NEW, NEW, OLD)))
    assert partitions(rollout) == (0, 0)
    assert rollout.delete == ((Role.PREFILL, 2),)


def test_failing_old_ones_stay_while_a_new_one_fails_too() -> None:
    rollout = step(sides(side(OLD, OLD_FAILING, FAILING), side(OLD, OLD, NEW)))
    assert partitions(rollout) == (2, 2)
    assert rollout.delete == ()


def test_a_superseded_one_that_fails_makes_room_for_the_base() -> None:
    """Below the partition it would use up what may be unavailable for ever."""
    rollout = step(sides(side(OLD, SUPERSEDED, OLD, NEW), side(NEW)))
    assert partitions(rollout) == (3, 0)
    assert rollout.delete == ((Role.PREFILL, 1),)
    assert step(sides(side(OLD, SUPERSEDED, OLD, FAILING), side(NEW))).delete == ((Role.PREFILL, 1),)
    assert step(sides(side(OLD, SUPERSEDED, OLD, NEW), side(NEW)), paused=True).delete == ()


def test_steps_show_the_whole_rollout() -> None:
    shown = list(steps(sides(side(OLD), side(OLD, OLD, OLD, OLD))))
    assert [partitions(rollout) for rollout in shown] == [(1, 3), (1, 2), (0, 1), (0, 0), (0, 0)]
    assert [rollout.done for rollout in shown] == [False] * 4 + [True]


def test_steps_end_where_a_rollout_would_hold() -> None:
    shown = list(steps(sides(side(OLD_DOWN, OLD), side(LOADING))))
    assert [partitions(rollout) for rollout in shown] == [(2, 0), (2, 0)]
    assert not shown[-1].done
