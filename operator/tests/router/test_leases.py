"""Which leases are due to be ended."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from kvloop.api.contract import CircuitBreaker, RouterConfig, parse
from kvloop.api.labels import Role
from kvloop.router.leases import Leases
from kvloop.router.pool import Endpoint, EngineInfo, Pool
from kvloop.router.store import Entry

if TYPE_CHECKING:
    from kvloop.router.core import Core


@dataclass
class Shared:
    """The part of the core that deciding needs."""

    config: RouterConfig
    pool: Pool
    now: float = 1000.0

    def clock(self) -> float:
        return self.now


D = Endpoint(Role.DECODE, "d:1", "r")


def make(**settings: Any) -> tuple[Leases, Shared]:
    static = {"decode": [{"url": "http://d:1"}]}
    config = parse({"endpoints": {"static": static}, "transfer": {"decoderKVBlocksTTLSeconds": 100}, **settings})
    shared = Shared(config, Pool(lambda: 0.0, CircuitBreaker()))
    (engine,) = shared.pool.update([D])
    engine.info = EngineInfo(guard_active=True, boot_id="boot", capacity_tokens=1000)
    return Leases(cast("Core", shared)), shared


def entry(tokens: int = 100, decode: str = "d:1") -> Entry:
    return Entry(b"{}", decode, "boot", "r", "", tokens)


def test_old_ones_are_due() -> None:
    leases, shared = make(leaseSeconds=30)
    leases.keep(b"1", entry())
    shared.now += 20
    leases.keep(b"2", entry())
    shared.now += 10
    assert leases.due() == [b"1"]
    shared.now += 20
    assert leases.due() == [b"1", b"2"]


def test_without_a_setting_they_last_as_long_as_decode_s() -> None:
    leases, shared = make()
    leases.keep(b"1", entry())
    shared.now += 89
    assert leases.due() == []
    shared.now += 1
    assert leases.due() == [b"1"]


def test_the_oldest_are_due_while_they_hold_too_much() -> None:
    leases, shared = make(maxPinnedPercent=50)
    for i in range(6):
        shared.now += 1
        leases.keep(b"%d" % i, entry(150))
    assert leases.pinned("d:1") == 900
    assert leases.due() == [b"0", b"1", b"2"]
    for key in leases.due():
        leases.forget(key)
    assert leases.pinned("d:1") == 450
    assert leases.due() == []


def test_those_that_waited_longer_than_most_do_are_due_and_then_the_newest() -> None:
    leases, shared = make(maxPinnedPercent=50)
    leases.usual_gap = lambda: 4.5
    for i in range(6):
        leases.keep(b"%d" % i, entry(150))
        shared.now += 1
    assert leases.due() == [b"0", b"1", b"5"]
    leases.keep(b"elsewhere", entry(decode="other:1"))
    assert leases.due() == [b"0", b"1", b"5"], "of that engine only"


def test_conversations_that_take_turns_are_not_all_lost() -> None:
    """To end the oldest would end each just before it is wanted."""
    leases, shared = make(maxPinnedPercent=50)
    leases.usual_gap = lambda: 10.0
    hits = 0
    for turn in range(100):
        key = b"%d" % (turn % 10)
        hits += leases.forget(key) is not None
        leases.keep(key, entry(100))
        for due in leases.due():
            leases.forget(due)
        shared.now += 1
    assert hits >= 40, "decode holds half of the conversations"


def test_of_an_engine_that_terminates_all_are_due() -> None:
    leases, shared = make()
    leases.keep(b"1", entry())
    leases.keep(b"2", entry(decode="other:1"))
    shared.pool.update([replace(D, terminating=True)])
    assert leases.due() == [b"1"]


def test_of_an_unknown_size_none_are() -> None:
    leases, shared = make(maxPinnedPercent=1)
    shared.pool.all()[0].info = EngineInfo(guard_active=True, boot_id="boot")
    leases.keep(b"1", entry(10**9))
    assert leases.due() == []


def test_what_was_taken_holds_nothing() -> None:
    leases, _ = make()
    leases.keep(b"1", entry(100))
    leases.keep(b"1", entry(50))
    assert leases.pinned("d:1") == 50
    leases.forget(b"1")
    leases.forget(b"1")
    assert leases.pinned("d:1") == 0
    assert leases.due() == []
