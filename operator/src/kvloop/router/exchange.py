"""The state of one turn, handed from step to step."""

from typing import TYPE_CHECKING

from kvloop.router import headers
from kvloop.router.conversations import Talk
from kvloop.router.core import Core, Incoming
from kvloop.router.dialects import Dialect
from kvloop.router.outcome import Outcome
from kvloop.router.pool import Engine
from kvloop.router.request import TurnRequest
from kvloop.router.store import Entry
from kvloop.router.wire.client import STALE, Connection, LegError

if TYPE_CHECKING:
    from kvloop.router.tracing.spans import TurnTrace


class Exchange:
    """One turn on its way."""

    request: TurnRequest
    """Set once the client's request was read."""
    decode: Engine
    """Set once the turn is bound to a decode engine."""
    talk: Talk | None = None
    """The conversation; None where the turn belongs to none."""
    key: bytes | None = None
    """By which it was found; None for its first turn."""
    taken: Entry | None = None
    """A handle that was taken from the store and has not been offered to prefill: its lease is still to be ended."""

    def __init__(self, core: Core, incoming: Incoming, dialect: Dialect) -> None:
        self.core = core
        self.config = core.config
        self.incoming = incoming
        self.dialect = dialect
        self.outcome = Outcome(dialect=dialect.name)
        self.trace: TurnTrace | None = None
        if core.tracing is not None:
            self.trace = core.tracing.begin(dialect.path, incoming.headers)

    @property
    def elapsed(self) -> float:
        """Seconds since the request arrived."""
        return self.core.clock() - self.incoming.arrived

    def bind(self, engine: Engine) -> None:
        """Move the turn to another decode engine."""
        self.core.pool.end(self.decode)
        self.core.pool.begin(engine)
        self.decode = engine

    async def send(self, engine: Engine, body: bytes, seconds: float) -> Connection:
        """Send a leg to an engine, whose answer may pause for at most `seconds`; raises `LegError`."""
        try:
            connection = await self.core.upstream.connect(engine.address, self.config.deadlines.connect_seconds)
        except LegError as error:
            self.failed(engine, error)
            raise
        sent = headers.to_engine(
            self.incoming.headers, self.core.new_id(), credentials=self.config.api_keys_folder is None
        )
        if self.trace is not None:
            sent.update(self.trace.leg(engine.role.value, engine.address))
        connection.send("POST", self.dialect.path, sent, body, seconds)
        return connection

    def end(self) -> None:
        """Record what became of the turn."""
        self.outcome.total_seconds = self.elapsed
        if self.trace is not None:
            self.trace.end(self.outcome)
        self.core.record(self.outcome)

    def failed(self, engine: Engine, error: LegError) -> None:
        """An engine gave no answer."""
        pool = self.core.pool
        if error.reason != STALE:
            pool.failed(engine)
        if error.reason != "deadline":
            pool.suspect(engine, reachable=error.sent)
