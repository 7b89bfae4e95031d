"""Templates: values arrive as they are, and mistakes are found at once."""

from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from kvloop.plan.render import TemplateError, render, to_text, without_none

METADATA: dict[str, Any] = {"name": "n", "namespace": "ns", "labels": {}, "owner_references": None}
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.text(), PLAIN))
def test_any_value_reaches_the_child_unchanged(data: dict[str, object]) -> None:
    child = render("config_map", **METADATA, data=data)
    assert child["data"] == without_none(data)


def test_a_child_shares_nothing_with_its_values_or_with_another() -> None:
    labels = {"a": ["b"]}
    children = [render("config_map", **METADATA | {"labels": labels}, data={}) for _ in range(2)]
    children[0]["metadata"]["labels"]["a"].append("c")
    assert (labels, children[1]["metadata"]["labels"]) == ({"a": ["b"]}, {"a": ["b"]})


@pytest.mark.parametrize(
    "text",
    [
        "{{ name }}",
        "{% raw %}",
        "a: b\n- c",
        "yes",
        "null",
        "1e3",
        "\u0085\u2028\U0001f600",
        "$(X)",
        "the value number 0",
    ],
)
def test_text_that_looks_like_syntax_is_text(text: str) -> None:
    assert render("config_map", **METADATA, data={"k": text})["data"] == {"k": text}


def test_none_leaves_the_key_out_and_empty_stays() -> None:
    child = render("config_map", **METADATA, data={"kept": {}, "gone": None})
    assert child["data"] == {"kept": {}}
    assert "ownerReferences" not in child["metadata"]
    assert without_none([{"a": None, "b": [{"c": None}]}]) == [{"b": [{}]}]


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="data"):
        render("config_map", **METADATA)


def test_an_object_without_a_name_is_an_error() -> None:
    with pytest.raises(TemplateError, match="config_map"):
        render("config_map", **{**METADATA, "name": None}, data={})


def test_every_value_of_every_template_is_quoted() -> None:
    """A value that does not go through `tojson` could change the structure of the object."""
    for template in files("kvloop.plan").joinpath("templates").iterdir():
        for expression in template.read_text(encoding="utf-8").split("{{")[1:]:
            assert expression.partition("}}")[0].rstrip().endswith("| tojson"), template.name


def test_files_are_plain_yaml() -> None:
    assert to_text({"b": [1, "x"], "a": {"c": True}}) == "b:\n- 1\n- x\na:\n  c: true\n"
