"""The engines: who is there, how each is doing, and how much each has to do."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvloop.api.contract import CircuitBreaker
from kvloop.api.labels import Role
from kvloop.router.breaker import Breaker


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An engine as its source (a list, or EndpointSlices) tells it."""

    role: Role
    address: str
    """host:port, IPv6 in brackets."""
    revision: str
    uid: str = ""
    """Tells a pod from its successor at the same address; empty where the source cannot."""
    ready: bool = True
    terminating: bool = False


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine's /metrics say of it."""

    probed: bool = False
    """Whether the metrics have been read."""
    guard_active: bool = False
    boot_id: str = ""
    """Changes at every start; empty where the guard's plugin is not loaded."""
    capacity_tokens: int = 0
    """Tokens that its KV cache holds; 0 where unknown."""


UNKNOWN = EngineInfo()


@dataclass(eq=False, slots=True)
class Engine:
    """One engine and what the router knows of it."""

    endpoint: Endpoint
    info: EngineInfo = UNKNOWN
    healthy: bool = True
    """False once it could not be reached, until a probe succeeds."""
    missed_probes: int = 0
    """In a row."""
    breaker: Breaker = field(default_factory=Breaker)
    in_flight: int = 0
    """Turns of this router that are bound to it."""
    last_used: int = 0
    """Serial number of its newest turn; the smaller, the longer ago."""

    @property
    def address(self) -> str:
        return self.endpoint.address

    @property
    def secret(self) -> bytes:
        """What no client may see of its address: the host, or all of it where the host may be any word."""
        host = self.endpoint.address.rpartition(":")[0].strip("[]")
        return (host if "." in host or ":" in host else self.endpoint.address).encode()

    @property
    def role(self) -> Role:
        return self.endpoint.role

    @property
    def revision(self) -> str:
        return self.endpoint.revision

    @property
    def usable(self) -> bool:
        """Whether it may get new work."""
        return self.healthy and self.endpoint.ready and not self.endpoint.terminating


class Pool:
    """All engines, by role and address."""

    def __init__(self, clock: Callable[[], float], settings: CircuitBreaker) -> None:
        """`clock` is monotonic, in seconds. `settings` may be replaced at any time."""
        self.settings = settings
        self.on_suspect: Callable[[Engine], None] = lambda _: None
        """Called with an engine that behaved as if it had restarted: it should be probed at once."""
        self.on_room: Callable[[], None] = lambda: None
        """Called when an engine has room for another turn, or is there anew."""
        self._clock = clock
        self._engines: dict[tuple[Role, str], Engine] = {}
        self._pairs: dict[tuple[str, str], Breaker] = {}
        self._serial = 0
        self._bound = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def update(self, endpoints: Iterable[Endpoint]) -> list[Engine]:
        """Take over what a source says is there now; returns the engines to be probed: new, or ready from now on."""
        known, self._engines, fresh = self._engines, {}, []
        for endpoint in endpoints:
            name = (endpoint.role, endpoint.address)
            engine = known.get(name)
            if engine is None or engine.endpoint.uid != endpoint.uid:
                engine = Engine(endpoint)
                fresh.append(engine)
            elif endpoint.ready and not engine.endpoint.ready:
                engine.healthy = True  # probes before it listened have failed; who waits for the next one, waits long
                fresh.append(engine)
            engine.endpoint = endpoint
            self._engines[name] = engine
        addresses = {address for _, address in self._engines}
        self._pairs = {pair: breaker for pair, breaker in self._pairs.items() if addresses.issuperset(pair)}
        self.on_room()
        return fresh

    def all(self) -> list[Engine]:
        return list(self._engines.values())

    def get(self, role: Role, address: str) -> Engine | None:
        return self._engines.get((role, address))

    def usable(self, role: Role) -> list[Engine]:
        """Engines that may get new work. Those with open breakers are among them only if there are no others."""
        usable = [engine for engine in self._engines.values() if engine.role is role and engine.usable]
        now = self._clock()
        return [engine for engine in usable if engine.breaker.allows(now)] or usable

    def revisions(self, role: Role) -> set[str]:
        """Of the usable engines."""
        return {engine.revision for engine in self.usable(role)}

    # Turns.

    def begin(self, engine: Engine) -> None:
        """Bind a turn to an engine; `end` must follow."""
        self._serial += 1
        engine.last_used = self._serial
        engine.in_flight += 1
        engine.breaker.claim(self._clock(), self.settings)
        self._bound += 1
        self._idle.clear()

    def end(self, engine: Engine) -> None:
        """The turn is done with the engine."""
        engine.in_flight -= 1
        self._bound -= 1
        if not self._bound:
            self._idle.set()
        self.on_room()

    async def idle(self) -> None:
        """Wait until no turn is bound to any engine."""
        await self._idle.wait()

    # Outcomes.

    def succeeded(self, engine: Engine) -> None:
        """A leg ended well."""
        if engine.breaker.failures:
            engine.breaker.succeeded()

    def failed(self, engine: Engine) -> None:
        """A leg failed, and the engine is to blame."""
        engine.breaker.failed(self._clock(), self.settings)

    def suspect(self, engine: Engine, *, reachable: bool) -> None:
        """It cut or refused a connection: it may have restarted, and its guard is unknown until it is probed."""
        engine.info = UNKNOWN
        engine.healthy = engine.healthy and reachable
        self.on_suspect(engine)

    def suspect_address(self, address: str) -> None:
        """As `suspect`, for whoever is at an address."""
        for engine in self._engines.values():
            if engine.address == address:
                self.suspect(engine, reachable=True)

    # Pairs: reads of decode's KV by prefill.

    def pair_allows(self, prefill: Engine, decode: str) -> bool:
        """Whether prefill may read from the decode engine at that address."""
        breaker = self._pairs.get((prefill.address, decode))
        return breaker is None or breaker.allows(self._clock())

    def pair_failed(self, prefill: Engine, decode: str) -> None:
        self._pairs.setdefault((prefill.address, decode), Breaker()).failed(self._clock(), self.settings)

    def pair_succeeded(self, prefill: Engine, decode: str) -> None:
        self._pairs.pop((prefill.address, decode), None)
