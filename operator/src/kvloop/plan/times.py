"""Times as Kubernetes writes them."""

from datetime import UTC, datetime


def to_rfc3339(seconds: float) -> str:
    """Unix seconds as a UTC time of whole seconds, such as 2026-01-31T12:00:00Z."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_rfc3339(text: str) -> float:
    """Unix seconds of such a time."""
    return datetime.fromisoformat(text).timestamp()
