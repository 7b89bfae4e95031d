"""Circuit breakers of engines and pairs."""

from dataclasses import dataclass

from kvloop.api.contract import CircuitBreaker
from kvloop.api.labels import Role
from kvloop.router.breaker import Breaker
from kvloop.router.pool import Endpoint, Engine, Pool

SETTINGS = CircuitBreaker(failures=3, open_seconds=10)


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_opens_after_failures_in_a_row() -> None:
    breaker = Breaker()
    for _ in range(2):
        breaker.failed(100, SETTINGS)
    breaker.succeeded()
    for _ in range(2):
        breaker.failed(100, SETTINGS)
    assert breaker.allows(100)
    breaker.failed(100, SETTINGS)
    assert not breaker.allows(109.9)


def test_one_turn_tries_again_and_decides() -> None:
    breaker = Breaker()
    for _ in range(3):
        breaker.failed(100, SETTINGS)
    assert breaker.allows(110)
    breaker.claim(110, SETTINGS)
    assert not breaker.allows(111)
    breaker.failed(112, SETTINGS)
    assert not breaker.allows(121.9)
    breaker.claim(122, SETTINGS)
    breaker.succeeded()
    assert breaker.allows(122)


def pool(*addresses: str) -> tuple[Pool, list[Engine], Clock]:
    clock = Clock()
    made = Pool(clock, SETTINGS)
    return made, made.update([Endpoint(Role.DECODE, address, "r") for address in addresses]), clock


def test_a_failing_engine_is_left_alone_for_a_while() -> None:
    made, (bad, good), clock = pool("bad", "good")
    for _ in range(3):
        made.failed(bad)
    assert made.usable(Role.DECODE) == [good]
    clock.now += 10
    assert made.usable(Role.DECODE) == [bad, good]
    made.begin(bad)
    assert made.usable(Role.DECODE) == [good]
    made.succeeded(bad)
    assert made.usable(Role.DECODE) == [bad, good]


def test_with_no_other_engine_it_is_used_all_the_same() -> None:
    made, (only,), _ = pool("only")
    for _ in range(5):
        made.failed(only)
    assert made.usable(Role.DECODE) == [only]


def test_a_pair_is_broken_on_its_own() -> None:
    made, (d,), clock = pool("d")
    p, other = (Engine(Endpoint(Role.PREFILL, address, "r")) for address in ("p", "other"))
    for _ in range(3):
        made.pair_failed(p, d.address)
    assert not made.pair_allows(p, d.address)
    assert made.pair_allows(other, d.address)
    clock.now += 10
    assert made.pair_allows(p, d.address)
    made.pair_succeeded(p, d.address)
    made.pair_failed(p, d.address)
    assert made.pair_allows(p, d.address)


def test_pairs_are_forgotten_with_their_engines() -> None:
    made, (d,), _ = pool("d")
    p = Engine(Endpoint(Role.PREFILL, "p", "r"))
    for _ in range(3):
        made.pair_failed(p, d.address)
    made.update([])
    assert made.pair_allows(p, d.address)
