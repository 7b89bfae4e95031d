"""Validation without an API server: the same cases that the API server judges in e2e/api/test_crd.py."""

import math

import pytest

from e2e import crs
from kvloop.api.v1alpha1 import parse
from kvloop.api.validate import defaulted, quantity, validate


@pytest.mark.parametrize("case", [*crs.valid(), *crs.accepted()], ids=lambda case: case.name)
def test_a_valid_object_passes(case: crs.Case) -> None:
    assert validate(case.body) == []


@pytest.mark.parametrize("case", [*crs.invalid(), *crs.rejected()], ids=lambda case: case.name)
def test_an_invalid_object_is_refused_in_the_words_that_help(case: crs.Case) -> None:
    errors = validate(case.body)
    assert any(case.says.lower() in error.lower() for error in errors), errors


def test_each_rule_has_a_case_that_passes_and_one_that_fails() -> None:
    assert sorted(crs.covered()) == sorted(crs.rules())


def test_every_fault_of_an_object_is_told_at_once() -> None:
    body = crs.merged(crs.valid()[0].body, {"spec": {"router": {"replicas": 2, "leaseSeconds": 900}}})
    assert [error.split(":")[0] for error in validate(body)] == ["spec.router.replicas", "spec.router.leaseSeconds"]


def test_an_item_of_a_list_is_named() -> None:
    body = crs.merged(crs.valid()[0].body, {"spec": {"engine": {"args": ["--seed=1", "--port=1"]}}})
    (error,) = validate(body)
    assert error.startswith("spec.engine.args[1]: the operator owns --port: ")


def test_another_kind_of_object_is_refused() -> None:
    assert validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}})[0].startswith("apiVersion, kind")


def test_a_name_is_required() -> None:
    assert "metadata.name: Required value" in validate({**crs.valid()[0].body, "metadata": {}})
    assert "metadata.name: Required value" in validate({**crs.valid()[0].body, "metadata": None})


def test_nothing_after_a_key_is_as_no_key() -> None:
    assert validate(crs.with_nulls().body) == []
    assert parse(defaulted(crs.with_nulls().body)).spec == parse(crs.valid()[1].body).spec
    assert validate({**crs.valid()[1].body, "spec": None}) == ["'spec' is a required property"]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5Mi", 5 * 2**20),
        ("1k", 1000),
        ("500m", 0.5),
        ("250000u", 0.25),
        ("2000000000n", 2),
        ("2000m", 2),
        ("1.5Gi", 3 * 2**29),
        ("12", 12),
        ("2e3", 2000),
        ("1e20", 1e20),
        ("1e999999999", math.inf),
    ],
)
def test_quantities_are_read_as_kubernetes_does(text: str, number: float) -> None:
    assert quantity(text) == number
