"""The API server's verdict on a custom resource, without an API server.

It reads the same structural schema and evaluates the same CEL rules as the CRD carries, so `kvloop render` refuses
what a cluster would refuse, in the same words for every rule. It needs the extra `cli`. Of CEL it knows the standard
library and the functions that our rules use of Kubernetes' own (`_FUNCTIONS`).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Context, Decimal
from functools import cache
from typing import Any, Final

from kvloop.api.crd import definition
from kvloop.api.labels import API_VERSION, KIND

Node = dict[str, Any]
_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"


def validate(body: Node) -> list[str]:
    """What is wrong with a custom resource: `path: what is wrong and what to do`, empty if it would be admitted.

    CEL rules are looked at only in an object whose fields have the right types and bounds.
    """
    given = _without_nulls(body, _schema())
    errors = [*_identity(given), *_unknown(given, _schema()), *_bounds(given), *_doubles(given, _schema())]
    return errors or list(_broken_rules(_filled(given, _schema()), _schema()))


def defaulted(body: Node) -> Node:
    """`body` with every default of the CRD filled in, as the API server stores it."""
    filled: Node = _filled(_without_nulls(body, _schema()), _schema())
    return filled


def _identity(body: Node) -> Iterator[str]:
    if (body.get("apiVersion"), body.get("kind")) != (API_VERSION, KIND):
        yield f"apiVersion, kind: must be {API_VERSION} and {KIND}"
    if not body.get("metadata", {}).get("name"):
        yield "metadata.name: Required value"


@cache
def _schema() -> Node:
    schema: Node = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _children(value: Any, schema: Node) -> Iterator[tuple[str, Any, Node]]:
    """(step, value, schema) of every declared part of `value`."""
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield f"[{index}]", item, schema["items"]
    if isinstance(value, Mapping):
        for name, item in value.items():
            part = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            if part is not None:
                yield f".{name}", item, part


def _unknown(value: Any, schema: Node, path: str = "") -> Iterator[str]:
    """Fields that the schema does not declare, in the words of kubectl's strict validation."""
    free = schema.get(_PRESERVE) or "properties" not in schema
    if isinstance(value, Mapping) and not free:
        for name in value.keys() - schema["properties"].keys():
            yield f'unknown field "{f"{path}.{name}".lstrip(".")}"'
    for step, item, part in _children(value, schema):
        yield from _unknown(item, part, path + step)


def _without_nulls(value: Any, schema: Node) -> Any:
    """`value` without fields that are null, such as an `env:` with nothing after it: they count as absent."""
    if isinstance(value, list):
        return [_without_nulls(item, schema.get("items", {})) for item in value]
    if not isinstance(value, Mapping) or schema.get(_PRESERVE):
        return value
    parts = {step[1:]: part for step, _, part in _children(value, schema)}
    return {name: _without_nulls(item, parts.get(name, {})) for name, item in value.items() if item is not None}


def _doubles(value: Any, schema: Node, path: str = "") -> Iterator[str]:
    """Items of a list with keys that have the same keys as an earlier one."""
    names, seen = schema.get("x-kubernetes-list-map-keys"), []
    for step, item, part in _children(value, schema):
        yield from _doubles(item, part, path + step)
        if names and isinstance(value, list) and isinstance(item, Mapping):
            keys = {name: item.get(name, part["properties"][name].get("default")) for name in names}
            if keys in seen:
                yield f"{path}{step}: Duplicate value: {keys}".lstrip(".")
            seen.append(keys)


def _bounds(body: Node) -> Iterator[str]:
    for error in _validator()(_schema()).iter_errors(body):
        yield f"{error.json_path.removeprefix('$')}: {_short(error.message)}".lstrip(".: ")


@cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator, ValidationError, validators  # noqa: PLC0415 (of the extra cli)

    def pattern(_: Any, wanted: str, text: Any, __: Any) -> Iterator[ValidationError]:
        # To Python `$` is also what comes before a last line break; to the API server it is the end.
        if isinstance(text, str) and not re.search(wanted.replace("$", r"\Z"), text):
            yield ValidationError(f"{text!r} does not match {wanted!r}")

    return validators.extend(Draft202012Validator, {"pattern": pattern})  # type: ignore[no-untyped-call] # jsonschema's


def _short(text: str, most: int = 240) -> str:
    """A message without the middle of the value that it quotes, if that is long; the end says what is wrong."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def _filled(value: Any, schema: Node) -> Any:
    if isinstance(value, list):
        return [_filled(item, schema.get("items", {})) for item in value]
    if not isinstance(value, Mapping):
        return value
    missing = {
        name: part["default"]
        for name, part in schema.get("properties", {}).items()
        if "default" in part and name not in value
    }
    filled = {**value, **missing}
    parts = {step[1:]: part for step, _, part in _children(filled, schema)}
    return {name: _filled(item, parts.get(name, {})) for name, item in filled.items()}


def _broken_rules(value: Any, schema: Node, path: str = "") -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", []):
        if evaluate(rule["rule"], value) is not True:
            message = evaluate(rule["messageExpression"], value) if "messageExpression" in rule else rule["message"]
            yield f"{path}{rule.get('fieldPath', '')}: {message}".lstrip(".: ")
    for step, item, part in _children(value, schema):
        yield from _broken_rules(item, part, path + step)


def evaluate(expression: str, value: Any) -> Any:
    """The value of a CEL expression for `self` = `value`. Raises KeyError or RuntimeError if it has none."""
    import cel  # noqa: PLC0415 (of the extra cli: only who validates needs it)

    context = cel.Context()
    context.add_variable("self", value)
    for name, function in _FUNCTIONS.items():
        context.add_function(name, function)
    return cel.evaluate(expression, context)


_SUFFIXES: Final = {
    **{suffix: 1024**power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
    **{suffix: 1000**power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{suffix: Decimal(1000) ** -power for power, suffix in enumerate(("m", "u", "n"), start=1)},
    "": 1,
}


_WIDE: Final = Context(prec=50, traps=[])
"""Arithmetic in which 1e999999999 is no error but infinite."""


def quantity(text: str) -> int | float:
    """A Kubernetes quantity as a number: an int if it is a whole one of 64 bits, such as 5242880 for 5Mi."""
    suffix = next(suffix for suffix in _SUFFIXES if text.endswith(suffix))
    number = _WIDE.multiply(_WIDE.create_decimal(text.removesuffix(suffix)), _SUFFIXES[suffix])
    whole = abs(number) < 2**63 and number == number.to_integral_value()
    return int(number) if whole else float(number)


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "split": lambda text, separator: text.split(separator),
    "replace": lambda text, old, new: text.replace(old, new),
    "format": lambda text, values: text % tuple(values),
    "find": lambda text, pattern: match[0] if (match := re.search(pattern, text)) else "",
    "quantity": quantity,
    "isInteger": lambda number: isinstance(number, int),
    "asInteger": int,
    "isGreaterThan": lambda number, other: number > other,
}
"""Functions of Kubernetes' CEL libraries (strings, regex, quantity) that our rules use; a method's subject is first."""
