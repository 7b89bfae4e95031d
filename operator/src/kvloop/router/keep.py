"""What becomes of the handle that decode gives at the end of a turn."""

from typing import Any

import orjson

from kvloop.api.contract import Miss
from kvloop.router.exchange import Exchange
from kvloop.router.leases import MARGIN_SECONDS
from kvloop.router.store import Entry

_LOCATED = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids")


async def run(exchange: Exchange, handle: dict[str, Any] | None) -> None:
    """Put the handle where the next turn will look for it, or else a mark that this turn was there.

    The lease behind a handle that no turn may use is ended at once.
    """
    keys, core = exchange.request.keys, exchange.core
    problem = _problem(exchange, handle)
    entry = _entry(exchange, handle) if handle is not None and _is_whole(handle) else None
    if keys is not None and keys.put is not None:
        if entry is not None and not problem:
            seconds = exchange.config.transfer.decoder_kv_blocks_ttl_seconds - MARGIN_SECONDS
            dropped = await core.store.put(keys.put, entry, seconds)
            core.leases.keep(keys.put, entry, dropped)
            exchange.outcome.pinned_tokens = entry.tokens
            return
        await core.leases.mark(keys.put, problem)
    if entry is not None:
        core.leases.end(entry)


def _problem(exchange: Exchange, handle: dict[str, Any] | None) -> str:
    """Why the next turn will not be able to reuse this one, if so."""
    request = exchange.request
    problems = {
        Miss.HOLDOUT: exchange.outcome.holdout,
        Miss.DISABLED: not exchange.config.transfer.bidirectional,
        Miss.NO_HANDLE: handle is None,
        Miss.GUARD_INACTIVE: handle is not None and not isinstance(handle.get("guard"), dict),
        Miss.BAD_HANDLE: handle is not None and not _is_whole(handle),
        Miss.ENDED: request.ends,
        Miss.NOT_ELIGIBLE: request.unfit is not None,
    }
    return next((name for name, is_so in problems.items() if is_so), "")


def _is_whole(handle: dict[str, Any]) -> bool:
    tokens = handle.get("remote_num_tokens")
    return (
        handle.get("do_remote_decode") is True
        and type(tokens) is int
        and tokens > 0
        and all(handle.get(k) for k in _LOCATED)
    )


def _entry(exchange: Exchange, handle: dict[str, Any]) -> Entry:
    return Entry(
        handle=bytes(memoryview(orjson.dumps(handle))),  # a copy has no room to spare: a third less memory
        decode=exchange.decode.address,
        boot_id=exchange.decode.info.boot_id,
        revision=exchange.decode.revision,
        prefill=exchange.outcome.prefill,
        tokens=handle["remote_num_tokens"],
    )
