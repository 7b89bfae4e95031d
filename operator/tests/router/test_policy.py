"""Which engine gets a turn."""

from kvloop.api.labels import Role
from kvloop.router.policy import choose_decode, choose_prefill
from kvloop.router.pool import Endpoint, Engine, EngineInfo, Pool


def engine(
    address: str,
    role: Role = Role.DECODE,
    *,
    revision: str = "r1",
    load: int = 0,
    guard: bool = True,
    ready: bool = True,
    terminating: bool = False,
) -> Engine:
    endpoint = Endpoint(role, address, revision, ready=ready, terminating=terminating)
    return Engine(endpoint, EngineInfo(guard, "boot"), in_flight=load)


def prefill(address: str, *, revision: str = "r1", load: int = 0, guard: bool = True) -> Engine:
    return engine(address, Role.PREFILL, revision=revision, load=load, guard=guard)


def test_the_holder_is_preferred_until_it_is_overloaded() -> None:
    other, busy, swamped = engine("a"), engine("b", load=8), engine("c", load=9)
    assert choose_decode([other, busy], holder=busy, paired={"r1"}) is busy
    assert choose_decode([other, swamped], holder=swamped, paired={"r1"}) is other


def test_a_holder_that_is_gone_or_unusable_is_not() -> None:
    other, leaving = engine("a"), engine("b", terminating=True)
    assert choose_decode([other, leaving], holder=leaving, paired={"r1"}) is other
    assert choose_decode([other], holder=engine("gone"), paired={"r1"}) is other
    assert choose_decode([leaving], holder=leaving, paired={"r1"}) is None
    assert choose_decode([engine("c", ready=False)], holder=None, paired=()) is None


def test_the_least_loaded_and_then_the_longest_unused() -> None:
    pool = Pool()
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


def test_prefill_is_of_the_decode_engine_s_revision() -> None:
    old, new = prefill("a", revision="r1"), prefill("b", revision="r2")
    assert choose_prefill([old, new], "r2", prefer="a", guarded=False) is new
    assert choose_prefill([old], "r2", prefer="a", guarded=False) is None


def test_prefill_that_knows_the_conversation_is_preferred() -> None:
    idle, known = prefill("a"), prefill("b", load=4)
    assert choose_prefill([idle, known], "r1", prefer="b", guarded=True) is known
    assert choose_prefill([idle, known], "r1", prefer="b", guarded=True, exclude=[known]) is idle
    assert choose_prefill([idle, known], "r1", prefer="", guarded=True) is idle


def test_a_handle_goes_to_an_active_guard_if_there_is_one() -> None:
    bare, guarded = prefill("a", guard=False), prefill("b", load=50)
    assert choose_prefill([bare, guarded], "r1", prefer="a", guarded=True) is guarded
    assert choose_prefill([bare, guarded], "r1", prefer="a", guarded=False) is bare
    assert choose_prefill([bare], "r1", prefer="", guarded=True) is bare
