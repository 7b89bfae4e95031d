"""Who owns which field of an object: server-side apply's record, `metadata.managedFields`, read."""

import json
from collections.abc import Mapping
from typing import Any

from kvloop.api.labels import FIELD_MANAGER
from kvloop.kube.client import Body


def applied(body: Body, manager: str = FIELD_MANAGER) -> Body:
    """The object as `manager` has last applied it: without status, defaults, and what others have added or changed."""
    entries = (body["metadata"].get("managedFields") or ()) if "metadata" in body else ()
    fields: Mapping[str, Any] = next(
        (
            entry["fieldsV1"]
            for entry in entries
            if (entry["manager"], entry["operation"]) == (manager, "Apply") and not entry.get("subresource")
        ),
        {},
    )
    identity = {name: body["metadata"][name] for name in ("name", "namespace") if name in body["metadata"]}
    part = _part(body, {**fields, ".": {}})
    metadata = {**identity, **part.get("metadata", {})}
    return {"apiVersion": body["apiVersion"], "kind": body["kind"], **part, "metadata": metadata}


def _part(value: Any, fields: Mapping[str, Any]) -> Any:
    """What the record names of a value; all of it where the record goes no deeper."""
    if not fields:
        return value
    if isinstance(value, dict):
        return {name: _part(inner, fields[f"f:{name}"]) for name, inner in value.items() if f"f:{name}" in fields}
    if isinstance(value, list):
        return [_part(item, inner) for item in value for key, inner in fields.items() if _names(key, item)]
    return value


def _names(key: str, item: Any) -> bool:
    """Whether a key of the record means this element of a list."""
    kind, _, text = key.partition(":")
    if kind == "k":
        return isinstance(item, dict) and json.loads(text).items() <= item.items()
    return kind == "v" and bool(json.loads(text) == item)
