"""The prefill leg: compute the prompt's KV on P, with the KV that decode holds where that is offered.

A handle is sent once. What fails with it is tried without it at once; then on another engine; then decode works alone.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from kvloop.api.contract import WhenNoPrefill
from kvloop.api.labels import Role
from kvloop.router import legs, policy, strip
from kvloop.router.errors import RETRY_AFTER_SECONDS, RefusalError
from kvloop.router.exchange import Exchange
from kvloop.router.pool import Engine, EngineInfo
from kvloop.router.store import Entry
from kvloop.router.wire.client import LegError

MAX_ENGINES = 2
"""A request that two engines cannot take would fail on a third."""
NO_PREFILL = "no_prefill"


@dataclass(frozen=True, slots=True)
class Result:
    """What one prefill leg came to: parameters for decode, or why there are none."""

    params: dict[str, Any] | None = None
    prompt_tokens: int = 0
    problem: str = ""
    retry: bool = True
    """Whether another leg may do better."""


async def run(exchange: Exchange, revision: str, entry: Entry | None) -> bytes | None:
    """Parameters for the decode leg: prefill's, or those of a decode engine that works alone."""
    request, outcome = exchange.request, exchange.outcome
    if request.unfit is not None and request.unfit.decode_only:
        return None
    result = await _try_engines(exchange, revision, entry)
    outcome.prefill_seconds = exchange.elapsed
    outcome.prompt_tokens = result.prompt_tokens
    if result.params is not None:
        return orjson.dumps(result.params)
    if result.retry and exchange.config.when_no_prefill is WhenNoPrefill.FAIL:
        raise RefusalError(
            503, "No prefill engine could take the request; try again soon.", retry_after=RETRY_AFTER_SECONDS
        )
    outcome.decode_only = result.problem
    return legs.LOCAL if exchange.may_reuse else None


async def _try_engines(exchange: Exchange, revision: str, entry: Entry | None) -> Result:
    handle, prefer = (entry.handle, entry.prefill) if entry is not None else (None, "")
    if entry is not None and entry.revision != revision:
        handle, exchange.outcome.miss = None, "revision"
    tried: list[Engine] = []
    result = Result(problem=NO_PREFILL)
    while len(tried) < MAX_ENGINES:
        engines = exchange.core.pool.of(Role.PREFILL)
        engine = policy.choose_prefill(engines, revision, prefer=prefer, guarded=handle is not None, exclude=tried)
        if engine is None:
            break
        if handle is not None and not engine.info.guard_active:
            handle, exchange.outcome.miss = None, "guard_inactive"
        offered, handle = handle, None  # never twice
        result = await _leg(exchange, engine, offered)
        if result.params is not None or not result.retry:
            return result
        exchange.outcome.retries += 1
        if offered is None or result.problem in ("deadline", "unguarded"):
            tried.append(engine)
        else:
            prefer = engine.address
    return result


async def _leg(exchange: Exchange, engine: Engine, handle: bytes | None) -> Result:
    """One leg on one engine. Runs to its end even if the client leaves: an abort during a pull crashes engines."""
    outcome = exchange.outcome
    outcome.prefill = engine.address
    result = await _send(exchange, engine, handle or legs.FRESH)
    if handle is None:
        if result.params is not None:
            result.params.pop("guard", None)
        return result
    result = _judge(exchange, engine, result)
    if result.params is None and result.retry:
        outcome.failed_transfer, outcome.miss = True, "transfer_failed"
    return result


async def _send(exchange: Exchange, engine: Engine, params: bytes) -> Result:
    pool = exchange.core.pool
    body = legs.prefill(exchange.dialect, exchange.request.body, params)
    end = partial(pool.end, engine)
    pool.begin(engine)
    try:
        connection = await exchange.send(engine, body, exchange.config.deadlines.prefill_seconds)
    except LegError as error:
        end()
        return Result(problem=error.reason)
    except asyncio.CancelledError:
        end()
        raise
    try:
        result = _read(await connection.read(), connection.status)
    except asyncio.CancelledError:
        connection.abandon(end)
        raise
    except LegError as error:
        exchange.failed(engine, error)
        result = Result(problem=error.reason)
    connection.release()
    end()
    return result


def _read(raw: bytes, status: int) -> Result:
    """Understand an engine's whole answer."""
    if status != 200:
        # What the engine rejects, decode will reject too, in its own words; 408 and 429 speak of the engine.
        return Result(problem=f"status_{status}", retry=status >= 500 or status in (408, 429))
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return Result(problem="not_json")
    params = strip.answer(body, token_ids=True).handle
    if params is None or params.get("do_remote_prefill") is not True:
        return Result(problem="no_handle", retry=False)
    usage = body.get("usage")
    tokens = (usage.get("prompt_tokens") or usage.get("input_tokens")) if isinstance(usage, dict) else 0
    return Result(params, tokens if isinstance(tokens, int) else 0)


def _judge(exchange: Exchange, engine: Engine, result: Result) -> Result:
    """Account for an offered handle. Without the guard's report the answer was computed unchecked: not to be used."""
    if result.params is None:
        return result
    outcome = exchange.outcome
    report = result.params.pop("guard", None)
    offered, verified = (report.get("offered"), report.get("verified")) if isinstance(report, dict) else (None, None)
    if not isinstance(offered, int) or not isinstance(verified, int):
        engine.info = EngineInfo()
        return Result(problem="unguarded")
    outcome.offered_tokens, outcome.verified_tokens = offered, verified
    if verified and verified >= exchange.config.transfer.kv_recompute_threshold_tokens:
        outcome.reused_tokens = min(verified, result.prompt_tokens)
    else:
        outcome.miss = "below_threshold" if verified else str(report.get("reason") or "not_verified")
    return result
