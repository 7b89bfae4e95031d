"""A request inside the engine, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from e2e.enginesim.model import Style

if TYPE_CHECKING:
    import asyncio

    from e2e.enginesim.content import Slots


class EngineError(Exception):
    """The request failed inside the engine: HTTP 500 in vLLM's shape."""


@dataclass(frozen=True)
class Sampling:
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop: bool = False
    style: Style = field(default_factory=Style)


@dataclass(frozen=True)
class Step:
    """New tokens of a request; the last one also says why it ended."""

    tokens: list[int]
    finish_reason: str | None = None
    stop_reason: int | None = None
    kv_transfer_params: dict[str, Any] | None = None


@dataclass(eq=False)
class Request:
    """`id` is the response's id and eight hex digits, as in vLLM."""

    id: str
    prompt: list[int]
    sampling: Sampling
    kv_params: dict[str, Any] | None = None
    lora: str = ""
    cache_salt: str = ""
    text_only: bool = True
    arrival: float = 0.0

    # Filled in by the engine.
    output: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    expected: Slots = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    local_tokens: int = 0
    external_tokens: int = 0
    cached_tokens: int = 0
    realm: int = 0
    taint: int = 0
    fold: int = 0
    last_slot: int = 0
    first_token_at: float = 0.0
    tracked: bool = False
    leaked: bool = False
    evicted: bool = False
    """Has to give its blocks back."""
    pull: asyncio.Task[None] | None = None

    @property
    def computed_tokens(self) -> int:
        """Tokens with KV once the request has produced output: the last sampled one has none."""
        return len(self.prompt) + max(0, len(self.output) - 1)
