"""A custom resource's status as tables. Labels and figures are those of the API: what it grows is shown, too."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeGuard

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvloop.api.labels import Condition, Role
from kvloop.kube.client import Body

_GOOD: Final = {Condition.RECONCILING.value: "False", Condition.STALLED.value: "False"}
"""Conditions that are good when they are not True."""
_ROLES: Final = (*(role.value for role in Role), "router")
_OWN_PLACE: Final = {"conditions", "url", "observedGeneration", *_ROLES}


def overview(resources: Sequence[Body], now: float) -> RenderableType:
    """One line a resource."""
    if not resources:
        return Text("No resources found.")
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in (
        "Namespace",
        "Name",
        "Ready",
        "Reason",
        "Prefill",
        "Decode",
        "Router",
        "KV transfer",
        "Reuse",
        "Age",
    ):
        table.add_column(column, overflow="fold")
    for body in resources:
        status, meta = body.get("status") or {}, body["metadata"]
        conditions = {each.get("type"): each for each in status.get("conditions", ())}
        ready = conditions.get(Condition.READY, {})
        table.add_row(
            meta["namespace"],
            meta["name"],
            _truth(ready),
            ready.get("reason", "Unseen"),
            *(status.get(role, {}).get("summary", "") for role in _ROLES),
            conditions.get(Condition.KV_TRANSFER_VERIFIED, {}).get("reason", ""),
            status.get("reuse", {}).get("hitPercent", ""),
            age(meta.get("creationTimestamp"), now),
        )
    return table


def detail(body: Body, now: float) -> RenderableType:
    """All that is known of one resource."""
    status = body.get("status") or {}
    parts = [_title(body, now), _conditions(status.get("conditions", ()), now), _roles(status)]
    for name, value in status.items():
        if name not in _OWN_PLACE and isinstance(value, Mapping) and value:
            parts += [Text(f"\n{words(name)}", style="bold"), Padding(Group(*_value(value)), (0, 0, 0, 2))]
    return Group(*parts)


def _title(body: Body, now: float) -> Text:
    meta, status = body["metadata"], body.get("status") or {}
    text = Text.assemble(
        (f"{meta['namespace']}/{meta['name']}", "bold"), f"  age {age(meta.get('creationTimestamp'), now)}"
    )
    if url := status.get("url"):
        text.append(f"  {url}")
    if status.get("observedGeneration") != meta.get("generation"):
        text.append(
            "\nThe operator has not seen the newest edit yet: is it running, and does it serve this namespace?",
            "yellow",
        )
    return text


def _conditions(conditions: Sequence[Body], now: float) -> RenderableType:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("Condition", "Is", "Reason", "For", "Message"):
        table.add_column(column)
    for each in conditions:
        since = age(each.get("lastTransitionTime"), now)
        kind, reason, message = (each.get(part, "") for part in ("type", "reason", "message"))
        table.add_row(kind, _truth(each), reason, since, message)
    return Group(Text(""), table) if conditions else Text("")


def _truth(condition: Mapping[str, str]) -> Text:
    value = condition.get("status", "Unknown")
    good = _GOOD.get(condition.get("type", ""), "True")
    return Text(value, style={good: "green", "Unknown": "yellow"}.get(value, "red"))


def _roles(status: Body) -> RenderableType:
    rows = {
        words(role): {name: value for name, value in status[role].items() if name != "summary"}
        for role in _ROLES
        if status.get(role)
    }
    return Group(Text(""), _matrix(rows)) if rows else Text("")


def _value(value: Any) -> Iterator[RenderableType]:
    """Figures as a list, objects that are alike as a table, and below it what is neither."""
    if isinstance(value, list):
        plain = bool(value) and all(map(_is_plain, value))
        yield _matrix(_by_first_field(value)) if plain else Text(", ".join(map(str, value)))
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    objects: dict[str, Mapping[str, Any]] = {}
    others: dict[str, Any] = {}
    for name, inner in value.items():
        if inner in ("", {}, []):
            continue
        if not isinstance(inner, Mapping | list) or _is_counts(inner):
            grid.add_row(words(name), figure(name, inner))
        elif _is_plain(inner):
            objects[words(name)] = inner
        else:
            others[words(name)] = inner
    if grid.row_count:
        yield grid
    yield from map(_matrix, _alike(objects))
    for title, inner in others.items():
        yield Text(title, style="italic")
        yield Padding(Group(*_value(inner)), (0, 0, 0, 2))


def _is_plain(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether an object of nothing but plain values."""
    return isinstance(value, Mapping) and not any(isinstance(each, Mapping | list) for each in value.values())


def _is_counts(value: Any) -> bool:
    """Whether a number for each role, which fit into a line."""
    return isinstance(value, Mapping) and set(value) <= set(Role)


def _alike(objects: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Mapping[str, Any]]]:
    """Objects that share a field stand together."""
    groups: list[dict[str, Mapping[str, Any]]] = []
    for name, value in objects.items():
        group = next((group for group in groups if any(value.keys() & each.keys() for each in group.values())), None)
        if group is None:
            groups.append({name: value})
        else:
            group[name] = value
    return groups


def _by_first_field(items: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    rows = [list(item.items()) for item in items]
    return {str(first): dict(rest) for (_, first), *rest in rows}


def _matrix(rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row for each object, a column for each of their fields."""
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("")
    for name in columns:
        numbers = all(type(row.get(name, 0)) is int for row in rows.values())
        table.add_column(words(name), justify="right" if numbers else "left")
    for title, row in rows.items():
        table.add_row(title, *(figure(name, row.get(name, "")) for name in columns))
    return table


def words(name: str) -> str:
    """The name of a field as people say it: hitPercent is Hit percent."""
    parts = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)
    said = " ".join(_SAID.get(part.lower(), part.lower()) for part in parts)
    return said if said[:1].isupper() or said.startswith("vLLM") else said[:1].upper() + said[1:]


_SAID: Final = {"vllm": "vLLM", "gpus": "GPUs", "efa": "EFA", "ttl": "TTL", "kv": "KV"}


def figure(name: str, value: Any) -> str:
    """A value as people read it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{inner} {figure(inner, each)}" for inner, each in value.items())
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value)
    if name.lower().endswith("bytes"):
        return next(f"{value / size:.3g} {unit}" for unit, size in _BYTES.items() if value >= size or size == 1)
    return f"{value:,}"


_BYTES: Final = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "kB": 10**3, "B": 1}


def age(timestamp: str | None, now: float) -> str:
    """How long ago a time of the API was, in the largest unit, as kubectl says it."""
    if not timestamp:
        return "unknown"
    seconds = max(0, round(now - datetime.fromisoformat(timestamp).timestamp()))
    size, unit = next((size, unit) for unit, size in _UNITS.items() if seconds >= size or size == 1)
    return f"{seconds // size}{unit}"


_UNITS: Final = {"d": 86400, "h": 3600, "m": 60, "s": 1}
