"""The operator when the API server goes away and comes back, or no longer knows the operator's credentials."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from e2e.cluster import Cluster, eventually
from e2e.cluster.system import leased
from e2e.control.harness import ACCOUNT, NAMESPACE, OperatorProcess, Site, install, settled

pytestmark = pytest.mark.api


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One of its own, since it is not always there."""
    with leased("test-away-") as name, Cluster(name, "api") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def kubeconfig(cluster: Cluster) -> Path:
    return install(cluster)


def test_an_api_server_that_was_away(cluster: Cluster, kubeconfig: Path, tmp_path: Path) -> None:
    """Connections are refused, watches must begin anew (410), and what went meanwhile no watch ever tells."""
    process = OperatorProcess(kubeconfig, tmp_path / "operator.log", "--resync-seconds=10")
    with process, Site(cluster, "default", process).served() as chat:
        uid = chat.get("service", "chat")["metadata"]["uid"]
        with process.frozen():
            chat.kubectl("delete", "service", "chat")
            chat.patch({"router": {"holdoutPercent": 7}})
            with cluster.without_api_server():
                pass
        with cluster.without_api_server():
            eventually(lambda: process.lines("the API server takes no requests"))
        eventually(lambda: chat.get("service", "chat")["metadata"]["uid"] != uid, timeout_s=120)
        config = chat.get("configmap", "chat-router")["data"]["router.yaml"]
        assert yaml.safe_load(config)["holdoutPercent"] == 7
        settled(chat.audit())
        eventually(lambda: process.metric("kvloop_canary_age_seconds") < 30)


def test_a_token_that_has_expired(cluster: Cluster, kubeconfig: Path, tmp_path: Path) -> None:
    """As if its pod had gone: liveness fails, and a restart with a new one goes on where it was."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bound"}}
    cluster.apply(secret, NAMESPACE)
    bound = ("--bound-object-kind=Secret", "--bound-object-name=bound", f"--namespace={NAMESPACE}")
    content = yaml.safe_load(kubeconfig.read_text())
    content["users"][0]["user"]["token"] = cluster.kubectl("create", "token", ACCOUNT, *bound).strip()
    own = tmp_path / "kubeconfig"
    own.write_text(yaml.safe_dump(content))
    quick = ("--canary-seconds=1", "--request-seconds=2")
    with OperatorProcess(own, tmp_path / "operator.log", *quick) as process:

        def health() -> int:
            return httpx.get(f"{process.url}/healthz", trust_env=False, timeout=60).status_code

        with Site(cluster, "default", process).served("expiring") as chat:
            assert health() == 200
            cluster.delete(secret, NAMESPACE)
            eventually(lambda: process.process.poll() is not None or health() == 503, timeout_s=60)
            process.kill()
            own.write_bytes(kubeconfig.read_bytes())
            audit = chat.audit()
            process.start()
            eventually(lambda: process.metric('kvloop_reconcile_total{result="ok"}'))
            settled(audit)
            assert not audit.writes()
            assert health() == 200
