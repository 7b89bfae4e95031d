"""Progress of long steps: a bar on a terminal, plain lines in a log."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_LOG_EVERY_S = 20.0  # CI logs stay short, yet never look hung


@contextmanager
def step(title: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Show `title` while the body runs; the function that is yielded counts one of `total` units as done."""
    console = Console(stderr=True)
    with (_bar if console.is_terminal else _lines)(console, title, total) as advance:
        yield advance


@contextmanager
def _bar(console: Console, title: str, total: int | None) -> Iterator[Callable[[], None]]:
    columns = [SpinnerColumn(finished_text="✓"), TextColumn("{task.description}"), TimeElapsedColumn()]
    if total:
        columns += [BarColumn(), MofNCompleteColumn()]
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)
        bar.update(task, total=total or 1, completed=total or 1)


@contextmanager
def _lines(console: Console, title: str, total: int | None) -> Iterator[Callable[[], None]]:
    begin = time.monotonic()
    done = 0
    finished = threading.Event()

    def say(what: str) -> None:
        console.print(
            f"{title}: {what} ({time.monotonic() - begin:.0f} s)", soft_wrap=True, highlight=False, markup=False
        )

    def advance() -> None:
        nonlocal done
        done += 1

    def report() -> None:
        while not finished.wait(_LOG_EVERY_S):
            say(f"{done} of {total}" if total else "still running")

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    ending = "failed"
    try:
        yield advance
        ending = "done"
    finally:
        finished.set()
        reporter.join()
        say(ending)
