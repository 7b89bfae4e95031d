"""A stream of server-sent events, passed on byte for byte but for the handle in it.

Nothing is parsed unless an event holds the handle's name: that is looked for in the bytes. Only an event that is still
incomplete is held back.
"""

from typing import Any

import orjson

from kvloop.router import strip

MAX_EVENT_BYTES = 32 << 20
"""Longest event that is held back for its end; handles of the longest prompts take some hundred kilobytes."""

_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")
_HANDLE = strip.KV.encode()
_TOKEN_IDS = b"prompt_token_ids"
# What an event still holds, once the handle that it was sent for is gone.
_ENVELOPE = frozenset({"id", "object", "created", "model", "choices", "system_fingerprint", "service_tier"})


class EventTooLongError(Exception):
    """An engine sent more than `MAX_EVENT_BYTES` without ending the event."""


class Scanner:
    """Cuts one stream at the ends of events and takes the handle out. `feed` all that arrives, then `finish`."""

    __slots__ = ("_held", "_token_ids", "handle")

    def __init__(self, *, token_ids: bool) -> None:
        """`token_ids`: the client asked for prompt_token_ids, so they stay."""
        self._held = b""
        self._token_ids = token_ids
        self.handle: dict[str, Any] | None = None
        """The last handle seen."""

    def feed(self, data: bytes) -> bytes:
        """What may be sent on now."""
        if self._held:
            data = self._held + data
            self._held = b""
        if not data.endswith(_ENDS):
            data = self._hold(data)
        if _HANDLE in data or (not self._token_ids and _TOKEN_IDS in data):
            return self._rewrite(data)
        return data

    def finish(self) -> bytes:
        """What is left at the regular end of the stream."""
        data, self._held = self._held, b""
        return self._rewrite(data)

    def _hold(self, data: bytes) -> bytes:
        cut = max(data.rfind(end) + len(end) if end in data else 0 for end in _ENDS)
        rest = data[cut:]
        if rest.startswith(b":") and rest.endswith((b"\n", b"\r")):
            return data  # a comment: keep-alives need not wait for an event
        if len(rest) > MAX_EVENT_BYTES:
            raise EventTooLongError
        self._held = rest
        return data[:cut]

    def _rewrite(self, data: bytes) -> bytes:
        """Clean the events that hold one of the names; a burst may bring hundreds of others with them."""
        pieces: list[bytes] = []
        start = 0
        while (at := self._find(data, start)) >= 0:
            begin = max((i + len(end) for end in _ENDS if (i := data.rfind(end, start, at)) >= 0), default=start)
            stop = min((i + len(end) for end in _ENDS if (i := data.find(end, at)) >= 0), default=len(data))
            pieces += (data[start:begin], self._clean(data[begin:stop]))
            start = stop
        return b"".join([*pieces, data[start:]])

    def _find(self, data: bytes, start: int) -> int:
        """Where one of the names stands next; negative if none does."""
        at = data.find(_HANDLE, start)
        if self._token_ids:
            return at
        other = data.find(_TOKEN_IDS, start)
        return min(at, other) if at >= 0 and other >= 0 else max(at, other)

    def _clean(self, event: bytes) -> bytes:
        lines = event.splitlines(keepends=True)
        fields = [line for line in lines if line.startswith(b"data:")]
        try:
            body = orjson.loads(b"".join(line[5:] for line in fields))
        except orjson.JSONDecodeError:
            return b""  # cannot be shown to be free of it
        handle, changed = strip.answer(body, token_ids=self._token_ids)
        if handle is not None:
            self.handle = handle
        if not changed:
            return event  # the words stand in the text itself
        if handle is not None and _is_empty(body):
            return b"".join(line for line in lines[:-1] if line.startswith(b":") or not line.strip())
        end = fields[-1][len(fields[-1].rstrip(b"\r\n")) :]
        data = b"data: " + orjson.dumps(body) + end
        return b"".join(
            data if line is fields[-1] else line for line in lines if line is fields[-1] or line not in fields
        )


def _is_empty(body: dict[str, Any]) -> bool:
    return body.get("choices") == [] and body.keys() <= _ENVELOPE
