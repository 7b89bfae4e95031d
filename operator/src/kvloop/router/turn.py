"""One turn: take the last handle, let prefill compute what is new, let decode generate, keep the next handle."""

from hashlib import sha256

from kvloop.api.contract import Miss
from kvloop.api.labels import Role
from kvloop.router import decode, keys, policy, prefill, relay, request
from kvloop.router.core import Core, Incoming
from kvloop.router.dialects import Dialect
from kvloop.router.errors import RETRY_AFTER_SECONDS, RefusalError
from kvloop.router.exchange import Exchange
from kvloop.router.keys import Keys
from kvloop.router.outcome import CLIENT_LEFT
from kvloop.router.pool import Engine
from kvloop.router.store import Entry
from kvloop.router.wire.server import Reply


async def serve(core: Core, dialect: Dialect, incoming: Incoming, reply: Reply) -> None:
    """Serve a client's request, and record what became of it. Cancelled when the client hangs up."""
    exchange = Exchange(core, incoming, dialect)
    outcome = exchange.outcome
    outcome.status = CLIENT_LEFT  # unless an answer begins
    try:
        await _serve(exchange, reply)
    except RefusalError as refusal:
        outcome.status = refusal.status
        reply.send(refusal.status, refusal.headers(), refusal.body(dialect))
    finally:
        _part(exchange)
        exchange.end()


async def _serve(exchange: Exchange, reply: Reply) -> None:
    incoming = exchange.incoming
    whose = keys.of_request(incoming.headers, exchange.config.tenant_header)
    exchange.request = request.read(exchange.dialect, incoming.body, incoming.headers, whose)
    exchange.outcome.stream = exchange.request.stream
    core, limits = exchange.core, exchange.config.limits
    core.admission.check(limits)  # before a handle is taken: who is refused comes again, and wants it then
    entry = await _take(exchange)
    try:
        exchange.decode = await core.admission.bind(lambda: _choose_decode(exchange, entry), limits)
        try:
            params = await prefill.run(exchange, entry)
            async with decode.run(exchange, params) as answer:
                await relay.run(exchange, answer, reply)
        finally:
            core.pool.end(exchange.decode)
    finally:
        if exchange.taken is not None:
            core.leases.end(exchange.taken)


async def _take(exchange: Exchange) -> Entry | None:
    """The handle of the turn before, if there is one and its holder still has the KV."""
    config, outcome, wanted = exchange.config, exchange.outcome, exchange.request
    if wanted.unfit is not None:
        outcome.not_eligible, outcome.unsplit = wanted.unfit.reason, wanted.unfit.decode_only
        return None
    if wanted.keys is None:
        outcome.not_eligible = "no_conversation"
        return None
    outcome.holdout = in_holdout(wanted.keys.root, config.holdout_percent)
    _meet(exchange, wanted.keys)
    found = await exchange.core.store.take(wanted.keys.take)
    if found.key is not None:
        outcome.held_seconds = exchange.core.leases.forget(found.key)
    outcome.follow_up = found.seen
    outcome.miss = found.reason
    if outcome.holdout:
        outcome.miss = Miss.HOLDOUT
    elif not config.transfer.bidirectional:
        outcome.miss = Miss.DISABLED
    elif found.entry is not None:
        outcome.miss = _stale(exchange, found.entry)
    if outcome.miss not in _LOST:
        exchange.taken = found.entry
    return None if outcome.miss else found.entry


def _meet(exchange: Exchange, wanted: Keys) -> None:
    """Find the conversation that the turn belongs to."""
    outcome, arrived = exchange.outcome, exchange.incoming.arrived
    exchange.key, exchange.talk = exchange.core.conversations.arrive(wanted.take, arrived)
    exchange.talk.holdout = outcome.holdout
    outcome.turn, outcome.ends = exchange.talk.turns + 1, exchange.request.ends
    if exchange.key is not None:
        outcome.gap_seconds = max(0.0, arrived - exchange.talk.left)


def _part(exchange: Exchange) -> None:
    """Remember the conversation until its next turn; one that was refused may come again."""
    talk, conversations = exchange.talk, exchange.core.conversations
    if talk is None:
        return
    put = exchange.request.keys.put if exchange.request.keys is not None else None
    if exchange.outcome.served and put is not None:
        conversations.leave(put, talk, exchange.incoming.arrived, ends=exchange.outcome.ends)
    elif exchange.key is not None:
        conversations.restore(exchange.key, talk)


_LOST = (Miss.ENGINE_GONE, Miss.ENGINE_RESTARTED, Miss.ENGINE_UNREACHABLE)
"""Here the lease has ended already, or nobody can be told to end it."""


def in_holdout(root: bytes, percent: int) -> bool:
    """Whether a conversation is kept from reuse: by hash, so every turn and every router says the same."""
    return percent > 0 and int.from_bytes(sha256(b"holdout\0" + root).digest()[:4], "big") % 100 < percent


def _stale(exchange: Exchange, entry: Entry) -> str:
    """Why the holder no longer has the KV, if so."""
    holder = exchange.core.pool.get(Role.DECODE, entry.decode)
    if holder is None:
        return Miss.ENGINE_GONE
    if holder.endpoint.terminating:
        return Miss.ENGINE_DRAINING
    if holder.info.boot_id != entry.boot_id:
        return Miss.ENGINE_RESTARTED if holder.info.probed else Miss.ENGINE_UNREACHABLE
    return ""


def _choose_decode(exchange: Exchange, entry: Entry | None) -> Engine | None:
    """None while every decode engine is full; raises `RefusalError` where there is none."""
    pool = exchange.core.pool
    usable = pool.usable(Role.DECODE)
    if not usable:
        raise RefusalError(503, "No decode engine is ready; try again soon.", retry_after=RETRY_AFTER_SECONDS)
    return policy.choose_decode(
        [engine for engine in usable if engine.in_flight < exchange.config.limits.max_turns_per_engine],
        holder=pool.get(Role.DECODE, entry.decode) if entry is not None else None,
        paired=pool.revisions(Role.PREFILL),
    )
