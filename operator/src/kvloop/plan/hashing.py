"""Short digests of plain data: equal data, equal digest, whatever the order of its keys."""

import hashlib
import json
from typing import Any

LENGTH = 10
"""Hex digits of a digest: 40 bits, short enough for names and label values."""


def digest(data: Any) -> str:
    """Hex digest of JSON-like data."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]
