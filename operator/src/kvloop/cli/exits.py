"""How commands end: exit codes that mean the same in all of them, errors in one line, and tables that are whole."""

from typing import Final

import typer
from rich.console import Console

NO: Final = 1
"""Exit code: the command did its work, and the answer is no: refused, different, failed. 0 is the good answer."""
UNUSABLE: Final = 2
"""Exit code: the command could not do its work: of the command line, a file, or the cluster."""

_WIDE: Final = 240
errors: Final = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)


def results() -> Console:
    """Where tables go: as wide as the terminal, or, where there is none, so wide that no cell is broken."""
    terminal = Console().is_terminal
    return Console(width=None if terminal else _WIDE, markup=False, emoji=False)


def fail(*messages: str, code: int = UNUSABLE) -> typer.Exit:
    """Say what is wrong, a line each; gives what to raise."""
    for message in messages:
        errors.print(f"error: {message}", style="red")
    return typer.Exit(code)
