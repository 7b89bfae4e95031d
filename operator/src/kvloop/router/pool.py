"""The engines: who is there, how each is doing, and how much each has to do."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvloop.api.labels import Role


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

    guard_active: bool = False
    boot_id: str = ""
    capacity_tokens: int = 0
    """Tokens that its KV cache holds; 0 where unknown."""


@dataclass(eq=False, slots=True)
class Engine:
    """One engine and what the router knows of it."""

    endpoint: Endpoint
    info: EngineInfo = field(default_factory=EngineInfo)
    healthy: bool = True
    """False once it could not be reached, until a probe succeeds."""
    in_flight: int = 0
    """Legs of this router that run on it."""
    last_used: int = 0
    """Serial number of the newest leg; the smaller, the longer ago."""

    @property
    def address(self) -> str:
        return self.endpoint.address

    @property
    def host(self) -> bytes:
        return self.endpoint.address.rpartition(":")[0].strip("[]").encode()

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

    def __init__(self) -> None:
        self._engines: dict[tuple[Role, str], Engine] = {}
        self._serial = 0
        self._legs = 0
        self._no_legs = asyncio.Event()
        self._no_legs.set()

    def update(self, endpoints: Iterable[Endpoint]) -> list[Engine]:
        """Take over what a source says is there now; returns the engines that are new."""
        known, self._engines, new = self._engines, {}, []
        for endpoint in endpoints:
            name = (endpoint.role, endpoint.address)
            engine = known.get(name)
            if engine is None or engine.endpoint.uid != endpoint.uid:
                engine = Engine(endpoint)
                new.append(engine)
            engine.endpoint = endpoint
            self._engines[name] = engine
        return new

    def all(self) -> list[Engine]:
        return list(self._engines.values())

    def of(self, role: Role) -> list[Engine]:
        return [engine for engine in self._engines.values() if engine.role is role]

    def get(self, role: Role, address: str) -> Engine | None:
        return self._engines.get((role, address))

    def begin(self, engine: Engine) -> None:
        """A leg starts on the engine; `end` must follow."""
        self._serial += 1
        engine.last_used = self._serial
        engine.in_flight += 1
        self._legs += 1
        self._no_legs.clear()

    def end(self, engine: Engine) -> None:
        """A leg has ended."""
        engine.in_flight -= 1
        self._legs -= 1
        if not self._legs:
            self._no_legs.set()

    async def no_legs(self) -> None:
        """Wait until no leg runs."""
        await self._no_legs.wait()

    def unreachable(self, engine: Engine) -> None:
        """No connection: no new work, and nothing known of its guard, until a probe succeeds."""
        engine.healthy = False
        engine.info = EngineInfo()
