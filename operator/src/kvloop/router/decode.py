"""The decode leg, up to the head of its answer. Tried again elsewhere only while the client has seen nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kvloop.api.labels import Role
from kvloop.router import legs, policy
from kvloop.router.errors import RefusalError
from kvloop.router.exchange import Exchange
from kvloop.router.pool import Engine
from kvloop.router.wire.client import STALE, Connection, LegError

MAX_LEGS = 3


@asynccontextmanager
async def run(exchange: Exchange, params: bytes | None) -> AsyncIterator[Connection]:
    """The decode engine's answer, its head being there; leaving the block early aborts the generation.

    Raises `RefusalError` where no engine gives one. The exchange stays bound to the engine of the last try.
    """
    tried: list[Engine] = []
    while True:
        engine = exchange.decode
        tried.append(engine)
        exchange.outcome.decode = engine.address
        answer, problem = await _open(exchange, engine, params)
        failed = answer is None or answer.status >= 500
        other = _next(exchange, tried, problem, split=params is not None) if failed else None
        if answer is not None:
            try:
                if other is None:
                    yield answer
                    return
            finally:
                answer.release()
        if other is None:
            raise _refusal(problem)
        exchange.outcome.retries += 1
        if params is not None and (problem is None or problem.sent or other.revision != engine.revision):
            # Prefill's blocks may have been read, and then freed: its parameters must not be used again.
            params, exchange.outcome.decode_only = None, "decode_retried"
        exchange.bind(other)


async def _open(exchange: Exchange, engine: Engine, params: bytes | None) -> tuple[Connection | None, LegError | None]:
    deadlines = exchange.config.deadlines
    body = legs.decode(exchange.request.json, params)
    connection = None
    try:
        connection = await exchange.send(engine, body, deadlines.first_byte_seconds)
        await connection.head()
    except LegError as error:
        exchange.failed(engine, error)
        if connection is not None:
            connection.release()
        return None, error
    except asyncio.CancelledError:
        if connection is not None:
            connection.release()
        raise
    if connection.status < 500:
        exchange.core.pool.succeeded(engine)
    else:
        exchange.core.pool.failed(engine)
    return connection, None


def _next(exchange: Exchange, tried: list[Engine], problem: LegError | None, *, split: bool) -> Engine | None:
    """Another engine for the leg, of the same revision if there is one; `split`: it was to read prefill's KV."""
    if len(tried) >= MAX_LEGS:
        return None
    last = tried[-1]
    if problem is not None and problem.reason == STALE and last.usable and tried.count(last) == 1:
        return last  # nothing is wrong with it
    usable = exchange.core.pool.usable(Role.DECODE)
    engines = [engine for engine in usable if engine not in tried]
    if not engines and problem is not None and problem.reason != "deadline":
        engines = [engine for engine in usable if engine is not last]  # one that died may be back
    if not engines and problem is None and split and last.usable:
        return last  # what failed may be the read
    return policy.choose_decode(engines, holder=None, paired={last.revision})


def _refusal(problem: LegError | None) -> RefusalError:
    if problem is not None and problem.reason == "deadline":
        return RefusalError(504, "The decode engine gave no answer in time.")
    return RefusalError(502, "The decode engine could not be reached.")
