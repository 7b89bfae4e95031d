"""The paged KV cache: a fixed pool of blocks, reference counts, prefix cache, least recently used eviction.

As in vLLM, block 0 is the null block and never holds anything, a freed block keeps its content and its prefix-cache
entry until it is handed out again, and blocks are handed out in the order in which they were freed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from e2e.enginesim.content import Slots


class BlockPool:
    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._prefix_caching = prefix_caching
        # Uninitialised memory holds something, too.
        self._data = np.full((num_blocks, block_size), 0xDEAD, dtype=np.uint64)
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._references = [0] * num_blocks
        self._by_key: dict[int, int] = {}
        self._key_of: dict[int, int] = {}

    @property
    def used(self) -> int:
        return self.num_blocks - 1 - len(self._free)

    @property
    def usage(self) -> float:
        """Share of the pool that is in use, as in ``vllm:kv_cache_usage_perc``."""
        return self.used / (self.num_blocks - 1)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def lookup(self, keys: list[int]) -> list[int]:
        """Longest run of cached blocks for the keys of a prompt's full blocks."""
        found: list[int] = []
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def hold(self, blocks: list[int]) -> None:
        for block in blocks:
            self._references[block] += 1
            self._free.pop(block, None)

    def allocatable(self, count: int, reused: list[int]) -> bool:
        """Whether `count` new blocks can be had beside `reused` ones, some of which may be among the free."""
        return count + sum(self._references[b] == 0 for b in reused) <= len(self._free)

    def allocate(self, count: int) -> list[int]:
        """New blocks; their prefix-cache entries are lost. The caller has asked `allocatable`."""
        blocks = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self._forget(block)
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def free(self, blocks: list[int]) -> None:
        """Give up one reference to each; the tail of a sequence is handed out again first."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None

    def cache(self, block: int, key: int) -> None:
        """Find `block` under `key` from now on, unless another block is found there already."""
        if self._prefix_caching and block not in self._key_of and key not in self._by_key:
            self._by_key[key] = block
            self._key_of[block] = key

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; refused while blocks are in use."""
        if self.used:
            return False
        self._by_key.clear()
        self._key_of.clear()
        return True

    def read(self, blocks: list[int], count: int) -> Slots:
        """Copy of the first `count` positions of a block table."""
        whole: Slots = self._data[blocks].reshape(-1)
        return whole[:count]

    def write(self, blocks: list[int], start: int, slots: Slots) -> None:
        """Set the positions from `start` on of a block table."""
        positions = np.arange(start, start + len(slots))
        table = np.asarray(blocks, dtype=np.int64)
        self._data[table[positions // self.block_size], positions % self.block_size] = slots

    def write_one(self, block: int, offset: int, value: int) -> None:
        self._data[block, offset] = value

    def export(self, blocks: list[int]) -> bytes:
        """Raw content of whole blocks, as another engine would read it; raises IndexError beyond the pool."""
        if any(not 0 <= b < self.num_blocks for b in blocks):
            raise IndexError("block id beyond the pool")
        return self._data[blocks].astype("<u8").tobytes()

    def load(self, blocks: list[int], raw: bytes) -> None:
        """Set whole blocks to what `export` of the other engine gave."""
        self._data[blocks] = np.frombuffer(raw, dtype="<u8").reshape(len(blocks), self.block_size)

    def _forget(self, block: int) -> None:
        key = self._key_of.pop(block, None)
        if key is not None:
            del self._by_key[key]
