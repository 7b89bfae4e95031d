"""One throw-away Kubernetes cluster, all of whose state is in one folder."""

import json
import shutil
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from e2e.cluster import kwok
from e2e.cluster.binaries import ensure
from e2e.cluster.client import Client
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.errors import ClusterError
from e2e.cluster.processes import Processes
from e2e.cluster.progress import step
from e2e.cluster.system import cache_folder

Profile = Literal["api", "control"]

PROGRAMS: dict[Profile, tuple[str, ...]] = {
    "api": ("etcd", "kube-apiserver", "kubectl"),
    "control": ("etcd", "kube-apiserver", "kubectl", "kube-controller-manager", "kube-scheduler", "kwok"),
}


class Cluster(Client):
    """A cluster by name. `with Cluster(...)` starts it from nothing and removes it at the end.

    Profiles: `api` is etcd and kube-apiserver; `control` adds the controller manager, the scheduler and KWOK.

    Args:
        name: Of the cluster and of its folder.
        profile: Which parts it has.
        fsync: Whether etcd keeps its data over a crash of the machine, which no test needs and which costs much.
        node_monitor_grace_s: After how many seconds without a heartbeat a node counts as gone.
    """

    def __init__(
        self, name: str = "kvloop", profile: Profile = "control", *, fsync: bool = False, node_monitor_grace_s: int = 50
    ) -> None:
        self.name = name
        self.profile = profile
        self.folder = cache_folder() / "clusters" / name
        self._programs = ensure(PROGRAMS[profile])
        self._processes = Processes(self.folder)
        self._control_plane = ControlPlane(
            self.folder, self._processes, self._programs, None, fsync, node_monitor_grace_s
        )
        super().__init__(self.folder / "kubeconfigs" / "admin.yaml", self._programs["kubectl"])

    @classmethod
    def attach(cls, name: str) -> "Cluster":
        """The running cluster of that name."""
        try:
            profile = json.loads((cache_folder() / "clusters" / name / "cluster.json").read_text())["profile"]
        except FileNotFoundError as error:
            raise ClusterError(
                f"There is no cluster {name}: start it by `python -m e2e.cluster up --name {name}`"
            ) from error
        return cls(name, profile)

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def audit_log(self) -> Path:
        return self._control_plane.audit_log

    def up(self) -> None:
        """Start the cluster from nothing, over whatever an earlier run of that name left."""
        self.down()
        self.folder.mkdir(parents=True)
        (self.folder / "cluster.json").write_text(json.dumps({"profile": self.profile}))
        with step(f"starting cluster {self.name}"):
            self._control_plane.prepare()
            self._control_plane.start_api()
            if self.profile != "api":
                self._control_plane.start_controllers()
                kubeconfig = self.kubeconfig_for("kwok", "system:masters")
                self._processes.start("kwok", kwok.command(self._programs["kwok"], kubeconfig))

    def down(self) -> None:
        """Stop what was started and remove every trace of it; nothing happens if there is none."""
        for daemon in self._processes.names():
            self._processes.stop(daemon)
        shutil.rmtree(self.folder, ignore_errors=True)

    def kubeconfig_for(self, user: str, *groups: str) -> Path:
        return self._control_plane.kubeconfig(user, *groups)
