"""Requests that start no turn: the model list, tokenizers, embeddings. One decode engine answers them."""

import re
from typing import TYPE_CHECKING

import orjson

from kvloop.api.labels import Role
from kvloop.router import headers, policy, request, strip
from kvloop.router.core import Core, Incoming
from kvloop.router.errors import RETRY_AFTER_SECONDS, RefusalError
from kvloop.router.wire.client import STALE, Connection, LegError
from kvloop.router.wire.server import Reply

if TYPE_CHECKING:
    from kvloop.router.pool import Engine

# Everything else an engine serves is for its operators: metrics, cache resets, sleep, adapters, raw generation.
_OPEN = re.compile(
    r"/(v1(?!/(un)?load_lora_adapter)(/[\w.:-]+)+"
    r"|tokenize|detokenize|version|ping|pooling|classify|score|rerank|v2/rerank)(\?.*)?"
)
MAX_TRIES = 3


async def serve(core: Core, incoming: Incoming, reply: Reply) -> None:
    """Answer with what a decode engine answers, or with an error of our own."""
    try:
        await _serve(core, incoming, reply)
    except RefusalError as refusal:
        reply.send(refusal.status, refusal.headers(), refusal.body())


async def _serve(core: Core, incoming: Incoming, reply: Reply) -> None:
    if not _OPEN.fullmatch(incoming.path) or "/.." in incoming.path:
        raise RefusalError(404, "This path is not served here.")
    body = request.clean(incoming.body) if incoming.body else b""
    tried: list[Engine] = []
    for _ in range(MAX_TRIES):
        usable = [engine for engine in core.pool.usable(Role.DECODE) if engine not in tried]
        engine = policy.choose_decode(usable, holder=None, paired=())
        if engine is None:
            break
        try:
            connection = await core.upstream.connect(engine.address, core.config.deadlines.connect_seconds)
        except LegError:
            core.pool.suspect(engine, reachable=False)
            tried.append(engine)
            continue
        try:
            return await _relay(core, connection, incoming, body, reply)
        except LegError as error:
            if error.reason != STALE:
                status = 504 if error.reason == "deadline" else 502
                raise RefusalError(status, "The decode engine gave no answer.") from error
        finally:
            connection.release()
    raise RefusalError(503, "No decode engine is ready; try again soon.", retry_after=RETRY_AFTER_SECONDS)


async def _relay(core: Core, connection: Connection, incoming: Incoming, body: bytes, reply: Reply) -> None:
    method = "GET" if incoming.method == "HEAD" else incoming.method  # the reply leaves the body out
    sent = headers.to_engine(incoming.headers, core.new_id(), credentials=core.config.api_keys_folder is None)
    connection.send(method, incoming.path, sent, body, core.config.deadlines.first_byte_seconds)
    raw = await connection.read()
    if strip.concerns(raw):
        raw = _clean(raw)
    reply.send(connection.status, headers.to_client(connection.headers), raw)


def _clean(raw: bytes) -> bytes:
    """Without what no client asks for on these paths: tokenizers answer their tokens under other names."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RefusalError(502, "The decode engine's answer could not be read.") from error
    strip.answer(body, token_ids=False)
    return orjson.dumps(body)
