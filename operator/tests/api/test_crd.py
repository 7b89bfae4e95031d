"""The generated CRD: complete, structural, bounded, and the same as what is committed."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from pydantic import Field

from e2e import crs
from kvloop.api.crd import MAX_BYTES, definition, structural
from kvloop.api.flags import FLAGS
from kvloop.api.generate import CRD_PATH, REFERENCE_PATH, crd_text, main
from kvloop.api.reference import reference
from kvloop.api.v1alpha1.base import Model
from kvloop.api.validate import evaluate

ROOT: Final = Path(__file__).parents[3]
SPEC: Final = crs.schema()["properties"]["spec"]
STATUS: Final = crs.schema()["properties"]["status"]


def test_every_field_has_a_description_that_is_a_sentence() -> None:
    for node in [*crs.nodes(SPEC), *crs.nodes(STATUS)]:
        for name, child in node.get("properties", {}).items():
            assert child.get("description", "").endswith("."), name


def test_the_schema_is_structural() -> None:
    for node in crs.nodes(crs.schema()):
        assert not {"$ref", "$defs", "title", "const", "allOf", "oneOf", "nullable", "prefixItems"} & node.keys()
        assert "type" in node or node.get("x-kubernetes-int-or-string")
        assert "anyOf" not in node or node.get("x-kubernetes-int-or-string")
        assert not {"properties", "additionalProperties"} <= node.keys()


def test_every_value_of_the_spec_is_bounded() -> None:
    for node in crs.nodes(SPEC):
        for name, child in node.get("properties", {}).items():
            kept = child.get("x-kubernetes-preserve-unknown-fields")
            bounded = {
                "integer": {"minimum", "maximum"} <= child.keys() or name == "terminationGracePeriodSeconds",
                "string": bool({"enum", "maxLength"} & child.keys()),
                "array": {"maxItems", "x-kubernetes-list-type"} <= child.keys(),
                "object": bool(kept or {"properties", "maxProperties"} & child.keys()),
                "boolean": True,
            }
            assert bounded[child["type"]], name


def test_lists_of_named_objects_merge_by_their_keys() -> None:
    for node in [*crs.nodes(SPEC), *crs.nodes(STATUS)]:
        if node.get("x-kubernetes-list-type") == "map":
            assert set(node["x-kubernetes-list-map-keys"]) <= set(node["items"]["required"])


def test_each_default_stands_once_at_its_own_field() -> None:
    for node in crs.nodes(SPEC):
        if "properties" in node:
            assert node.get("default", {}) == {}
    assert STATUS["default"] == {"observedGeneration": -1}
    assert not [node for node in crs.nodes(STATUS) if node is not STATUS and "default" in node]


def test_the_rules_hold_for_each_default_before_others_are_filled_in() -> None:
    # So does the API server evaluate them when the CRD is installed.
    for node in crs.nodes(SPEC):
        if node.get("default") == {}:
            for rule in node.get("x-kubernetes-validations", []):
                assert evaluate(rule["rule"], {}) is True, rule


def test_it_fits_into_the_annotation_of_kubectl_apply() -> None:
    assert len(crd_text().encode()) < MAX_BYTES


def test_the_yaml_says_what_the_definition_says() -> None:
    assert yaml.safe_load(crd_text()) == definition()


def test_the_reference_tells_every_field_rule_and_setting() -> None:
    text = reference()
    for node in [*crs.nodes(SPEC), *crs.nodes(STATUS)]:
        for name in node.get("properties", {}):
            assert f"| `{name}` |" in text
    assert all(f"- {message}" in text for message in crs.rules())
    assert all(flag.sentence() in text for flag in FLAGS)


def test_a_union_is_refused_since_it_is_not_structural() -> None:
    class Union(Model):
        field: int | str = Field(1, description="Either.")

    with pytest.raises(ValueError, match="not structural"):
        structural(Union)


def test_what_is_committed_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", f"--root={ROOT}"]) == 0, capsys.readouterr().out


def test_check_tells_drift_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--root={tmp_path}"]) == 0
    assert main(["--check", f"--root={tmp_path}"]) == 0
    stale = (tmp_path / CRD_PATH).read_text().replace("default: 480", "default: 60")
    (tmp_path / CRD_PATH).write_text(stale)
    (tmp_path / REFERENCE_PATH).unlink()
    assert main(["--check", f"--root={tmp_path}"]) == 1
    told = capsys.readouterr()
    assert "-                      default: 60\n+                      default: 480\n" in told.out
    assert f"+++ b/{REFERENCE_PATH}" in told.out
    assert "make generate" in told.err
    assert (tmp_path / CRD_PATH).read_text() == stale
    assert not (tmp_path / REFERENCE_PATH).exists()


def _version() -> dict[str, Any]:
    (version,) = definition()["spec"]["versions"]
    return dict(version)


def test_columns_read_fields_that_exist() -> None:
    for column in _version()["additionalPrinterColumns"]:
        path = column["jsonPath"].split(".")[1:]
        if path[0] == "status" and "conditions" not in column["jsonPath"]:
            node = crs.schema()
            for step in path:
                node = node["properties"][step]
            assert node["type"] == "string"
