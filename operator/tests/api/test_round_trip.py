"""Whatever the schema admits, the models read, keep and write unchanged."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from e2e import crs
from kvloop.api.v1alpha1 import parse
from kvloop.api.validate import defaulted, validate

ASCII = st.characters(min_codepoint=32, max_codepoint=126)


def values(node: crs.Body) -> st.SearchStrategy[Any]:
    """Values that a node of the structural schema admits."""
    if node.get("x-kubernetes-int-or-string"):
        return st.integers(0, 1000) | _strings(node)
    if "enum" in node:
        return st.sampled_from(node["enum"])
    kinds: dict[str, Any] = {
        "boolean": st.booleans,
        "integer": lambda: st.integers(node.get("minimum", -1), node.get("maximum", 2**31)),
        "string": lambda: _strings(node),
        "array": lambda: _lists(node),
        "object": lambda: _objects(node),
    }
    found: st.SearchStrategy[Any] = kinds[node["type"]]()
    return found


def _strings(node: crs.Body) -> st.SearchStrategy[str]:
    low, high = node.get("minLength", 0), min(node.get("maxLength", 40), 40)
    if "pattern" not in node:
        return st.text(ASCII, min_size=low, max_size=high)
    found = st.from_regex(node["pattern"].replace("$", r"\Z"), alphabet=ASCII)
    return found.filter(lambda text: low <= len(text) <= high)


def _lists(node: crs.Body) -> st.SearchStrategy[list[Any]]:
    keys = node.get("x-kubernetes-list-map-keys", [])
    unique = (lambda item: tuple(item[key] for key in keys)) if keys else None
    return st.lists(values(node["items"]), max_size=2, unique_by=unique)


def _objects(node: crs.Body) -> st.SearchStrategy[crs.Body]:
    if "additionalProperties" in node:
        return st.dictionaries(st.text(ASCII, max_size=10), values(node["additionalProperties"]), max_size=2)
    fields = {name: values(child) for name, child in node.get("properties", {}).items()}
    required = {name: fields.pop(name) for name in node.get("required", [])}
    return st.fixed_dictionaries(required, optional=fields)


SPECS = values(crs.schema()["properties"]["spec"])
SLOW = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def _body(spec: crs.Body) -> crs.Body:
    return {**crs.valid()[1].body, "spec": spec}


@given(SPECS)
@SLOW
def test_models_read_and_write_what_the_schema_admits(spec: crs.Body) -> None:
    read = parse(_body(spec)).spec
    written = read.model_dump(by_alias=True, exclude_none=True, mode="json")
    assert crs.merged(written, spec) == written
    assert parse(_body(written)).spec == read
    assert read.plain() == read.model_dump(by_alias=True, mode="json")


@given(SPECS)
@SLOW
def test_the_models_have_the_schemas_defaults(spec: crs.Body) -> None:
    body = _body(spec)
    assert parse(defaulted(body)).spec == parse(body).spec


@given(SPECS)
@SLOW
def test_the_rules_have_a_verdict_on_whatever_the_schema_admits(spec: crs.Body) -> None:
    assert all(isinstance(error, str) for error in validate(_body(spec)))
