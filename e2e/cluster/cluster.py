"""One throw-away Kubernetes cluster, all of whose state is in one folder."""

import shutil
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Literal

from e2e.cluster import dns, kwok
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
from e2e.cluster.system import locked, require_node_packages

Profile = Literal["api", "control", "node"]

_API = ("etcd", "kube-apiserver", "kubectl")
_CONTROL = (*_API, "kube-controller-manager", "kube-scheduler", "kwok")
PROGRAMS: dict[Profile, tuple[str, ...]] = {
    "api": _API,
    "control": _CONTROL,
    "node": (*_CONTROL, "kubelet", "kube-proxy", "coredns", "testpod"),
}


class Cluster(Client):
    """A cluster that is built and run here. `with Cluster(...)` starts it from nothing and removes it at the end.

    Args:
        name: Of the cluster and of its folder.
        profile: `api` is etcd and kube-apiserver; `control` adds the controller manager, the scheduler and KWOK; `node`
            adds a real node, ClusterIPs and DNS, and needs root.
        fsync: Whether etcd keeps its data over a crash of the machine, which no test needs and which costs much.
        node_monitor_grace_s: After how many seconds without a heartbeat a node counts as gone.
    """

    def __init__(
        self, name: str = "kvloop", profile: Profile = "node", *, fsync: bool = False, node_monitor_grace_s: int = 50
    ) -> None:
        super().__init__(name)
        self.profile: Profile = profile
        self._fsync = fsync
        self._node_monitor_grace_s = node_monitor_grace_s
        self._processes = Processes(self.folder)

    @property
    def audit_log(self) -> Path:
        return self._control_plane.audit_log

    def up(self) -> None:
        """Start the cluster from nothing, over whatever an earlier run of that name left."""
        if self.profile == "node":
            require_node_packages()
        ensure(PROGRAMS[self.profile])
        with locked(f"cluster-{self.name}"):
            self._remove()
            self.folder.mkdir(parents=True)
            try:
                with step(f"starting cluster {self.name}"):
                    self._start()
            except BaseException as error:
                self._stop()
                if isinstance(error, ClusterError):
                    raise ClusterError(f"{error}\n{self._ends_of_logs()}") from error
                raise
            self.remember({"profile": self.profile})

    def down(self) -> None:
        """Stop what was started and remove every trace of it; nothing happens if there is none."""
        with locked(f"cluster-{self.name}"):
            self._remove()

    def daemons(self) -> dict[str, int | None]:
        """The process of each daemon that was started; None if it does not run."""
        return {name: self._processes.pid(name) for name in self._processes.names()}

    def processes(self) -> set[int]:
        """All processes of the cluster: its daemons, and whatever runs on its node."""
        return {process for process in self.daemons().values() if process} | self._node.control_group.processes()

    def add_fake_nodes(
        self, count: int, *, prefix: str = "p5en", zone: str = "us-east-1a", shape: NodeShape = P5EN
    ) -> list[str]:
        self._start_kwok()
        return super().add_fake_nodes(count, prefix=prefix, zone=zone, shape=shape)

    def without_api_server(self) -> AbstractContextManager[None]:
        """While the block runs, the API server is away; it then starts anew."""
        return self._control_plane.without_api()

    def kubeconfig_for(self, user: str, *groups: str) -> Path:
        return self._control_plane.kubeconfig(user, *groups)

    def load_image(self, archive: Path) -> None:
        if self.profile != "node":
            raise ClusterError(f"Cluster {self.name} has no real node to run {archive.name} on: use --profile node.")
        with archive.open("rb") as content:
            self._node.load_image(content)

    def diagnostics(self) -> str:
        return f"{super().diagnostics()}\n{self._ends_of_logs()}"

    @cached_property
    def _kubectl(self) -> Path:
        return ensure(["kubectl"])["kubectl"]

    @cached_property
    def _control_plane(self) -> ControlPlane:
        return ControlPlane(self.folder, self._processes, ensure(PROGRAMS[self.profile]))

    @cached_property
    def _node(self) -> Node:
        return Node(self.folder, self._processes)

    def _start(self) -> None:
        network = self._node.start() if self.profile == "node" else None
        self._control_plane.prepare(network)
        self._control_plane.start_api(network, fsync=self._fsync)
        if self.profile != "api":
            self._control_plane.start_controllers(self._node_monitor_grace_s)
        if self.profile == "control":
            self._start_kwok()
        if network:
            self._node.configure(network, self._control_plane, TEST_IMAGE)
            command = dns.command(
                ensure(["coredns"])["coredns"], self.folder, network, self.kubeconfig_for("coredns", "system:masters")
            )
            self._processes.start("coredns", command)
            write_test_image(self.folder / "testpod.tar")
            self.load_image(self.folder / "testpod.tar")
            self.wait(f"node/{NODE_NAME}", "condition=Ready")

    def _ends_of_logs(self) -> str:
        return "\n".join(f"the end of {log}:\n{self._processes.tail(log.stem)}" for log in self._processes.logs())

    def _stop(self) -> None:
        for name in self._processes.names():
            self._processes.stop(name)
        self._node.remove()

    def _remove(self) -> None:
        self._stop()
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def _start_kwok(self) -> None:
        if self._processes.pid("kwok") is None:
            kubeconfig = self.kubeconfig_for("kwok", "system:masters")
            self._processes.start("kwok", kwok.command(ensure(["kwok"])["kwok"], kubeconfig))
