"""What routers and engines have counted of one custom resource, as the planner may look at it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Final

from kvloop.api.contract import ReuseCounters
from kvloop.api.labels import Role

GUARD_ACTIVE: Final = "active"
GUARD_INACTIVE: Final = "inactive"
"""The plugin is loaded, but does not fit the engine."""
GUARD_ABSENT: Final = "absent"
"""The plugin is not loaded."""


@dataclass(frozen=True)
class EngineCounters:
    """vLLM's own counters of the engines of one role, over a window.

    Of prefill, transfers and fetched tokens are reads of decode's KV; of decode, reads of prefill's. Buckets are
    Prometheus': cumulative, by their upper bound as text.
    """

    requests: float = 0
    prompt_tokens: Mapping[str, float] = field(default_factory=dict)
    """By source: local_compute, local_cache_hit or external_kv_transfer."""
    computed_buckets: Mapping[str, float] = field(default_factory=dict)
    """Requests by the prompt tokens that were computed for them."""
    transfers: float = 0
    transfer_seconds: float = 0
    transfer_buckets: Mapping[str, float] = field(default_factory=dict)
    """Transfers by seconds."""
    transfer_bytes: float = 0
    failed_transfers: float = 0
    expired: float = 0
    """Leases that ended unused; of prefill also reads that it declined for being too late."""
    late_reads: float = 0
    """Reads of blocks whose lease had ended."""
    queried_tokens: float = 0
    hit_tokens: float = 0
    """Of the queried ones, those in the engine's own prefix cache."""
    offered_tokens: float = 0
    verified_tokens: float = 0
    handles: Mapping[str, float] = field(default_factory=dict)
    """Handles, by what the guard said of them."""

    @property
    def fetched_tokens(self) -> float:
        """Prompt tokens whose KV was read from another engine."""
        return self.prompt_tokens.get("external_kv_transfer", 0)

    @property
    def computed_tokens(self) -> float:
        """Prompt tokens that were computed."""
        return self.prompt_tokens.get("local_compute", 0)

    def once(self, ranks: int) -> "EngineCounters":
        """With each read and lease counted once: vLLM adds up what its workers count, one a rank of tensor parallelism.

        Of a read, time and bytes are then those of a rank: all read at the same time. A read may fail in one rank
        alone, so that failures are rounded up. Buckets stay; only their shares are of use.
        """
        return replace(
            self,
            transfers=self.transfers / ranks,
            transfer_seconds=self.transfer_seconds / ranks,
            transfer_bytes=self.transfer_bytes / ranks,
            failed_transfers=ceil(self.failed_transfers / ranks),
            expired=self.expired / ranks,
            late_reads=self.late_reads / ranks,
        )

    @property
    def cached_tokens(self) -> float:
        """Prompt tokens from the engine's own prefix cache."""
        return self.prompt_tokens.get("local_cache_hit", 0)


@dataclass(frozen=True)
class Engine:
    """One ready engine at its last reading; `read` is whether that was in the last round."""

    pod: str
    role: Role
    read: bool = True
    guard: str = GUARD_ACTIVE
    capacity_tokens: int = 0
    """Tokens that its KV cache holds; 0 where unknown."""
    used_percent: int = 0
    """Of the KV cache, by running turns and by what is held for later ones."""


@dataclass(frozen=True)
class Usual:
    """How busy a resource is. None where that is not known."""

    turns_per_second: float = 0.0
    """Turns that decode may have to hold, over all decode engines."""
    running_tokens: float | None = None
    """Tokens that running turns take on one decode engine, without what is held for later turns."""
    cache_hit_percent: float | None = None
    """Share of queried prompt tokens that prefill finds in its own prefix cache."""


@dataclass(frozen=True)
class Measured:
    """Counters of one custom resource. Those that differ in lengths of windows alone are equal."""

    window: ReuseCounters = field(default_factory=ReuseCounters)
    """Of all routers, over the window."""
    window_seconds: float = field(default=0.0, compare=False)
    busiest_per_second: float = field(default=0.0, compare=False)
    """Turns that can reuse, in the busiest window that this operator has seen; 0 before the first is over."""
    life: ReuseCounters = field(default_factory=ReuseCounters)
    """Of all routers, since they started."""
    engines: tuple[Engine, ...] = ()
    prefill: EngineCounters = field(default_factory=EngineCounters)
    decode: EngineCounters = field(default_factory=EngineCounters)
    beside: ReuseCounters = field(default_factory=ReuseCounters)
    """Of all routers, over the engines' window: the counters to hold beside theirs. No histograms. The engines' window
    is the shorter one after a start of the operator, since they remember none."""
    pinned_tokens: int = 0
    """Tokens that decode holds for later turns now, as the routers know."""
    young: bool = field(default=False, compare=False)
    """Whether the operator has looked for less than the window's length so far."""

    usual: Usual | None = field(default=None, compare=False)
    """How busy it has been for a day, or since the operator has looked; None: that was not long enough."""

    @property
    def present(self) -> Usual:
        """How busy it is now, and over the window."""
        engines = [engine for engine in self.of(Role.DECODE) if engine.capacity_tokens]
        used = sum(engine.capacity_tokens * engine.used_percent for engine in engines) / 100
        queried = self.prefill.queried_tokens
        return Usual(
            turns_per_second=self.window.eligible / self.window_seconds if self.window_seconds else 0.0,
            running_tokens=max(0.0, used - self.pinned_tokens) / len(engines) if engines else None,
            cache_hit_percent=100 * self.prefill.hit_tokens / queried if queried else None,
        )

    def once(self, ranks: Mapping[Role, int]) -> "Measured":
        """With reads and leases counted once, where engines of a role have so many ranks."""
        prefill, decode = self.prefill.once(ranks[Role.PREFILL]), self.decode.once(ranks[Role.DECODE])
        return replace(self, prefill=prefill, decode=decode)

    def of(self, role: Role) -> tuple[Engine, ...]:
        """Engines of a role."""
        return tuple(engine for engine in self.engines if engine.role is role)
