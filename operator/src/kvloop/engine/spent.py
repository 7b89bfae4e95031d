"""Which handles have been used, across all API server processes of one engine.

The first use of a handle ends its lease; vLLM would read the blocks a second time all the same, whatever they hold by
then. Bounded: a fixed table that forgets the oldest.
"""

from __future__ import annotations

import fcntl
import os
from hashlib import blake2b
from mmap import mmap
from pathlib import Path
from typing import Any

_KEY_BYTES = 16
_WAYS = 16
_SETS = 4096
_ROW = _KEY_BYTES * _WAYS


class Spent:
    """The newest 65,536 handles, in memory that processes share if there are several.

    A key can lie in one row only, picked by its digest; a full row forgets its oldest key.
    """

    def __init__(self, folder: str | None) -> None:
        """`folder` is one that all processes of this engine know, and only they; None if there is one process."""
        self._fd: int | None = None
        if folder is not None:
            self._fd = os.open(Path(folder) / "kvloop-spent", os.O_RDWR | os.O_CREAT, 0o600)
            os.ftruncate(self._fd, _SETS * _ROW)
        self._table = mmap(self._fd if self._fd is not None else -1, _SETS * _ROW)

    def use(self, handle: dict[str, Any]) -> bool:
        """Note a sound handle as used; False if it was before."""
        name = f"{handle['remote_engine_id']}\0{handle['remote_request_id']}"
        key = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()
        start = int.from_bytes(key[:4], "little") % _SETS * _ROW
        if self._fd is None:
            return self._enter(key, start)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            return self._enter(key, start)
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _enter(self, key: bytes, start: int) -> bool:
        row = self._table[start : start + _ROW]
        if any(row[i : i + _KEY_BYTES] == key for i in range(0, _ROW, _KEY_BYTES)):
            return False
        self._table[start : start + _ROW] = key + row[:-_KEY_BYTES]
        return True
