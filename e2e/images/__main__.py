"""The command line: python -m e2e.images."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from e2e.cluster import ClusterError
from e2e.images.builder import Name, build
from e2e.images.errors import ImageError

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def main() -> None:
    """Build kvloop's container images without a Docker engine."""


@app.command(name="build")
def build_command(
    names: Annotated[
        list[Name] | None, typer.Argument(help="Which images; all of them by default.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the archive; by default in the cache.", file_okay=False)
    ] = None,
) -> None:
    """Build images into one OCI archive: `ctr images import`, `kind load image-archive` and `docker load` read it."""
    images = build(names or Name, out)
    for name, image in images.items():
        print(f"{name:10} {image.size / 1e6:5.0f} MB unpacked  {image.ref}")
    print(next(iter(images.values())).tar)


if __name__ == "__main__":
    try:
        app()
    except (ImageError, ClusterError) as error:
        sys.exit(f"error: {error}")
