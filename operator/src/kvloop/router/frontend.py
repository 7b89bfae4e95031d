"""The client port: which request goes where."""

from urllib.parse import unquote

import orjson

from kvloop.router import dialects, keys, passthrough, turn
from kvloop.router.core import Core, Incoming
from kvloop.router.errors import RefusalError
from kvloop.router.wire.server import Reply

CONVERSATIONS = "/v1/conversations/"


class Frontend:
    """Serves clients' requests."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def handle(self, incoming: Incoming, reply: Reply) -> None:
        """Serve one request."""
        path = incoming.path.partition("?")[0]
        dialect = dialects.BY_PATH.get(path) if incoming.method == "POST" else None
        accepted = self._core.api_keys
        if path in ("/health", "/ready"):
            good = self._core.alive if path == "/health" else self._core.ready
            reply.send(200 if good else 503, {}, b"")
        elif accepted is not None and not accepted.allows(incoming.headers):
            refusal = RefusalError(401, "Missing or unknown API key: send one as `Authorization: Bearer <key>`.")
            reply.send(refusal.status, refusal.headers(), refusal.body(dialect))
        elif incoming.method == "DELETE" and path.startswith(CONVERSATIONS):
            await self._end_conversation(path.removeprefix(CONVERSATIONS), incoming, reply)
        elif dialect is not None:
            await turn.serve(self._core, dialect, incoming, reply)
        else:
            await passthrough.serve(self._core, incoming, reply)

    async def _end_conversation(self, name: str, incoming: Incoming, reply: Reply) -> None:
        """Forget a conversation that the client had named, and free its memory on decode."""
        whose = keys.of_request(incoming.headers, self._core.config.tenant_header)
        key = keys.explicit(whose, unquote(name)).take[0]
        body = {
            "id": unquote(name),
            "object": "conversation.deleted",
            "deleted": await self._core.leases.end_conversation(key),
        }
        reply.send(200, {"content-type": "application/json"}, orjson.dumps(body))
