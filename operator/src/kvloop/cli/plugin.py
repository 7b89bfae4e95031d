"""`kvloop plugin`: the engine's plugin, for use without Kubernetes."""

from pathlib import Path
from typing import Annotated

import typer

from kvloop.cli.exits import fail
from kvloop.engine import bundle


def plugin(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write; put it on the engines' PYTHONPATH.")],
) -> None:
    """Write the vLLM plugin into a folder, to run engines without Kubernetes.

    In Kubernetes the operator mounts the same files. Exit codes: 0 written; 2 the folder cannot be written.
    """
    try:
        for name, text in sorted(bundle.files().items()):
            path = out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            typer.echo(path)
    except OSError as error:
        raise fail(f"cannot write {error.filename}: {error.strerror}") from error
