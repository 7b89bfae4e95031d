"""Addresses: free ports on 127.0.0.1, and the private network between this machine and a cluster's node.

A cluster with a real node gets 10.N.0.0/16 for the first N that is free here. The machine has 10.N.0.1 at its end of a
veth pair, the node 10.N.0.2 in a network namespace of its own; pods and ClusterIPs are routed there, so this machine
reaches both without a rule in its own firewall, and two clusters' kube-proxies never meet.
"""

import contextlib
import json
import socket
import subprocess
from dataclasses import dataclass
from ipaddress import IPv4Network

from e2e.cluster.errors import ClusterError

_CANDIDATES = range(200, 250)
_PREFIX = "kvloop"  # of the link's name on this machine: kvloop200 and so on


def free_port() -> int:
    """A TCP port of 127.0.0.1 that the kernel gives to nobody else for a minute.

    A connection was opened and closed on it, so the kernel passes it over when asked for any port, while a server that
    names it (with SO_REUSEADDR, as Go's do) gets it.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), server.accept()[0]:
            return port


@dataclass(frozen=True)
class Network:
    """The addresses of one cluster with a real node."""

    index: int

    @property
    def link(self) -> str:
        return f"{_PREFIX}{self.index}"

    @property
    def host(self) -> str:
        return f"10.{self.index}.0.1"

    @property
    def node(self) -> str:
        return f"10.{self.index}.0.2"

    @property
    def pods(self) -> str:
        return f"10.{self.index}.64.0/18"

    @property
    def services(self) -> str:
        return f"10.{self.index}.128.0/17"


def connect(pid: int) -> Network:
    """Lay a network between this machine and the network namespace of a process, whose end is named eth0."""
    taken = _routes()
    for index in _CANDIDATES:
        network = Network(index)
        block = IPv4Network(f"10.{index}.0.0/16")
        if any(route.subnet_of(block) for route in taken):  # a wider route gives way to ours while the cluster is up
            continue
        # The link's name is what a cluster that starts at the same moment cannot have too.
        if _ip("link", "add", network.link, "type", "veth", "peer", "name", "eth0", "netns", str(pid), check=False):
            _ip("address", "add", f"{network.host}/24", "dev", network.link)
            _ip("link", "set", network.link, "up")
            for destination in (network.pods, network.services):
                _ip("route", "add", destination, "via", network.node, "dev", network.link)
            return network
    raise ClusterError(
        "None of 10.200.0.0/16 to 10.249.0.0/16 is free: see `ip route`, and `down` clusters you no longer need."
    )


def _routes() -> list[IPv4Network]:
    listed = json.loads(subprocess.run(["ip", "-json", "-4", "route"], capture_output=True, check=True).stdout or "[]")
    routes = []
    for route in listed:
        with contextlib.suppress(ValueError):  # "default"
            routes.append(IPv4Network(route["dst"]))
    return routes


def _ip(*arguments: str, check: bool = True) -> bool:
    return subprocess.run(["ip", *arguments], capture_output=not check, check=check).returncode == 0
