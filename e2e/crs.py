"""The tables of custom resources in operator/tests/cases/crs, judged offline and by a real API server alike."""

import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from kvloop.api.crd import definition

Body = dict[str, Any]
_CASES: Final = Path(__file__).parents[1] / "operator" / "tests" / "cases" / "crs"


@dataclass(frozen=True)
class Case:
    """A custom resource and what must be said of it; nothing if it is valid."""

    name: str
    body: Body
    says: str = ""


def valid() -> list[Case]:
    """Objects that must be admitted."""
    return [Case(body["metadata"]["name"], body) for body in yaml.safe_load_all(_text("valid.yaml"))]


def with_nulls() -> Case:
    """The second valid object with keys that have nothing after them, as in hand-written YAML."""
    body = deepcopy(valid()[1].body)
    body["spec"]["engine"].update({"version": None, "env": None, "dtype": None})
    body["spec"].update({"prefill": None, "rollout": {"paused": None}})
    return Case("nulls", body)


def invalid() -> list[Case]:
    """One change a case to the first valid object, and the words with which it must be refused."""
    rows = yaml.safe_load(_text("invalid.yaml"))
    return [
        Case(row["name"], _changed({"spec": row["change"], "metadata": row.get("metadata", {})}), str(row["says"]))
        for row in rows
    ]


def accepted() -> list[Case]:
    """For each CEL rule, objects near its edge that it lets pass."""
    return [
        Case(f"{row['rule']} {number}", _changed(change))
        for row in _rules()
        for number, change in enumerate(row["accept"])
    ]


def rejected() -> list[Case]:
    """For each CEL rule, objects that it refuses, and the longest fixed part of what it says."""
    return [
        Case(f"{row['rule']} {number}", _changed(change), _words(message_of(row["rule"])))
        for row in _rules()
        for number, change in enumerate(row["reject"])
    ]


def covered() -> list[str]:
    """Message of each rule that has a row, in the rows' order."""
    return [message_of(row["rule"]) for row in _rules() if row["accept"] and row["reject"]]


@cache
def rules() -> dict[str, list[Body]]:
    """Every rule of the CRD by its message; the same model may stand at several places."""
    found: dict[str, list[Body]] = {}
    for node in nodes(schema()):
        for rule in node.get("x-kubernetes-validations", []):
            found.setdefault(rule["message"], []).append(rule)
    return found


def message_of(beginning: str) -> str:
    """The message of the one rule whose message begins so."""
    (message,) = [message for message in rules() if message.startswith(beginning)]
    return message


@cache
def schema() -> Body:
    """The CRD's structural schema."""
    root: Body = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return root


def nodes(node: Body) -> Iterator[Body]:
    """`node` and every node below it."""
    yield node
    below = [
        *node.get("properties", {}).values(),
        *(node[key] for key in ("items", "additionalProperties") if key in node),
    ]
    for child in below:
        yield from nodes(child)


def merged(base: Any, change: Any) -> Any:
    """JSON merge patch (RFC 7386) of `base` with `change`."""
    if not isinstance(change, dict):
        return change
    result = dict(base) if isinstance(base, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def _words(message: str) -> str:
    expression = rules()[message][0].get("messageExpression", f"'{message}'")
    text = expression.split("'.format(")[0].strip("'")
    return max(re.split("%[sd]", text), key=len)


def _changed(change: Body) -> Body:
    body: Body = merged(deepcopy(valid()[0].body), change)
    return body


def _rules() -> list[Body]:
    rows: list[Body] = yaml.safe_load(_text("rules.yaml"))
    return rows


def _text(name: str) -> str:
    return (_CASES / name).read_text(encoding="utf-8")
