"""Rows as files."""

import json
from collections.abc import Iterable
from typing import Any


def jsonl(rows: Iterable[dict[str, Any]]) -> str:
    """A line of JSON a row."""
    return "".join(f"{json.dumps(row, separators=(',', ':'))}\n" for row in rows)
