"""Start and stop Kubernetes clusters for tests and demonstrations on this machine: python -m e2e.cluster."""

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from e2e.cluster.binaries import ensure
from e2e.cluster.client import Client
from e2e.cluster.cluster import PROGRAMS, Cluster, Profile
from e2e.cluster.errors import ClusterError
from e2e.cluster.others import ExistingCluster, KindCluster, attach
from e2e.cluster.system import require_node_packages

app = typer.Typer(no_args_is_help=True, add_completion=False, help=f"{__doc__}\n\nExit codes: 0 done, 1 not, 2 usage.")

Name = Annotated[str, typer.Option(help="Of the cluster. Several run side by side.")]
ProfileOption = Annotated[
    Profile,
    typer.Option(help="api: etcd and API server. control: and controllers, simulated nodes. node: and a real node."),
]


@app.command()
def build(profile: ProfileOption = "node") -> None:
    """Build and install what a profile needs, so that the first `up` is fast."""
    if profile == "node":
        require_node_packages()
    ensure(PROGRAMS[profile])


@app.command()
def up(
    name: Name = "kvloop",
    profile: ProfileOption = "node",
    kubeconfig: Annotated[Path | None, typer.Option(help="Use this cluster of yours instead.")] = None,
    kind: Annotated[bool, typer.Option("--kind", help="Let kind make the cluster instead.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start from nothing even if it is up already.")] = False,
    fsync: Annotated[bool, typer.Option("--fsync", help="Let etcd keep its data over a crash of the machine.")] = False,
) -> None:
    """Start a cluster, over whatever a killed run of that name left; one that is up already stays."""
    if kubeconfig and kind:
        raise typer.BadParameter("--kubeconfig and --kind exclude each other.")
    cluster: Client = Cluster(name, profile, fsync=fsync)
    if kubeconfig:
        cluster = ExistingCluster(name, kubeconfig.absolute())
    elif kind:
        cluster = KindCluster(name)
    if fresh or not _is_up(cluster):
        _take_down(name)
        cluster.up()
    print(f"export KUBECONFIG={cluster.kubeconfig}")


@app.command()
def down(name: Name = "kvloop") -> None:
    """Stop a cluster and remove every trace of it. It is no error if there is none."""
    _take_down(name)


@app.command()
def status(name: Name = "kvloop") -> None:
    """Show a cluster's parts and nodes; the exit code is 1 unless all of them run."""
    cluster = attach(name)
    if isinstance(cluster, Cluster):
        for daemon, process in cluster.daemons().items():
            print(f"{daemon:24} {f'process {process}' if process else 'stopped'}")
    print(cluster.kubectl("get", "nodes", "--output=wide"), end="")
    if not _is_up(cluster):
        raise ClusterError(f"Not all of cluster {name} runs: see {cluster.folder}/logs, and start it again by `up`.")


@app.command()
def kubeconfig(name: Name = "kvloop") -> None:
    """Print the path of a cluster's kubeconfig."""
    print(attach(name).kubeconfig)


@app.command()
def load(archive: Path, name: Name = "kvloop") -> None:
    """Bring an image, an OCI or docker archive, to a cluster's nodes."""
    attach(name).load_image(archive)


def _take_down(name: str) -> None:
    cluster: Client = Cluster(name)  # of one whose start was killed, only its processes and its folder are known
    with contextlib.suppress(ClusterError):
        cluster = attach(name)
    cluster.down()


def _is_up(cluster: Client) -> bool:
    """Whether a cluster of that name, kind and profile was started and answers."""
    try:
        found = attach(cluster.name)
        found.kubectl("get", "--raw=/readyz", timeout_s=10)
    except ClusterError:
        return False
    if isinstance(cluster, Cluster) and isinstance(found, Cluster):
        return found.profile == cluster.profile and all(found.daemons().values())
    return type(found) is type(cluster) and found.kubeconfig == cluster.kubeconfig


if __name__ == "__main__":
    try:
        app()
    except ClusterError as error:
        sys.exit(f"error: {error}")
