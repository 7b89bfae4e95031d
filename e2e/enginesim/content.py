"""What stands in for keys and values: one 64-bit number per token, a function of all tokens before it.

`cold` is what a computation from nothing gives at each position. What an engine really has at a position may differ: it
read another request's block, an old one, or the right one shifted. `taint` tells the two apart, and everything computed
on top of a tainted context is tainted too, as attention over wrong keys and values would be.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Slots: TypeAlias = npt.NDArray[np.uint64]

MASK = (1 << 64) - 1
_A, _B = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_STEP = 0x9E3779B97F4A7C15  # constants of Steele, Lea and Flood's SplitMix64


def mix(x: int) -> int:
    """SplitMix64's finalizer."""
    x &= MASK
    x = (x ^ (x >> 30)) * _A & MASK
    x = (x ^ (x >> 27)) * _B & MASK
    return x ^ (x >> 31)


def _mix_array(x: Slots) -> Slots:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_A)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_B)
    return x ^ (x >> np.uint64(31))


def number_of(*names: str) -> int:
    return int.from_bytes(blake2b("\0".join(names).encode(), digest_size=8).digest(), "big")


class Weights:
    """Position weights, grown on demand and kept, since every request needs the first ones."""

    def __init__(self) -> None:
        self._positions = np.zeros(0, dtype=np.uint64)

    def upto(self, n: int) -> Slots:
        if n > len(self._positions):
            size = max(4096, 1 << (n - 1).bit_length())
            self._positions = _mix_array(np.arange(1, size + 1, dtype=np.uint64) * np.uint64(_STEP)) | np.uint64(1)
        return self._positions[:n]


_WEIGHTS = Weights()


def weight(position: int) -> int:
    return mix((position + 1) * _STEP) | 1


def cold(tokens: npt.NDArray[np.uint32], start: int) -> Slots:
    """Content of every position of a sequence computed from nothing; `start` stands for the weights."""
    terms = _mix_array(tokens.astype(np.uint64) + _WEIGHTS.upto(len(tokens)))
    terms[:1] += np.uint64(start)
    return np.cumsum(terms, dtype=np.uint64)


def extend(previous: int, token: int, position: int) -> int:
    """Content of one more position of a cold sequence."""
    return (previous + mix(token + weight(position))) & MASK


def fold(slots: Slots) -> int:
    """One number for all content that a request reads: what its next token depends on."""
    return int(np.dot(slots, _WEIGHTS.upto(len(slots)))) if len(slots) else 0


def taint(read: Slots, expected: Slots) -> int:
    """0 if what was read is what a cold computation gives, else a number that tells the readings apart."""
    if np.array_equal(read, expected):
        return 0
    return mix(fold(read - expected)) | 1
