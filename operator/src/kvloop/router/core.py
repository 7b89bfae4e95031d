"""What every turn shares."""

import asyncio
import itertools
import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from kvloop.api.contract import RouterConfig
from kvloop.router.outcome import Outcome
from kvloop.router.pool import Pool
from kvloop.router.store import Store
from kvloop.router.upstream import Upstream

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Incoming:
    """A client's request, complete."""

    method: str
    path: str
    """With the query."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    arrived: float
    """On the monotonic clock, in seconds."""


class Reply(Protocol):
    """The client's end of a turn."""

    async def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """A whole answer."""

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of an answer whose body is written in pieces."""

    async def write(self, data: bytes) -> None:
        """A piece of the body; returns when there is room for more."""

    async def end(self) -> None:
        """The body is complete."""


@dataclass(slots=True)
class Core:
    """The router's state, without its sockets."""

    config: RouterConfig
    """Replaced as a whole on reload; a turn reads it once."""
    pool: Pool
    store: Store
    upstream: Upstream
    record: Callable[[Outcome], None]
    """Counts, measures and logs a turn that has ended."""
    clock: Callable[[], float]
    """Monotonic, in seconds."""
    ready: bool = False
    """Whether new clients are welcome: the engines are known, and the router is not on its way out."""
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    """Legs that run on although their client has left."""
    _boot: str = field(default_factory=lambda: secrets.token_hex(8))
    _serial: "itertools.count[int]" = field(default_factory=itertools.count)

    def new_id(self) -> str:
        """An id for one leg; engines build theirs from it, so it never repeats and tells nothing."""
        return f"{self._boot}{next(self._serial):08x}"

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task
