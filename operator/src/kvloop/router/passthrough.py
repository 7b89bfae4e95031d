"""Requests that start no turn: the model list, tokenizers, embeddings. One decode engine answers them."""

import asyncio
import re
from typing import TYPE_CHECKING

import orjson

from kvloop.api.labels import Role
from kvloop.router import headers, policy, request, strip
from kvloop.router.core import Core, Incoming, Reply
from kvloop.router.errors import RETRY_AFTER_SECONDS, RefusalError
from kvloop.router.upstream import LegError

if TYPE_CHECKING:
    from kvloop.router.pool import Engine

# Everything else an engine serves is for its operators: metrics, cache resets, sleep, adapters, raw generation.
_OPEN = re.compile(
    r"/(v1/(?!load_lora_adapter|unload_lora_adapter)[\w./:%-]+"
    r"|tokenize|detokenize|version|ping|pooling|classify|score|rerank|v2/rerank)(\?.*)?"
)
MAX_ENGINES = 2


async def serve(core: Core, incoming: Incoming, reply: Reply) -> None:
    """Answer with what a decode engine answers, or with an error of our own."""
    try:
        await _serve(core, incoming, reply)
    except RefusalError as refusal:
        await reply.send(refusal.status, refusal.headers(), refusal.body())


async def _serve(core: Core, incoming: Incoming, reply: Reply) -> None:
    if not _OPEN.fullmatch(incoming.path) or ".." in incoming.path:
        raise RefusalError(404, "This path is not served here.")
    body = incoming.body
    if body:
        body = orjson.dumps(request.load(body))
    tried: list[Engine] = []
    while len(tried) < MAX_ENGINES:
        engine = policy.choose_decode(core.pool.of(Role.DECODE), holder=None, paired=(), exclude=tried)
        if engine is None:
            break
        tried.append(engine)
        try:
            async with asyncio.timeout(core.config.deadlines.first_byte_seconds):
                return await _relay(core, engine.address, incoming, body, reply)
        except LegError as error:
            if error.sent:
                raise RefusalError(502, "The decode engine gave no answer.") from error
            core.pool.unreachable(engine)
        except TimeoutError as error:
            raise RefusalError(504, "The decode engine gave no answer in time.") from error
    raise RefusalError(503, "No decode engine is ready; try again soon.", retry_after=RETRY_AFTER_SECONDS)


async def _relay(core: Core, address: str, incoming: Incoming, body: bytes, reply: Reply) -> None:
    answer = await core.upstream.send(
        address,
        incoming.method,
        incoming.path,
        headers.to_engine(incoming.headers, core.new_id(), credentials=core.config.api_keys_folder is None),
        body,
        connect=core.config.deadlines.connect_seconds,
        idle=core.config.deadlines.idle_seconds,
    )
    try:
        raw = await answer.read()
    finally:
        answer.close()
    if strip.KV.encode() in raw:
        raw = _clean(raw)
    await reply.send(answer.status, headers.to_client(answer.headers), raw)


def _clean(raw: bytes) -> bytes:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RefusalError(502, "The decode engine's answer could not be read.") from error
    strip.answer(body, token_ids=True)
    return orjson.dumps(body)
