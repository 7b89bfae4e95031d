"""Keys under which handles are kept: whose conversation, and how far it has come.

The guard in the engines compares tokens, so a wrong key costs a recomputation and never a wrong answer. What keys must
do is to keep tenants apart and to be found again by the next turn, at a cost that is linear in the history.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

MAX_TRIES = 8
"""Earlier turns that are looked for, from the last one backwards."""
_BYTES = 16


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of one turn."""

    put: bytes | None
    """Where its handle will be kept; None where no later turn could find it."""
    take: tuple[bytes, ...]
    """Where an earlier turn's handle may be, the likeliest first."""
    root: bytes
    """The same for every turn of a conversation: decides on the holdout."""


def tenant(credentials: str | None, kind: bytes = b"tenant") -> bytes:
    """Digest of what tells tenants apart; the same for all clients that show nothing.

    `kind` is another one for each source: credentials, which clients choose, must not pass for a gateway's word.
    """
    return sha256(kind + b"\0" + (credentials or "").encode("utf-8", "surrogateescape")).digest()[:_BYTES]


def of_request(headers: Mapping[str, str], trusted: str | None) -> bytes:
    """The tenant of a request: by the header that a trusted gateway sets, or by the credentials that it shows."""
    if trusted and (named := headers.get(trusted.lower())):
        return tenant(named, b"trusted")
    return tenant(headers.get("authorization") or headers.get("x-api-key"))


def explicit(whose: bytes, conversation: str) -> Keys:
    """Keys of a conversation that the client named."""
    digest = sha256(b"id\0" + whose + conversation.encode("utf-8", "surrogatepass")).digest()[:_BYTES]
    return Keys(put=digest, take=(digest,), root=digest)


def derived(whose: bytes, scope: Sequence[bytes], parts: Sequence[bytes], boundaries: Sequence[int]) -> Keys:
    """Keys from the history alone: the digest of every list of messages that an earlier request may have ended with.

    `scope` tells apart what never shares KV (model, cache salt) and what precedes the history; `parts` are the messages
    as JSON, `boundaries` the ascending positions of replies in it.
    """
    running = sha256(b"history\0" + whose)
    for text in (*scope, b""):
        running.update(b"%d:%b" % (len(text), text))
    start, digests = 0, []
    for end in (*boundaries, len(parts)):
        for part in parts[start:end]:
            running.update(part)
        start = end
        digests.append(running.copy().digest()[:_BYTES])
    return Keys(put=digests[-1], take=tuple(digests[-2 : -2 - MAX_TRIES : -1]), root=digests[0])
