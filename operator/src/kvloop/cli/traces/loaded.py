"""Lines of JSON, read one by one: a bad one is told with its number, and the others still count."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from kvloop.advice.turns import Timed, Turn
from kvloop.cli.exits import errors
from kvloop.cli.source import STDIN

TOLD: Final = 5
"""Bad lines that are told of one by one."""
MOST: Final = 10**15
"""No number in a log or a trace is larger."""
Row = dict[str, Any]


class TraceError(Exception):
    """A file of which nothing can be used."""


class FieldError(Exception):
    """A line that is not as its format says."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Turns of a file, by rising arrival."""

    name: str
    format: str
    turns: list[Turn]
    timed: list[Timed]
    """What a log tells of prefill legs and first tokens; nothing for a trace."""
    bad: list[str]
    """Lines that could not be used, with their numbers and why."""
    passed_over: int = 0
    """Lines that are none of this format."""

    def warnings(self) -> Iterator[str]:
        """What to tell of lines that were not used."""
        yield from self.bad[:TOLD]
        if len(self.bad) > TOLD:
            yield f"{len(self.bad) - TOLD} more lines could not be used"
        if self.passed_over:
            yield f"{self.passed_over} lines are no lines of the access log and were passed over"


@dataclass
class Reader:
    """Rows of one file, with what was wrong with others."""

    file: str
    strict: bool
    """Whether a line that is no JSON object is a bad one; else it is somebody else's and passed over."""
    bad: list[str] = field(default_factory=list)
    passed_over: int = 0

    @property
    def name(self) -> str:
        return "standard input" if self.file == STDIN else self.file

    def rows(self) -> Iterator[tuple[int, Row]]:
        """Number and content of each line that is a JSON object.

        Raises:
            TraceError: the file cannot be read.
        """
        try:
            with _opened(self.file) as lines:
                for number, line in enumerate(lines, start=1):
                    row = self._row(number, line)
                    if row is not None:
                        yield number, row
        except OSError as error:
            raise TraceError(f"cannot read {self.name}: {error.strerror}") from error

    def wrong(self, number: int, why: str) -> None:
        """Note a line that cannot be used."""
        self.bad.append(f"{self.name}, line {number}: {why}")

    def nothing(self, wanted: str) -> TraceError:
        """What to raise where no line could be used."""
        if self.bad:
            return TraceError(f"no line of {self.name} can be used; {self.bad[0]}")
        there = "has no line of it" if self.passed_over else "is empty"
        return TraceError(f"{self.name} {there}; wanted is {wanted}")

    def _row(self, number: int, line: bytes) -> Row | None:
        text = line.strip()
        if not text:
            return None
        if not self.strict and not text.startswith(b"{"):
            self.passed_over += 1
            return None
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            self.wrong(number, f"it is no JSON: {error}")
            return None
        if isinstance(row, dict):
            return row
        self.wrong(number, f"it is no JSON object but {type(row).__name__}")
        return None


def number(row: Row, name: str, default: float | None = None) -> float:
    """A field that is a number of 0 or more.

    Raises:
        FieldError: it is missing, without a default, or something else.
    """
    value = row.get(name, default)
    if value is None:
        raise FieldError(f"{name} is missing")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST:
        raise FieldError(f"{name} is {value!r:.40}, which is no number of 0 or more")
    return value


def whole(row: Row, name: str, default: int | None = None) -> int:
    """The same, as a whole number."""
    value = number(row, name, default)
    if value != int(value):
        raise FieldError(f"{name} is {value!r:.40}, which is no whole number")
    return int(value)


@contextmanager
def _opened(file: str) -> Iterator[Iterator[bytes]]:
    """Lines of the file, with a bar on a terminal where that takes a while."""
    if file == STDIN:
        yield iter(sys.stdin.buffer)
        return
    path = Path(file)
    with path.open("rb") as stream, _bar() as progress:
        yield iter(_watched(stream, path.stat().st_size, progress))


def _bar() -> Progress:
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn())
    return Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)


def _watched(stream: BinaryIO, size: int, progress: Progress) -> Iterator[bytes]:
    task = progress.add_task("", total=size)
    for line in stream:
        progress.advance(task, len(line))
        yield line
