"""The cluster's DNS: CoreDNS on this machine's end of the node's network."""

from pathlib import Path

from e2e.cluster.network import Network


def command(binary: Path, folder: Path, network: Network, kubeconfig: Path) -> list[str | Path]:
    """CoreDNS's command line. It knows the cluster's own names, and at once says no to all others."""
    file = folder / "Corefile"
    file.write_text(f""". {{
    bind {network.host}
    errors
    kubernetes cluster.local {{
        kubeconfig {kubeconfig}
        ttl 5
    }}
}}
""")
    return [binary, "-conf", file]
