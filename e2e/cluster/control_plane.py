"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler as daemons on this machine."""

import base64
import contextlib
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from e2e.cluster.errors import ClusterError
from e2e.cluster.network import Network, free_port
from e2e.cluster.pki import Authority, new_key, write_public_key
from e2e.cluster.processes import Processes
from e2e.cluster.system import write_private

_START_TIMEOUT_S = 120.0
_MASTERS = ("system:masters",)

# The log is there to count what one user, an operator for instance, asks: the cluster's own parts stay out of it.
_AUDIT_POLICY: dict[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {
            "level": "None",
            "users": [
                "admin",
                "coredns",
                "kwok",
                "system:apiserver",
                "system:kube-controller-manager",
                "system:kube-scheduler",
                "system:kube-proxy",
            ],
        },
        {"level": "None", "userGroups": ["system:nodes", "system:serviceaccounts:kube-system"]},
        {"level": "Metadata"},
    ],
}


@dataclass(frozen=True)
class ControlPlane:
    """Its files are in `folder`. With a network its API server is also reached from pods, else on 127.0.0.1 only."""

    folder: Path
    processes: Processes
    binaries: Mapping[str, Path]

    @property
    def authority(self) -> Authority:
        return Authority(self.folder / "pki")

    @property
    def server(self) -> str:
        """The API server's URL."""
        return (self.folder / "server").read_text()

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.log"

    def prepare(self, network: Network | None) -> None:
        """Write certificates, keys, policy and the administrator's kubeconfig."""
        self.authority.create()
        pki = self.folder / "pki"
        write_public_key(new_key(pki / "service-accounts.key"), pki / "service-accounts.pub")
        (self.folder / "audit-policy.yaml").write_text(yaml.safe_dump(_AUDIT_POLICY))
        host, port = (network.host, 6443) if network else ("127.0.0.1", free_port())
        (self.folder / "server").write_text(f"https://{host}:{port}")
        self.kubeconfig("admin", *_MASTERS)

    def start_api(self, network: Network | None, *, fsync: bool) -> None:
        """Start etcd and the API server, and wait until it is ready."""
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.processes.start(
            "etcd",
            [
                self.binaries["etcd"],
                f"--data-dir={self.folder / 'etcd'}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                "--name=kvloop",
                f"--initial-cluster=kvloop={peer}",
                "--log-level=warn",
                *([] if fsync else ["--unsafe-no-fsync"]),
            ],
        )
        self.processes.start("kube-apiserver", self._api_command(network, client))
        self._wait_until_ready()

    @contextlib.contextmanager
    def without_api(self) -> Iterator[None]:
        """While the block runs, nobody listens where the API server did; then it starts again, and knows no watches."""
        command = Path(f"/proc/{self.processes.pid('kube-apiserver')}/cmdline").read_text().split("\0")[:-1]
        self.processes.stop("kube-apiserver")
        try:
            yield
        finally:
            self.processes.start("kube-apiserver", command)
            self._wait_until_ready()

    def start_controllers(self, node_monitor_grace_s: int) -> None:
        """Start the controller manager and the scheduler."""
        # The default limit of 20 requests a second would pace whatever is tested.
        common = ["--leader-elect=false", "--secure-port=0", "--kube-api-qps=1000", "--kube-api-burst=1000"]
        pki = self.folder / "pki"
        self.processes.start(
            "kube-controller-manager",
            [
                self.binaries["kube-controller-manager"],
                f"--kubeconfig={self.kubeconfig('system:kube-controller-manager')}",
                f"--service-account-private-key-file={pki / 'service-accounts.key'}",
                f"--root-ca-file={self.authority.certificate}",
                "--use-service-account-credentials",
                f"--node-monitor-grace-period={node_monitor_grace_s}s",
                *common,
            ],
        )
        kubeconfig = self.kubeconfig("system:kube-scheduler")
        self.processes.start("kube-scheduler", [self.binaries["kube-scheduler"], f"--kubeconfig={kubeconfig}", *common])

    def kubeconfig(self, user: str, *groups: str, hosts: Sequence[str] = ()) -> Path:
        """Write a kubeconfig for a user of these groups, with a certificate that also serves for these hosts."""
        identity = self.authority.issue(user, groups, hosts)
        credentials = {
            "client-certificate-data": _base64(identity.certificate),
            "client-key-data": _base64(identity.key),
        }
        server = {"server": self.server, "certificate-authority-data": _base64(self.authority.certificate)}
        name = f"kvloop-{self.folder.name}"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": server}],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
            "current-context": name,
        }
        file = self.folder / "kubeconfigs" / f"{user.replace(':', '_')}.yaml"
        return write_private(file, yaml.safe_dump(content))

    def _api_command(self, network: Network | None, etcd: str) -> list[str | Path]:
        pki = self.folder / "pki"
        address, _, port = self.server.removeprefix("https://").partition(":")
        services = network.services if network else "10.96.0.0/16"
        service_ip = services.partition("/")[0][:-1] + "1"  # the ClusterIP of `kubernetes` is the block's first
        names = [f"kubernetes{suffix}" for suffix in ("", ".default", ".default.svc", ".default.svc.cluster.local")]
        serving = self.authority.issue("kube-apiserver", hosts=[address, "127.0.0.1", "localhost", service_ip, *names])
        kubelets = self.authority.issue("kube-apiserver-kubelet-client", _MASTERS)
        return [
            self.binaries["kube-apiserver"],
            f"--etcd-servers={etcd}",
            f"--bind-address={address}",
            f"--secure-port={port}",
            *_endpoint_flags(network),
            f"--service-cluster-ip-range={services}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self.authority.certificate}",
            f"--service-account-key-file={pki / 'service-accounts.pub'}",
            f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--kubelet-client-certificate={kubelets.certificate}",
            f"--kubelet-client-key={kubelets.key}",
            f"--kubelet-certificate-authority={self.authority.certificate}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--audit-policy-file={self.folder / 'audit-policy.yaml'}",
            f"--audit-log-path={self.audit_log}",
            "--profiling=false",
        ]

    def _wait_until_ready(self) -> None:
        identity = self.authority.identity("admin")
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.load_cert_chain(identity.certificate, identity.key)
        deadline = time.monotonic() + _START_TIMEOUT_S
        with httpx.Client(verify=context, trust_env=False) as client:
            while time.monotonic() < deadline:
                for name in ("etcd", "kube-apiserver"):
                    if self.processes.pid(name) is None:
                        raise ClusterError(f"{name} ended while it was starting.")
                with contextlib.suppress(httpx.TransportError):
                    if client.get(f"{self.server}/readyz").is_success:
                        return
                time.sleep(0.1)
        raise ClusterError(f"kube-apiserver is not ready after {_START_TIMEOUT_S:.0f} s.")


def _endpoint_flags(network: Network | None) -> list[str]:
    """Where the Service `kubernetes` leads: nowhere without a network, since no pod could reach 127.0.0.1."""
    if network:
        return [f"--advertise-address={network.host}"]
    return ["--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none"]  # an address for documentation


def _base64(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()
