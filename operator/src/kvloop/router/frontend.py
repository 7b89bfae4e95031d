"""The client port: which request goes where."""

from kvloop.router import dialects, passthrough, turn
from kvloop.router.core import Core, Incoming
from kvloop.router.errors import RefusalError
from kvloop.router.wire.server import Reply


class Frontend:
    """Serves clients' requests."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def handle(self, incoming: Incoming, reply: Reply) -> None:
        """Serve one request."""
        path = incoming.path.partition("?")[0]
        dialect = dialects.BY_PATH.get(path) if incoming.method == "POST" else None
        keys = self._core.api_keys
        if path in ("/health", "/ready"):
            alive = path == "/health" or self._core.ready
            reply.send(200 if alive else 503, {}, b"")
        elif keys is not None and not keys.allows(incoming.headers):
            refusal = RefusalError(401, "Missing or unknown API key: send one as `Authorization: Bearer <key>`.")
            reply.send(refusal.status, refusal.headers(), refusal.body(dialect))
        elif dialect is not None:
            await turn.serve(self._core, dialect, incoming, reply)
        else:
            await passthrough.serve(self._core, incoming, reply)
