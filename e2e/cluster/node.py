"""A real node: kubelet, containerd and kube-proxy in namespaces of their own (node.sh)."""

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

from e2e.cluster.binaries import ensure
from e2e.cluster.cgroups import ControlGroup
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.errors import ClusterError
from e2e.cluster.network import Network, connect
from e2e.cluster.processes import Processes
from e2e.cluster.system import cache_folder

NAME = "node"
_SCRIPT = Path(__file__).parent / "node.sh"
_START_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Node:
    """Its files are in `folder`/node."""

    folder: Path
    processes: Processes

    @property
    def control_group(self) -> ControlGroup:
        return ControlGroup(f"kvloop-{self.folder.name}")

    def start(self) -> Network:
        """Start the node's first process and lay the network to it; the daemons wait for `configure`."""
        (self.folder / "node").mkdir()
        self.control_group.create()
        namespaces = ["--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child"]
        programs = ensure(["kubelet", "kube-proxy"]).values()
        folders = [self.folder, cache_folder(), self.control_group.system]
        self.processes.start(NAME, ["unshare", *namespaces, "bash", _SCRIPT, *folders, *programs])
        return connect(self._process_with_own_network())

    def configure(self, network: Network, control_plane: ControlPlane, pause_image: str) -> None:
        """Write the daemons' files and let them start."""
        folder = self.folder / "node"
        user = f"system:node:{NAME}"
        control_plane.kubeconfig(user, "system:nodes", hosts=[NAME, network.node])
        (folder / "cni").mkdir()
        (folder / "cni" / "10-kvloop.conflist").write_text(json.dumps(_cni(network)))
        (folder / "containerd.toml").write_text(_containerd(folder / "cni", pause_image))
        authority = control_plane.authority
        (folder / "resolv.conf").write_text(f"nameserver {network.host}\n")
        kubelet = _kubelet(network, self.control_group) | {
            "resolvConf": str(folder / "resolv.conf"),  # this machine's may lead to where pods cannot go
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(authority.certificate)},
            },
            "tlsCertFile": str(authority.identity(user).certificate),
            "tlsPrivateKeyFile": str(authority.identity(user).key),
        }
        (folder / "kubelet.yaml").write_text(yaml.safe_dump(kubelet))
        proxy = _kube_proxy(network, control_plane.kubeconfig("system:kube-proxy"))
        (folder / "kube-proxy.yaml").write_text(yaml.safe_dump(proxy))
        ready = folder / "start.new"
        ready.write_text(f"{NAME} {network.node} {network.host}\n")
        ready.rename(folder / "start")

    def load_image(self, archive: IO[bytes]) -> None:
        """Import an image archive into containerd."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self._ctr("version").returncode:  # it may only just have been started
            if time.monotonic() > deadline:
                raise ClusterError(f"containerd does not answer: see {self.processes.log('containerd')}")
            time.sleep(0.05)
        done = self._ctr("images", "import", "-", stdin=archive)
        if done.returncode:
            raise ClusterError(f"containerd did not take the image: {done.stderr.strip()}")

    def _ctr(self, *arguments: str, stdin: IO[bytes] | None = None) -> subprocess.CompletedProcess[str]:
        process = self.processes.pid(NAME)
        if process is None:
            raise ClusterError(f"The node does not run: see {self.processes.log(NAME)} and the logs beside it.")
        command = ["nsenter", f"--target={process}", "--mount", "ctr", "--namespace=k8s.io", *arguments]
        return subprocess.run(command, stdin=stdin or subprocess.DEVNULL, capture_output=True, text=True, check=False)

    def remove(self) -> None:
        """Kill the node with all its pods. Its mounts and its network go with its last process."""
        self.processes.stop(NAME)
        self.control_group.remove()

    def _process_with_own_network(self) -> int:
        """The process that holds the node's namespaces, once it has them."""
        own = Path("/proc/self/ns/net").readlink()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            process = self.processes.pid(NAME)
            if process is None:
                raise ClusterError("The node did not start.")
            if Path(f"/proc/{process}/ns/net").readlink() != own:
                return process
            time.sleep(0.01)
        raise ClusterError(f"The node did not get a network of its own within {_START_TIMEOUT_S:.0f} s.")


def _cni(network: Network) -> dict[str, Any]:
    """Each pod gets a link of its own and is routed, so that no bridge is there to hide its packets from kube-proxy."""
    address = {"type": "host-local", "ranges": [[{"subnet": network.pods}]], "routes": [{"dst": "0.0.0.0/0"}]}
    plugins = [{"type": "ptp", "ipam": address}, {"type": "portmap", "capabilities": {"portMappings": True}}]
    return {"cniVersion": "1.0.0", "name": "kvloop", "plugins": plugins}


def _containerd(cni: Path, pause_image: str) -> str:
    # restrict_oom_score_adj: root may not be allowed to lower it, and then no sandbox would start.
    return f"""\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "{pause_image}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"
"""


def _kubelet(network: Network, group: ControlGroup) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": network.node,
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{group.name}",
        "clusterDNS": [
            network.host
        ],  # nothing answers there, at once: better than pods that wait for this machine's DNS
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "crashLoopBackOff": {"maxContainerRestartPeriod": "5s"},
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "failCgroupV1": False,
        "failSwapOn": False,
        "healthzPort": 0,
        "imageGCHighThresholdPercent": 100,  # images are loaded once and could not be pulled again
        "kubeAPIBurst": 200,
        "kubeAPIQPS": 100,
        "localStorageCapacityIsolation": False,
        "maxPods": 250,
        "serializeImagePulls": False,
        "volumeStatsAggPeriod": "-1s",
    }


def _kube_proxy(network: Network, kubeconfig: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "clusterCIDR": network.pods,
        "conntrack": {"maxPerCore": 0, "min": 0},  # the machine's limit is not ours to set
        "iptables": {"minSyncPeriod": "100ms"},
        "mode": "iptables",
    }
