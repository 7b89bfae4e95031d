"""Which engine gets a turn."""

from kvloop.api.contract import CircuitBreaker
from kvloop.api.labels import Role
from kvloop.router.policy import choose_decode, choose_prefill
from kvloop.router.pool import Endpoint, Engine, Pool


def engine(address: str, role: Role = Role.DECODE, *, revision: str = "r1", load: int = 0) -> Engine:
    return Engine(Endpoint(role, address, revision), in_flight=load)


def test_the_holder_is_preferred_until_it_is_overloaded() -> None:
    other, busy, swamped = engine("a"), engine("b", load=8), engine("c", load=9)
    assert choose_decode([other, busy], holder=busy, paired={"r1"}) is busy
    assert choose_decode([other, swamped], holder=swamped, paired={"r1"}) is other


def test_a_holder_that_is_not_usable_is_passed_over() -> None:
    other = engine("a")
    assert choose_decode([other], holder=engine("gone"), paired={"r1"}) is other
    assert choose_decode([], holder=engine("gone"), paired={"r1"}) is None


def test_the_least_loaded_and_then_the_longest_unused() -> None:
    pool = Pool(lambda: 0.0, CircuitBreaker())
    pool.update([Endpoint(Role.DECODE, address, "r1") for address in "abc"])
    picked = []
    for _ in range(6):
        chosen = choose_decode(pool.all(), holder=None, paired={"r1"})
        assert chosen is not None
        pool.begin(chosen)
        pool.end(chosen)
        picked.append(chosen.address)
    assert picked == ["a", "b", "c", "a", "b", "c"]


def test_a_revision_with_prefill_comes_first() -> None:
    old, new = engine("a", revision="r1"), engine("b", revision="r2", load=5)
    assert choose_decode([old, new], holder=None, paired={"r2"}) is new
    assert choose_decode([old, new], holder=old, paired={"r2"}) is new
    assert choose_decode([old], holder=None, paired={"r2"}) is old


def test_prefill_that_knows_the_conversation_is_preferred() -> None:
    idle, known = engine("a", Role.PREFILL), engine("b", Role.PREFILL, load=4)
    assert choose_prefill([idle, known], prefer="b") is known
    assert choose_prefill([idle, known], prefer="") is idle
    assert choose_prefill([idle, known], prefer="gone") is idle
    assert choose_prefill([idle, engine("c", Role.PREFILL, load=9)], prefer="c") is idle
    assert choose_prefill([], prefer="b") is None
