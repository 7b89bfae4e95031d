import os
import sys
from pathlib import Path

import pytest

from e2e.images import ImageError, tools


def _with_programs(monkeypatch: pytest.MonkeyPatch, folder: Path, **programs: str) -> None:
    """Let PATH hold these shell scripts only."""
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_whoever_is_not_root_is_told_of_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ImageError, match=r"run this as root .* docker build --file operator/Dockerfile"):
        tools.require_root_tools()


def test_where_apt_is_not_the_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    _with_programs(monkeypatch, tmp_path)
    with pytest.raises(ImageError, match="mmdebstrap is missing: install"):
        tools.require_root_tools()


def test_apt_installs_it_after_an_update_if_need_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    log = tmp_path / "log"
    apt = f'echo "$1" >> {log}; [ "$1" = update ] || [ "$(/bin/grep -c update {log})" = 1 ]'
    _with_programs(monkeypatch, tmp_path, **{"apt-get": apt})
    tools.require_root_tools()
    assert log.read_text().split() == ["install", "update", "install"]


def test_a_missing_uv_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    _with_programs(monkeypatch, tmp_path)
    with pytest.raises(ImageError, match="uv is missing: run `make venv`"):
        tools.uv()
    _with_programs(monkeypatch, tmp_path, uv="")
    assert tools.uv() == str(tmp_path / "uv")


def test_a_failed_program_is_told_with_its_output() -> None:
    with pytest.raises(ImageError, match=r"(?s)`sh -c .*` failed:.*no such mirror"):
        tools.run(["sh", "-c", "echo no such mirror >&2; exit 1"])
