"""The command line `kvloop`, which kubectl also finds as its plugin `kubectl kvloop`."""

from pathlib import Path
from typing import Annotated

import typer

from kvloop import __version__
from kvloop.api.generate import crd_text
from kvloop.cli.render import UNUSABLE, render
from kvloop.engine import bundle

app = typer.Typer(
    name="kvloop",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(render)


@app.callback()
def main_help() -> None:
    """Return the KV cache of LLM conversations from vLLM decode engines to prefill engines."""


@app.command()
def crd() -> None:
    """Print the CustomResourceDefinition, for `kubectl apply --server-side -f -`."""
    typer.echo(crd_text(), nl=False)


@app.command()
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
        typer.echo(f"error: cannot write {error.filename}: {error.strerror}", err=True)
        raise typer.Exit(UNUSABLE) from error


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """Entry point of `kvloop` and `kubectl-kvloop`."""
    app()
