"""The memory of used handles: bounded, and one for all processes of an engine."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

from kvloop.engine import spent as module
from kvloop.engine.spent import Spent

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def handle(request: Any, engine: str = "engine") -> dict[str, Any]:
    return {"remote_engine_id": engine, "remote_request_id": str(request)}


def test_a_handle_is_new_once() -> None:
    spent = Spent(None)
    assert [spent.use(handle(i)) for i in (1, 2, 1, 2, 3)] == [True, True, False, False, True]
    assert spent.use(handle(1, "another engine"))
    assert spent.use(handle("\ud800"))  # half a character, as JSON may hold it


def test_the_table_is_fixed_and_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETS", 4)
    spent = Spent(None)
    assert all(spent.use(handle(i)) for i in range(20))
    assert not any(spent.use(handle(i)) for i in range(20))
    assert all(spent.use(handle(i)) for i in range(20, 200))
    assert all(spent.use(handle(i)) for i in range(20))
    assert not spent.use(handle(199))


def test_what_one_process_used_another_one_refuses(tmp_path: Path) -> None:
    spent = Spent(str(tmp_path))
    assert spent.use(handle(1))
    program = (
        "import sys; from kvloop.engine.spent import Spent\n"
        "s = Spent(sys.argv[1])\n"
        "print([s.use({'remote_engine_id': 'engine', 'remote_request_id': r}) for r in '12'])"
    )
    run = subprocess.run(  # noqa: S603 - a program of our own
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert run.stdout == "[False, True]\n"
    assert not spent.use(handle(2))
