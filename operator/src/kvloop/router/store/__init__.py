"""Where handles wait for the next turn. Taken once, by one turn; forgotten in time; a hint that may be lost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """A decode engine's handle, and what must still hold for it to be of use."""

    handle: bytes
    """`kv_transfer_params` as JSON; opaque."""
    decode: str
    """Address of the engine that holds the KV."""
    boot_id: str
    """Of that engine: another one means that it restarted, and the KV is gone."""
    revision: str
    prefill: str
    """Address of the prefill engine that served the turn; empty if none did."""
    tokens: int
    """Tokens that the lease pins."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a lookup came to. An entry, or why an earlier turn left none; neither if no earlier turn is known."""

    entry: Entry | None = None
    reason: str = ""
    key: bytes | None = None
    """The entry's, or that of the reason."""

    @property
    def seen(self) -> bool:
        """Whether an earlier turn is known."""
        return self.entry is not None or bool(self.reason)


class Store(Protocol):
    """Handles by key. Never raises: what fails is a miss."""

    shared: bool
    """Whether the entries outlive this router."""

    async def take(self, keys: Sequence[bytes]) -> Found:
        """Take the entry of the first key that has one: no other turn will get it."""

    async def peek(self, key: bytes) -> Entry | None:
        """The entry that a turn would take, left where it is."""

    async def put(self, key: bytes, entry: Entry, seconds: float) -> list[tuple[bytes, Entry]]:
        """Keep an entry for that long, in place of an older one.

        Returns entries that certainly nobody can take any more, with their keys, so that their leases can be ended.
        """

    async def mark(self, key: bytes, reason: str) -> Entry | None:
        """Remember that a turn ended here and left no handle; returns the entry of another turn that was there."""

    def close(self) -> None:
        """Let go of whatever the store holds on to."""
