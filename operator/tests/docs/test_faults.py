"""Every fault that others had is held by tests that exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
ROWS: list[dict[str, Any]] = yaml.safe_load((ROOT / "operator/tests/cases/faults.yaml").read_text(encoding="utf-8"))


def test_rows_are_numbered_from_one() -> None:
    assert [row["row"] for row in ROWS] == list(range(1, len(ROWS) + 1))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["row"])
def test_a_fault_has_its_tests(row: dict[str, Any]) -> None:
    assert row["tests"]
    for test in row["tests"]:
        path, _, name = test.partition("::")
        assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), test
