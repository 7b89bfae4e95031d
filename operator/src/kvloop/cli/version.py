"""`kvloop version`."""

import typer

from kvloop import __version__


def version() -> None:
    """Print the version."""
    typer.echo(__version__)
