from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from kvloop import __version__
from kvloop.engine import bundle

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_of_the_files_offers_the_plugin_to_a_python_that_has_nothing_of_ours(tmp_path: Path) -> None:
    for path, text in bundle.files().items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    program = (
        "from importlib.metadata import entry_points\n"
        "entry, = entry_points(group='vllm.general_plugins', name='kvloop')\n"
        "import kvloop, kvloop.engine.guard\n"
        "print(entry.dist.version, entry.value, kvloop.__file__)\n"
    )
    run = subprocess.run(  # noqa: S603 - a program of our own
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{program}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout.split() == [__version__, "kvloop.engine.plugin:register", str(tmp_path / "kvloop/__init__.py")]


def test_the_files_fit_into_a_config_map_with_room_to_spare() -> None:
    assert sum(len(path) + len(text.encode()) for path, text in bundle.files().items()) < 200 * 1024


def test_the_files_come_in_a_stable_order() -> None:
    assert list(bundle.files()) == sorted(bundle.files())
