"""How deep an object may be nested that an API server has."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

NESTED: Final = 50_000
"""Python's limit of calls in each other. The API server takes JSON of 10,000 levels, of which Python reads less than a
thousand by default: one resource of somebody's would end every watch, and every command about all resources. To read
them takes less than 2 MiB of stack."""


@contextmanager
def any_depth() -> Iterator[None]:
    """Read whatever an API server has. What users write is read with Python's own limit, before or after."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(NESTED)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
