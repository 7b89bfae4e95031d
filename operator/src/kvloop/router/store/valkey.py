"""Handles in Valkey or Redis, for several routers. A server that is slow or down costs misses, never errors."""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from kvloop.api.contract import Miss
from kvloop.router.store import Entry, Found
from kvloop.router.store.resp import Client, StoreDownError

TRACE_SECONDS = 3600
"""How long after its lease it is remembered that a conversation was there, to tell a late turn from a first one."""
_ENTRY = b"kvloop:e:"
_TRACE = b"kvloop:t:"
_VERSION = 2
_WORD = re.compile(rb"[a-z_]{1,32}")


class ValkeyStore:
    """A `Store` for several routers. An entry is taken with GETDEL, which gives it to one of them only.

    A server that restores a snapshot, or a replica that takes its place before it has heard of everything, has entries
    again that were taken. So an entry is good only in the run of the server that it was put into.

    Beside each entry lies a trace: what to say when the entry is not there (any more).
    """

    shared = True

    def __init__(self, client: Client, observe: Callable[[str, float], None] = lambda _, __: None) -> None:
        """`observe` gets each call's name and its time in seconds."""
        self._client = client
        self._observe = observe

    async def take(self, keys: Sequence[bytes]) -> Found:
        if not keys:
            return Found()
        first, *others = keys
        commands: list[list[bytes]] = [[b"GETDEL", _ENTRY + first], [b"MGET", *(_TRACE + key for key in keys)]]
        if others:
            commands.append([b"MGET", *(_ENTRY + key for key in others)])
        replies = await self._call("take", *commands)
        if replies is None:
            return Found(reason=Miss.STORE_UNAVAILABLE)
        raw, traces, *more = replies
        if raw is None and others:
            index = next((i for i, value in enumerate(more[0]) if value is not None), None)
            if index is not None:
                return await self._take_one(others[index])
        if raw is not None:
            return self._taken(first, raw)
        for key, trace in zip(keys, traces, strict=True):
            if trace is not None:
                return Found(reason=_reason(trace), key=key)
        return Found()

    async def peek(self, key: bytes) -> Entry | None:
        replies = await self._call("peek", [b"MGET", _ENTRY + key])
        return _decode(replies[0][0], self._client.run) if replies is not None else None

    async def put(self, key: bytes, entry: Entry, seconds: float) -> list[tuple[bytes, Entry]]:
        life, trace = b"%d" % (seconds * 1000), b"%d" % ((seconds + TRACE_SECONDS) * 1000)
        await self._client.ready()
        replies = await self._call(
            "put",
            [b"SET", _ENTRY + key, _encode(entry, self._client.run), b"PX", life, b"GET"],
            [b"SET", _TRACE + key, Miss.EXPIRED.encode(), b"PX", trace],
        )
        # Where the call failed, the entry may be there all the same: its lease must run on.
        older = _decode(replies[0], self._client.run) if replies is not None else None
        return [(key, older)] if older is not None else []

    async def mark(self, key: bytes, reason: str) -> Entry | None:
        trace = [b"SET", _TRACE + key, reason.encode(), b"PX", b"%d" % (TRACE_SECONDS * 1000)]
        replies = await self._call("mark", [b"GETDEL", _ENTRY + key], trace)
        return _decode(replies[0], self._client.run) if replies is not None else None

    def close(self) -> None:
        self._client.close()

    async def _take_one(self, key: bytes) -> Found:
        replies = await self._call("take", [b"GETDEL", _ENTRY + key])
        if replies is None:
            return Found(reason=Miss.STORE_UNAVAILABLE)
        return self._taken(key, replies[0])

    def _taken(self, key: bytes, raw: object) -> Found:
        entry = _decode(raw, self._client.run)
        if entry is None:  # taken by another router between two calls; or of another run, or another version's
            return Found(reason=Miss.USED, key=key)
        self._client.tell([b"SET", _TRACE + key, Miss.USED.encode(), b"PX", b"%d" % (TRACE_SECONDS * 1000)])
        return Found(entry, key=key)

    async def _call(self, name: str, *commands: Sequence[bytes]) -> list[Any] | None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            return await self._client.call(*commands)
        except StoreDownError:
            return None
        finally:
            self._observe(name, loop.time() - begun)


def _encode(entry: Entry, run: str) -> bytes:
    head = [_VERSION, run, entry.decode, entry.boot_id, entry.revision, entry.prefill, entry.tokens]
    return orjson.dumps(head) + b"\n" + entry.handle


def _decode(raw: object, run: str) -> Entry | None:
    """None for what another version of the router may have written, or in another run of the server."""
    if not isinstance(raw, bytes):
        return None
    head, _, handle = raw.partition(b"\n")
    try:
        version, *names, tokens = orjson.loads(head)
        put_in, decode, boot_id, revision, prefill = names
    except (ValueError, TypeError):
        return None
    if (
        (version, put_in) != (_VERSION, run)
        or type(tokens) is not int
        or not all(isinstance(name, str) for name in names)
    ):
        return None
    return Entry(handle, decode, boot_id, revision, prefill, tokens)


def _reason(trace: bytes) -> str:
    """A word that another version of the router may have written; it becomes a metric's label."""
    return trace.decode() if _WORD.fullmatch(trace) else Miss.EXPIRED
