"""Clusters that we do not run ourselves, and which kind of cluster a name stands for."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.client import Client
from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import step
from e2e.cluster.system import cluster_folder


class ExistingCluster(Client):
    """A cluster of yours: it is used, never started or stopped."""

    def up(self) -> None:
        with _forgotten_on_error(self):
            super().up()
            self.remember({"kubeconfig": str(self.kubeconfig)})


class KindCluster(Client):
    """A cluster in containers, by the command `kind`."""

    def up(self) -> None:
        with _forgotten_on_error(self), step(f"starting cluster {self.name} with kind"):
            self._kind("delete", "cluster")
            self._kind("create", "cluster", f"--kubeconfig={self.kubeconfig}", "--wait=120s")
            super().up()
            self.remember({"kind": True})

    def down(self) -> None:
        self._kind("delete", "cluster")
        super().down()

    def load_image(self, archive: Path) -> None:
        self._kind("load", "image-archive", str(archive))

    def _kind(self, *arguments: str) -> None:
        if not shutil.which("kind"):
            raise ClusterError("kind is not installed: `go install sigs.k8s.io/kind@latest` installs it.")
        done = subprocess.run(["kind", *arguments, f"--name={self.name}"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"`kind {' '.join(arguments)}` failed: {done.stderr.strip()}")


@contextmanager
def _forgotten_on_error(cluster: Client) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(cluster.folder, ignore_errors=True)
        raise


def attach(name: str) -> Client:
    """The cluster of that name that is up, of whichever kind.

    Raises:
        ClusterError: there is none.
    """
    try:
        record = json.loads((cluster_folder(name) / "cluster.json").read_text())
    except FileNotFoundError as error:
        raise ClusterError(
            f"There is no cluster {name}: `python -m e2e.cluster up --name {name}` starts one."
        ) from error
    if "kubeconfig" in record:
        return ExistingCluster(name, Path(record["kubeconfig"]))
    return KindCluster(name) if "kind" in record else Cluster(name, record["profile"])
