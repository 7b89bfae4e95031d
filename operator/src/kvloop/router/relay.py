"""From the decode engine's answer to the client."""

from typing import Final

import orjson

from kvloop.router import errors, headers, keep, strip
from kvloop.router.errors import RefusalError
from kvloop.router.exchange import Exchange
from kvloop.router.sse import EventTooLongError, Scanner
from kvloop.router.wire.client import Connection, LegError
from kvloop.router.wire.server import Reply

_LAST: Final = (b"data: [DONE]\n\n", b'data: {"type":"message_stop"}\n\n')
"""What closes a stream of vLLM's. An event with content ends otherwise: with the end of its outer object."""


async def run(exchange: Exchange, answer: Connection, reply: Reply) -> None:
    """Pass the answer on and keep its handle."""
    exchange.outcome.status = answer.status
    answer.limit(exchange.config.deadlines.idle_seconds)
    if answer.status == 200 and answer.headers.get("content-type", "").startswith("text/event-stream"):
        await _Stream(exchange, reply).run(answer)
    else:
        await _whole(exchange, answer, reply)


async def _whole(exchange: Exchange, answer: Connection, reply: Reply) -> None:
    try:
        raw = await answer.read()
    except LegError as error:
        raise RefusalError(502, "The decode engine ended before its answer was complete.") from error
    if answer.status >= 500 or (answer.status != 200 and _tells_too_much(exchange, raw)):
        raise RefusalError(answer.status, "The decode engine could not serve the request.")
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if strip.concerns(raw):
            raise RefusalError(502, "The decode engine's answer could not be read.") from error
        body = None
    handle, changed = strip.answer(body, token_ids=exchange.request.token_ids)
    if answer.status == 200:
        await keep.run(exchange, handle)
    exchange.outcome.first_byte_seconds = exchange.elapsed
    reply.send(answer.status, headers.to_client(answer.headers), orjson.dumps(body) if changed else raw)


def _tells_too_much(exchange: Exchange, raw: bytes) -> bool:
    """Whether an error tells an address, or repeats the request with its handle, as vLLM before 0.30 does.

    What a good answer says is the model's own.
    """
    return strip.KV.encode() in raw or any(engine.secret in raw for engine in exchange.core.pool.all())


class _Stream:
    """A stream on its way to the client."""

    def __init__(self, exchange: Exchange, reply: Reply) -> None:
        self._exchange = exchange
        self._reply = reply
        self._scanner = Scanner(token_ids=exchange.request.token_ids)
        self._tail = b""
        """What came with the handle, or closes the stream: sent once the turn is kept, as the next may follow."""

    async def run(self, answer: Connection) -> None:
        exchange, reply, scanner = self._exchange, self._reply, self._scanner
        reply.start(answer.status, headers.to_client(answer.headers))
        try:
            await answer.pump(self._pass_on, reply)
            exchange.outcome.last_byte_seconds = exchange.elapsed
        except (LegError, EventTooLongError):
            exchange.outcome.status = 502
            message = "The decode engine ended before its answer was complete."
            reply.end(self._tail + errors.event(message, exchange.dialect))
        else:
            self._tail += scanner.finish()
            await keep.run(exchange, scanner.handle)
            reply.end(self._tail)

    def _pass_on(self, data: bytes) -> None:
        """Called for every read: the path of each token."""
        data = self._scanner.feed(data)
        outcome = self._exchange.outcome
        if not outcome.pieces and data:
            outcome.first_byte_seconds = self._exchange.elapsed
        outcome.pieces += 1
        if self._tail or self._scanner.handle is not None or data.endswith(_LAST):
            self._tail += data
        elif data:
            self._reply.write(data)
