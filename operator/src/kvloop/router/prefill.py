"""The prefill leg: compute the prompt's KV on P, with the KV that decode holds where that is offered.

A handle is sent once. What fails with it is tried without it at once; then on another engine; then decode works alone.
"""

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeGuard, get_args

import orjson

from kvloop.api.contract import Miss, WhenNoPrefill
from kvloop.api.labels import Role
from kvloop.engine.guard import Reason
from kvloop.router import legs, policy, strip
from kvloop.router.errors import RETRY_AFTER_SECONDS, RefusalError
from kvloop.router.exchange import Exchange
from kvloop.router.pool import Engine
from kvloop.router.store import Entry
from kvloop.router.wire.client import STALE, LegError

MAX_ENGINES = 2
"""A request that two engines cannot take would fail on a third."""
MAX_LEGS = 4
NO_PREFILL = "no_prefill"
UNGUARDED = "unguarded"
_REASONS: Final = frozenset(get_args(Reason))


@dataclass(frozen=True, slots=True)
class Result:
    """What one prefill leg came to: parameters for decode, or why there are none."""

    params: dict[str, Any] | None = None
    prompt_tokens: int = 0
    seconds: float = 0.0
    problem: str = ""
    retry: bool = True
    """Whether another leg may do better."""


async def run(exchange: Exchange, entry: Entry | None) -> bytes | None:
    """Prefill's parameters for the decode leg; None where decode works alone."""
    request, outcome = exchange.request, exchange.outcome
    if request.unfit is not None and request.unfit.decode_only:
        return None
    result = await _try_engines(exchange, entry)
    outcome.prefill_seconds = exchange.elapsed
    outcome.prompt_tokens = result.prompt_tokens
    if result.params is not None:
        outcome.leg_seconds = result.seconds
        outcome.computed_tokens = max(0, result.prompt_tokens - _cached(result.params, outcome.reused_tokens))
        return orjson.dumps(result.params)
    if result.retry and exchange.config.when_no_prefill is WhenNoPrefill.FAIL:
        raise RefusalError(
            503, "No prefill engine could take the request; try again soon.", retry_after=RETRY_AFTER_SECONDS
        )
    outcome.decode_only = result.problem
    return None  # any parameters would have vLLM keep the KV for good, without the guard: see guard.md


async def _try_engines(exchange: Exchange, entry: Entry | None) -> Result:
    if entry is not None and entry.revision != exchange.decode.revision:
        entry, exchange.outcome.miss = None, Miss.REVISION
    prefer = entry.prefill if entry is not None else ""
    tried: list[Engine] = []
    result = Result(problem=NO_PREFILL)
    for _ in range(MAX_LEGS):
        engine, offered = _choose(exchange, entry, prefer, tried)
        if engine is None or len(tried) >= MAX_ENGINES:
            break
        entry = None  # never twice
        result = await _leg(exchange, engine, offered)
        if result.params is not None or not result.retry:
            return result
        exchange.outcome.retries += 1
        if result.problem in ("deadline", UNGUARDED) or (offered is None and result.problem != STALE):
            tried.append(engine)
        prefer = engine.address
    return result


def _choose(
    exchange: Exchange, entry: Entry | None, prefer: str, tried: list[Engine]
) -> tuple[Engine | None, Entry | None]:
    """The engine of the next leg, and the handle for it: only for an active guard that may read from its holder."""
    pool = exchange.core.pool
    revision = exchange.decode.revision
    usable = [e for e in pool.usable(Role.PREFILL) if e.revision == revision and e not in tried]
    if entry is not None:
        guarded = [e for e in usable if e.info.guard_active]
        trusted = [e for e in guarded if pool.pair_allows(e, entry.decode)]
        if trusted:
            return policy.choose_prefill(trusted, prefer=prefer), entry
        exchange.outcome.miss = Miss.CIRCUIT_OPEN if guarded else Miss.GUARD_INACTIVE
    return policy.choose_prefill(usable, prefer=prefer), None


async def _leg(exchange: Exchange, engine: Engine, offered: Entry | None) -> Result:
    """One leg on one engine. Runs to its end even if the client leaves: an abort during a pull crashes engines."""
    outcome, pool = exchange.outcome, exchange.core.pool
    outcome.prefill = engine.address
    if offered is None:
        result = await _send(exchange, engine, legs.FRESH)
        if result.params is not None:
            result.params.pop("guard", None)
        return result
    exchange.taken = None
    result = await _send(exchange, engine, offered.handle)
    if not result.retry and result.problem.startswith("status_"):
        exchange.taken = offered  # rejected before the engine looked at it
    result = _judge(exchange, engine, result)
    if result.params is not None:
        pool.pair_succeeded(engine, offered.decode)
    elif result.retry:
        pool.pair_failed(engine, offered.decode)
        outcome.failed_transfer, outcome.miss = True, Miss.TRANSFER_FAILED
    return result


async def _send(exchange: Exchange, engine: Engine, params: bytes) -> Result:
    pool = exchange.core.pool
    body = legs.prefill(exchange.dialect, exchange.request.body, params)
    end, begin = partial(pool.end, engine), exchange.core.clock()
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
    if result.params is not None:
        result = replace(result, seconds=exchange.core.clock() - begin)
        pool.succeeded(engine)
    elif result.retry and connection.status >= 500:
        pool.failed(engine)
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
    return Result(params, _prompt_tokens(body.get("usage")))


def _cached(params: dict[str, Any], reused: int) -> int:
    """Prompt tokens that prefill did not compute: as it says, from vLLM 0.32 on, or else what it read from decode."""
    told = params.get("remote_prefill_cached_tokens")
    return told if type(told) is int else reused


def _prompt_tokens(usage: Any) -> int:
    """From any dialect's usage; Anthropic's counts tokens from the cache apart."""
    if not isinstance(usage, dict):
        return 0
    counts = [usage.get(name) for name in ("prompt_tokens", "input_tokens", "cache_read_input_tokens")]
    return sum(count for count in counts if _is_count(count))


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _judge(exchange: Exchange, engine: Engine, result: Result) -> Result:
    """Account for an offered handle. Without the guard's report the answer was computed unchecked: not to be used."""
    if result.params is None:
        return result
    outcome = exchange.outcome
    report = result.params.pop("guard", None)
    offered, verified = (report.get("offered"), report.get("verified")) if isinstance(report, dict) else (None, None)
    if not _is_count(offered) or not _is_count(verified):
        exchange.core.pool.suspect(engine, reachable=True)
        return Result(problem=UNGUARDED)
    outcome.offered_tokens, outcome.verified_tokens = offered, verified
    if verified and verified >= exchange.config.transfer.kv_recompute_threshold_tokens:
        outcome.reused_tokens = min(verified, result.prompt_tokens)
    else:
        reason = str(report.get("reason"))
        outcome.miss = Miss.BELOW_THRESHOLD if verified else reason if reason in _REASONS else Miss.NOT_VERIFIED
    return result
