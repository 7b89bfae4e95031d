"""Arithmetic on counters that lie in each other, as in a summary's JSON: sums, differences, and back to the model.

Flat, each number has a path: ("misses", "expired") or ("first_token", "reused", 11, 40).
"""

from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[str | int, ...]
Flat = dict[Path, float]


def flat(tree: Mapping[Any, Any], path: Path = ()) -> Flat:
    """Every number but zeros, by path."""
    return dict(_walk(tree, path))


def _walk(tree: Mapping[Any, Any], path: Path) -> Iterator[tuple[Path, float]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _walk(value, (*path, name))
        elif value:
            yield (*path, name), value


def nested(numbers: Mapping[Path, float]) -> dict[Any, Any]:
    """The tree of these paths."""
    tree: dict[Any, Any] = {}
    for path, value in numbers.items():
        node = tree
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = value
    return tree


def add(to: Flat, numbers: Mapping[Path, float]) -> None:
    """Add in place."""
    for path, value in numbers.items():
        to[path] = to.get(path, 0) + value


def difference(now: Mapping[Path, float], before: Mapping[Path, float]) -> Flat:
    """What has come since; nothing where a counter has not grown."""
    return {path: more for path, value in now.items() if (more := value - before.get(path, 0)) > 0}


def fell(now: Mapping[Path, float], before: Mapping[Path, float]) -> bool:
    """Whether a counter is less than before: whoever counts has restarted, and counts from 0."""
    return any(now.get(path, 0) < value for path, value in before.items())
