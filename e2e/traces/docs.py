"""The example trace, and what the documentation shows of it."""

import re
import shlex
from contextlib import chdir
from pathlib import Path
from typing import Final

from typer.testing import CliRunner

from e2e.traces.synthetic import Traffic, mooncake, requests
from e2e.traces.write import jsonl
from kvloop.cli import advise, simulate
from kvloop.cli.main import app

ROOT: Final = Path(__file__).parents[2]
TRACE: Final = ROOT / "operator" / "docs" / "examples" / "synthetic-trace.jsonl"
PAGE: Final = ROOT / "operator" / "docs" / "advice.md"
WIDTH: Final = 100
"""Columns of the commands' output in the documentation."""
_SHOWN: Final = re.compile(
    r"(?<=^```console\n)\$ kvloop ((?:advise|simulate) [^\n]*)\n.*?(?=^```$)", re.MULTILINE | re.DOTALL
)


def example() -> str:
    """The example trace."""
    return jsonl(mooncake(requests(Traffic(conversations=120, between_seconds=6.0), seed=1)))


def page(text: str) -> str:
    """The page with what its commands print now."""
    return _SHOWN.sub(lambda found: f"$ kvloop {found[1]}\n{output(shlex.split(found[1]))}", text)


def output(arguments: list[str]) -> str:
    """What the command line prints at the repository's root."""
    before = advise.console.width, simulate.console.width
    advise.console.width = simulate.console.width = WIDTH
    try:
        with chdir(ROOT):
            printed = CliRunner().invoke(app, arguments, catch_exceptions=False).output
    finally:
        advise.console.width, simulate.console.width = before
    return "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
