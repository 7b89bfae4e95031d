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
from e2e.cluster.images import TEST_IMAGE, write_test_image
from e2e.cluster.kwok import P5EN, NodeShape
from e2e.cluster.node import NAME as NODE_NAME
from e2e.cluster.node import Node
from e2e.cluster.processes import Processes
from e2e.cluster.progress import step
from e2e.cluster.system import cache_folder, require_node_packages

Profile = Literal["api", "control", "node"]

_API = ("etcd", "kube-apiserver", "kubectl")
_CONTROL = (*_API, "kube-controller-manager", "kube-scheduler", "kwok")
PROGRAMS: dict[Profile, tuple[str, ...]] = {
    "api": _API,
    "control": _CONTROL,
    "node": (*_CONTROL, "kubelet", "kube-proxy", "testpod"),
}


class Cluster(Client):
    """A cluster by name. `with Cluster(...)` starts it from nothing and removes it at the end.

    Args:
        name: Of the cluster and of its folder.
        profile: `api` is etcd and kube-apiserver; `control` adds the controller manager, the scheduler and KWOK; `node`
            adds a real node, which needs root.
        fsync: Whether etcd keeps its data over a crash of the machine, which no test needs and which costs much.
        node_monitor_grace_s: After how many seconds without a heartbeat a node counts as gone.
    """

    def __init__(
        self, name: str = "kvloop", profile: Profile = "node", *, fsync: bool = False, node_monitor_grace_s: int = 50
    ) -> None:
        if profile == "node":
            require_node_packages()
        self.name = name
        self.profile = profile
        self.folder = cache_folder() / "clusters" / name
        self._fsync = fsync
        self._node_monitor_grace_s = node_monitor_grace_s
        self._programs = ensure(PROGRAMS[profile])
        self._processes = Processes(self.folder)
        self._node = Node(self.folder, self._processes, self._programs)
        self._control_plane = ControlPlane(self.folder, self._processes, self._programs)
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
            network = self._node.start() if self.profile == "node" else None
            self._control_plane.prepare(network)
            self._control_plane.start_api(network, fsync=self._fsync)
            if self.profile != "api":
                self._control_plane.start_controllers(self._node_monitor_grace_s)
            if self.profile == "control":
                self._start_kwok()
            if network:
                self._node.configure(network, self._control_plane, TEST_IMAGE)
                write_test_image(self.folder / "testpod.tar")
                self.load_image(self.folder / "testpod.tar")
                self.wait(f"node/{NODE_NAME}", "condition=Ready")

    def down(self) -> None:
        """Stop what was started and remove every trace of it; nothing happens if there is none."""
        for daemon in self._processes.names():
            self._processes.stop(daemon)
        self._node.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def add_fake_nodes(
        self, count: int, *, prefix: str = "p5en", zone: str = "us-east-1a", shape: NodeShape = P5EN
    ) -> list[str]:
        self._start_kwok()
        return super().add_fake_nodes(count, prefix=prefix, zone=zone, shape=shape)

    def kubeconfig_for(self, user: str, *groups: str) -> Path:
        return self._control_plane.kubeconfig(user, *groups)

    def load_image(self, archive: Path) -> None:
        with archive.open("rb") as content:
            self._node.load_image(content)

    def _start_kwok(self) -> None:
        if self._processes.pid("kwok") is None:
            command = kwok.command(self._programs["kwok"], self.kubeconfig_for("kwok", "system:masters"))
            self._processes.start("kwok", command)
