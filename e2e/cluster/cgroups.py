"""A control group that holds all processes of a node, in every hierarchy of cgroup v1, or in the one of v2."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from e2e.cluster.errors import ClusterError

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("cpu", "cpuset", "hugetlb", "memory", "pids")  # those that the kubelet asks for
_KILL_TIMEOUT_S = 30.0


class ControlGroup:
    """The group /<name>: pods are in its subgroups by the kubelet's doing, the node's own daemons in <name>/system."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def system(self) -> Path:
        """Where a process writes 0 to cgroup.procs to become one of the node's daemons."""
        return self._tracker / "system"

    def create(self) -> None:
        """Make the group.

        Raises:
            ClusterError: the machine does not let us, as in a container that is not privileged enough.
        """
        try:
            for hierarchy in _hierarchies():
                (hierarchy / self.name).mkdir(exist_ok=True)
                if hierarchy == _ROOT:  # v2: what is not enabled above cannot be limited below
                    offered = (hierarchy / "cgroup.controllers").read_text().split()
                    enable = " ".join(f"+{controller}" for controller in offered if controller in _CONTROLLERS)
                    for parent in (hierarchy, hierarchy / self.name):
                        (parent / "cgroup.subtree_control").write_text(enable)
            self.system.mkdir(exist_ok=True)
        except OSError as error:
            raise ClusterError(
                f"No control groups can be made here ({error}): run on the machine itself, "
                "or in a container with --privileged --cgroupns=host."
            ) from error

    def processes(self) -> set[int]:
        """All processes in the group and below."""
        return {int(line) for folder in _below(self._tracker) for line in (folder / "cgroup.procs").read_text().split()}

    def remove(self) -> None:
        """Kill every process of the group, wait until all are gone, and remove the group.

        Raises:
            ClusterError: some do not end.
        """
        deadline = time.monotonic() + _KILL_TIMEOUT_S
        while True:
            try:
                for process in self.processes():
                    os.kill(process, signal.SIGKILL)
                for hierarchy in _hierarchies():
                    for folder in _below(hierarchy / self.name):
                        folder.rmdir()
            except OSError as error:  # a process is just ending, or has just ended
                if time.monotonic() > deadline:
                    raise ClusterError(f"The processes of control group {self.name} do not end: {error}") from error
                time.sleep(0.02)
            else:
                return

    @property
    def _tracker(self) -> Path:
        """The group in one hierarchy, where all its processes are listed."""
        return (_ROOT / "pids" if (_ROOT / "pids").exists() else _ROOT) / self.name


def _hierarchies() -> list[Path]:
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    return [folder for folder in _ROOT.iterdir() if not folder.is_symlink() and (folder / "cgroup.procs").exists()]


def _below(folder: Path) -> Iterator[Path]:
    """The group's folder and all below it, the deepest first."""
    for path, _, _ in os.walk(folder, topdown=False):
        yield Path(path)
