"""The router's file: whatever is wrong with it is a `ContractError` that names it, at start and at a reload."""

from pathlib import Path

import pytest

from kvloop.api.contract import ContractError
from kvloop.router.config import load


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a: [", "is no valid YAML"),
        (b"a: \xff", "is no valid YAML"),
        (b"[" * 5000, "is nested too deeply"),
        (b"", "must be a mapping"),
    ],
)
def test_an_unusable_file_is_told(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "router.yaml"
    path.write_bytes(content)
    with pytest.raises(ContractError, match=says) as error:
        load(path)
    assert str(path) in str(error.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="cannot read"):
        load(tmp_path / "none.yaml")
