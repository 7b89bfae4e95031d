"""The command line: python -m e2e.cluster."""

import sys
from typing import Annotated

import typer

from e2e.cluster.binaries import ensure
from e2e.cluster.cluster import PROGRAMS, Cluster, Profile
from e2e.cluster.errors import ClusterError

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
Name = Annotated[str, typer.Option(help="Of the cluster; several run side by side.")]


@app.command()
def build(profile: Profile = "control") -> None:
    """Build the programs that a profile needs, if they are not in the cache yet."""
    for name, path in ensure(PROGRAMS[profile]).items():
        print(name, path)


@app.command()
def up(name: Name = "kvloop", profile: Profile = "control") -> None:
    """Start a cluster from nothing, over whatever an earlier run of that name left."""
    cluster = Cluster(name, profile)
    cluster.up()
    print(f"export KUBECONFIG={cluster.kubeconfig}")


@app.command()
def down(name: Name = "kvloop") -> None:
    """Stop a cluster and remove every trace of it."""
    Cluster.attach(name).down()


@app.command()
def kubeconfig(name: Name = "kvloop") -> None:
    """Print the path of a running cluster's kubeconfig."""
    print(Cluster.attach(name).kubeconfig)


if __name__ == "__main__":
    try:
        app()
    except ClusterError as error:
        sys.exit(f"error: {error}")
