"""`kvloop crd`: the definition that the API server needs."""

import typer

from kvloop.api.generate import crd_text


def crd() -> None:
    """Print the CustomResourceDefinition, for `kubectl apply --server-side -f -`."""
    typer.echo(crd_text(), nl=False)
