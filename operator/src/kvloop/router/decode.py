"""The decode leg, up to the head of its answer. Tried again elsewhere only while the client has seen nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kvloop.api.labels import Role
from kvloop.router import legs, policy
from kvloop.router.errors import RefusalError
from kvloop.router.exchange import Exchange
from kvloop.router.pool import Engine
from kvloop.router.upstream import Answer, LegError

MAX_ENGINES = 3


@asynccontextmanager
async def run(exchange: Exchange, engine: Engine, params: bytes | None) -> AsyncIterator[Answer]:
    """The decode engine's answer; leaving the block early aborts the generation. Raises `RefusalError`."""
    pool = exchange.core.pool
    tried: list[Engine] = []
    while True:
        tried.append(engine)
        exchange.outcome.decode = engine.address
        pool.begin(engine)
        try:
            answer, problem = await _open(exchange, engine, params)
            failed = answer is None or answer.status >= 500
            other = _next(exchange, engine, tried) if failed else None
            if answer is not None:
                try:
                    if other is None:
                        yield answer
                        return
                finally:
                    answer.close()
        finally:
            pool.end(engine)
        if other is None:
            raise _refusal(problem)
        exchange.outcome.retries += 1
        if problem is None or problem.sent or other.revision != engine.revision:
            # Prefill's blocks may have been read, and then freed: its parameters must not be used again.
            params = _alone(exchange, params)
        engine = other


async def _open(exchange: Exchange, engine: Engine, params: bytes | None) -> tuple[Answer | None, LegError | None]:
    seconds = exchange.config.deadlines.first_byte_seconds
    body = legs.decode(exchange.request.json, params)
    try:
        async with asyncio.timeout(seconds):
            return await exchange.send(engine, body, idle=max(seconds, exchange.config.deadlines.idle_seconds)), None
    except TimeoutError:
        return None, LegError("deadline", sent=True)
    except LegError as error:
        return None, error


def _next(exchange: Exchange, engine: Engine, tried: list[Engine]) -> Engine | None:
    """Another engine for the leg, of the same revision if there is one."""
    if len(tried) >= MAX_ENGINES:
        return None
    engines = exchange.core.pool.of(Role.DECODE)
    return policy.choose_decode(engines, holder=None, paired={engine.revision}, exclude=tried)


def _alone(exchange: Exchange, params: bytes | None) -> bytes | None:
    if params is None:
        return None
    exchange.outcome.decode_only = "decode_retried"
    return legs.LOCAL if exchange.may_reuse else None


def _refusal(problem: LegError | None) -> RefusalError:
    if problem is not None and problem.reason == "deadline":
        return RefusalError(504, "The decode engine gave no answer in time.")
    return RefusalError(502, "The decode engine could not be reached.")
