"""What every turn shares."""

import itertools
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvloop.api.contract import RouterConfig
from kvloop.router.admission import Admission
from kvloop.router.apikeys import ApiKeys
from kvloop.router.conversations import Conversations
from kvloop.router.leases import Leases
from kvloop.router.outcome import Outcome
from kvloop.router.pool import Pool
from kvloop.router.store import Store
from kvloop.router.wire.client import Upstream

if TYPE_CHECKING:
    from kvloop.router.tracing.spans import Tracing


@dataclass(frozen=True, slots=True)
class Incoming:
    """A client's request, complete."""

    method: str
    path: str
    """As it was sent, with the query."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    arrived: float
    """On the monotonic clock, in seconds."""


@dataclass(slots=True)
class Core:
    """The router's state, without its sockets."""

    config: RouterConfig
    """Replaced as a whole on reload; a turn reads it once."""
    pool: Pool
    admission: Admission
    store: Store
    upstream: Upstream
    api_keys: ApiKeys | None
    """None where every client is served."""
    record: Callable[[Outcome], None]
    """Counts, measures and logs a turn that has ended."""
    clock: Callable[[], float]
    """Monotonic, in seconds."""
    conversations: Conversations
    tracing: "Tracing | None" = None
    leases: Leases = field(init=False)
    ready: bool = False
    """Whether new clients are welcome: the engines are known, and the router is not on its way out."""
    draining: bool = False
    alive: bool = True
    """False once a part of the router has ended that should not have."""
    _boot: str = field(default_factory=lambda: secrets.token_hex(8))
    _serial: "itertools.count[int]" = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.leases = Leases(self)

    def new_id(self) -> str:
        """An id for one leg; engines build theirs from it, so it never repeats and tells nothing."""
        return f"{self._boot}{next(self._serial):08x}"
