"""The programs that building takes: found, installed, or named together with the command that installs them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from e2e.images.errors import ImageError

_INSTALL: Final = ("apt-get", "install", "--yes", "--no-install-recommends", "mmdebstrap")


def require_root_tools() -> None:
    """Make sure that a root file system can be made here, by root on Linux; apt-get installs mmdebstrap where it can.

    Raises:
        ImageError: says what is missing, and what to do.
    """
    instead = "or build the images by Docker: docker build --file operator/Dockerfile --target operator ."
    if sys.platform != "linux" or os.geteuid() != 0:
        raise ImageError(f"A root file system can only be made by root on Linux: run this as root there, {instead}")
    if shutil.which("mmdebstrap"):
        return
    if not shutil.which("apt-get"):
        raise ImageError(f"mmdebstrap is missing: install your distribution's package of that name, {instead}")
    try:
        run(_INSTALL)
    except ImageError:  # the package lists are absent or old
        run(["apt-get", "update"])
        run(_INSTALL)


def uv() -> str:
    """The uv that `make venv` puts beside this Python, or the one on PATH."""
    beside = str(Path(sys.executable).with_name("uv"))
    if found := shutil.which(beside) or shutil.which("uv"):
        return found
    raise ImageError("uv is missing: run `make venv`, or `python -m pip install uv`.")


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Run a program quietly.

    Raises:
        ImageError: it failed; the message has its last output.
    """
    done = subprocess.run(
        command,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ImageError(f"`{' '.join(command)}` failed:\n{done.stdout[-500:]}{done.stderr[-2000:]}")
