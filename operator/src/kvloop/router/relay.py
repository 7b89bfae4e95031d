"""From the decode engine's answer to the client, and the handle in it into the store."""

import asyncio
from typing import Any

import orjson

from kvloop.api.labels import Role
from kvloop.router import errors, headers, strip
from kvloop.router.core import Reply
from kvloop.router.errors import RefusalError
from kvloop.router.exchange import Exchange
from kvloop.router.sse import EventTooLongError, Scanner
from kvloop.router.store import Entry
from kvloop.router.upstream import Answer, LegError

MARGIN_SECONDS = 10
"""A handle is forgotten this long before the lease ends: prefill declines its last 5 s, and may queue first."""


async def run(exchange: Exchange, answer: Answer, reply: Reply) -> None:
    """Pass the answer on and keep its handle."""
    exchange.outcome.status = answer.status
    if answer.is_stream:
        await _stream(exchange, answer, reply)
    else:
        await _whole(exchange, answer, reply)


async def _whole(exchange: Exchange, answer: Answer, reply: Reply) -> None:
    try:
        async with asyncio.timeout(exchange.config.deadlines.idle_seconds):
            raw = await answer.read()
    except (TimeoutError, LegError) as error:
        raise RefusalError(502, "The decode engine's answer ended too early.") from error
    if answer.status >= 500 or _names_an_engine(exchange, raw, answer.status):
        raise RefusalError(answer.status, "The decode engine could not serve the request.")
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = None
    handle, changed = strip.answer(body, token_ids=exchange.request.token_ids)
    if answer.status == 200:
        await _keep(exchange, handle)
    exchange.outcome.first_byte_seconds = exchange.elapsed
    await reply.send(answer.status, headers.to_client(answer.headers), orjson.dumps(body) if changed else raw)


def _names_an_engine(exchange: Exchange, raw: bytes, status: int) -> bool:
    """Whether an error tells an address; what a good answer says is the model's own."""
    return status != 200 and any(engine.host in raw for engine in exchange.core.pool.all())


async def _stream(exchange: Exchange, answer: Answer, reply: Reply) -> None:
    scanner = Scanner(token_ids=exchange.request.token_ids)
    await reply.start(answer.status, headers.to_client(answer.headers))
    kept = False
    try:
        async for piece in answer.pieces():
            data = scanner.feed(piece)
            if exchange.outcome.first_byte_seconds is None and data:
                exchange.outcome.first_byte_seconds = exchange.elapsed
            if scanner.handle is not None and not kept:
                kept = True
                await _keep(exchange, scanner.handle)  # before the client sees the end, and comes with the next turn
            if data:
                await reply.write(data)
    except (LegError, EventTooLongError):
        exchange.outcome.status = 502
        message = "The decode engine ended before its answer was complete."
        await reply.write(errors.event(message, exchange.dialect))
    else:
        if rest := scanner.finish():
            await reply.write(rest)
        if not kept:
            await _keep(exchange, scanner.handle)
    await reply.end()


async def _keep(exchange: Exchange, handle: dict[str, Any] | None) -> None:
    """Put the handle where the next turn will look for it, or a mark that this turn was there."""
    keys, outcome, core = exchange.request.keys, exchange.outcome, exchange.core
    if keys is None or keys.put is None or exchange.request.unfit is not None:
        return
    problem = _problem(exchange, handle)
    if handle is None or problem:
        await core.store.mark(keys.put, problem)
        return
    holder = core.pool.get(Role.DECODE, outcome.decode)
    entry = Entry(
        handle=orjson.dumps(handle),
        decode=outcome.decode,
        boot_id=holder.info.boot_id if holder is not None else "",
        revision=holder.revision if holder is not None else "",
        prefill=outcome.prefill,
        tokens=handle["remote_num_tokens"],
    )
    await core.store.put(keys.put, entry, exchange.config.transfer.decoder_kv_blocks_ttl_seconds - MARGIN_SECONDS)


def _problem(exchange: Exchange, handle: dict[str, Any] | None) -> str:
    """Why the next turn will not be able to reuse this one, if so."""
    if exchange.outcome.holdout:
        return "holdout"
    if not exchange.config.transfer.bidirectional:
        return "disabled"
    if handle is None:
        return "no_handle"
    if not isinstance(handle.get("guard"), dict):
        return "guard_inactive"
    tokens = handle.get("remote_num_tokens")
    if handle.get("do_remote_decode") is not True or not isinstance(tokens, int) or not handle.get("remote_block_ids"):
        return "bad_handle"
    return ""
