"""Helm installs, upgrades and uninstalls in a real API server; resources and their children stay what they are."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.charts.generate import CASES, CHARTS, ROOT
from e2e.charts.helm import HelmError, helm
from e2e.cluster import Client, KubectlError, eventually
from e2e.control.harness import ACCOUNT, Audit, OperatorProcess, Site, settled
from e2e.site import Body, resource
from kvloop.api.labels import PLURAL

pytestmark = pytest.mark.api

SYSTEM: Final = "kvloop-system"
CRD_NAME: Final = f"{PLURAL}.kvloop.io"
CRD: Final = f"crd/{CRD_NAME}"


class Helm:
    """Helm with the administrator's rights."""

    def __init__(self, cluster: Client) -> None:
        self._cluster = cluster

    def __call__(self, *arguments: str | Path) -> str:
        return helm(*arguments, kubeconfig=self._cluster.kubeconfig)

    def install(self, *options: str, folder: Path = CHARTS) -> str:
        """Both charts, newest or from another folder, in the documented order; gives what Helm says in the end."""
        upgrade = ("upgrade", "--install", "--namespace", SYSTEM)
        self(*upgrade, "--create-namespace", "kvloop-crds", folder / "kvloop-crds")
        self._cluster.wait_established(CRD_NAME)
        return self(*upgrade, "kvloop", folder / "kvloop", *options)

    def uninstall(self) -> None:
        """All that can be."""
        for release in ("kvloop", "kvloop-crds"):
            self("uninstall", release, "--namespace", SYSTEM, "--ignore-not-found")


@pytest.fixture
def installed(cluster: Client) -> Iterator[Helm]:
    """Helm, and nothing of kvloop once the test is over."""
    run = Helm(cluster)
    yield run
    run.uninstall()
    cluster.kubectl("delete", CRD, "--ignore-not-found", "--timeout=60s")


@contextmanager
def operator(cluster: Client, log: Path) -> Iterator[OperatorProcess]:
    """The operator, run as the installed Deployment says and with the rights that the chart gave."""
    (container,) = cluster.get("deployment", ACCOUNT, SYSTEM)["spec"]["template"]["spec"]["containers"]
    kubeconfig = cluster.service_account_kubeconfig(ACCOUNT, SYSTEM)
    with OperatorProcess(kubeconfig, log, *container["args"]) as process:
        yield process


def essence(body: Mapping[str, Any]) -> Body:
    """What must not change under a resource or a child."""
    meta = body["metadata"]
    return {
        "uid": meta["uid"],
        "generation": meta.get("generation"),
        "spec": body.get("spec"),
        "data": body.get("data"),
    }


def refused(audit: Audit) -> list[Body]:
    """Requests for which the operator had no right."""
    return [event for event in audit.requests() if event.get("responseStatus", {}).get("code") == 403]


def test_install_upgrade_and_uninstall_leave_resources_alone(cluster: Client, installed: Helm, tmp_path: Path) -> None:
    former = tmp_path / "charts"
    shutil.copytree(CHARTS, former)
    for chart in former.glob("*/Chart.yaml"):
        chart.write_text(chart.read_text().replace("ersion: 0.1.0", "ersion: 0.0.9"))
    installed.install(folder=former)
    audit = Audit(cluster)
    with operator(cluster, tmp_path / "first.log") as process:
        site = Site(cluster, "default", process)
        site.create()
        eventually(lambda: site.condition("Ready"))
        settled(audit)
        before = essence(site.get(PLURAL, "chat")), {key: essence(each) for key, each in site.children().items()}
    installed.install()
    (container,) = cluster.get("deployment", ACCOUNT, SYSTEM)["spec"]["template"]["spec"]["containers"]
    assert container["image"].endswith(":0.1.0")
    assert essence(site.get(PLURAL, "chat")) == before[0]
    upgrade = Audit(cluster)
    with operator(cluster, tmp_path / "second.log"):
        eventually(lambda: upgrade.writes()["patch", "deployments"])
        settled(upgrade)
    assert upgrade.writes() == {("patch", "deployments"): 1, ("patch", f"{PLURAL}/status"): 1}, "the router's new image"
    installed.uninstall()
    with pytest.raises(KubectlError, match="not found"):
        cluster.get("deployment", ACCOUNT, SYSTEM)
    assert essence(site.get(PLURAL, "chat")) == before[0]
    assert {key: each["uid"] for key, each in before[1].items()} == {
        key: each["metadata"]["uid"] for key, each in site.children().items()
    }
    assert not refused(audit)
    installed.install()  # the CRD that was kept is taken over again
    assert essence(site.get(PLURAL, "chat")) == before[0]
    site.kubectl("delete", PLURAL, "chat")


def test_namespaced_the_operator_gets_by_with_its_roles(cluster: Client, installed: Helm, tmp_path: Path) -> None:
    for name in ("search", "chat", "elsewhere"):
        cluster.kubectl("create", "namespace", name)
    notes = installed.install("--values", str(CASES / "namespaced" / "values.yaml"))
    assert "kvloop 0.1.0 serves the namespaces search, chat." in notes
    audit = Audit(cluster)
    with operator(cluster, tmp_path / "operator.log") as process:
        sites = {name: Site(cluster, name, process) for name in ("search", "chat", "elsewhere")}
        for site in sites.values():
            site.create("mine")
        for name in ("search", "chat"):
            eventually(lambda: sites[name].condition("Ready", "mine"))  # noqa: B023 (called at once)
        settled(audit)
        assert sites["search"].children("mine").keys() == sites["chat"].children("mine").keys()
        assert not sites["elsewhere"].children("mine")
        eventually(lambda: process.metric("kvloop_canary_age_seconds") < 30)
    assert not refused(audit)
    with pytest.raises(KubectlError):
        cluster.kubectl(
            "auth", "can-i", "list", PLURAL, "-n=elsewhere", f"--as=system:serviceaccount:{SYSTEM}:{ACCOUNT}"
        )
    for site in sites.values():
        site.kubectl("delete", PLURAL, "mine")


def test_helm_takes_over_what_kubectl_installed(cluster: Client, installed: Helm, tmp_path: Path) -> None:
    cluster.kubectl("apply", "--server-side", f"--filename={ROOT / 'manifests' / 'install.yaml'}")
    cluster.wait_established(CRD_NAME)
    cluster.apply(resource("chat", "default"))
    with pytest.raises(HelmError, match="cannot be imported"):
        installed.install()
    before = essence(cluster.get(PLURAL, "chat"))
    for chart in ("kvloop-crds", "kvloop"):
        installed("upgrade", "--install", "--take-ownership", "--namespace", SYSTEM, chart, CHARTS / chart)
    assert essence(cluster.get(PLURAL, "chat")) == before
    with operator(cluster, tmp_path / "operator.log") as process:
        eventually(lambda: Site(cluster, "default", process).condition("Ready"))


def test_a_value_that_does_not_exist_installs_nothing(cluster: Client, installed: Helm) -> None:
    with pytest.raises(HelmError, match="metrics"):
        installed.install("--set", "metrics.enabled=true")
    with pytest.raises(KubectlError, match="not found"):
        cluster.get("deployment", ACCOUNT, SYSTEM)


def test_teams_without_cluster_rights_may_use_what_is_installed(cluster: Client, installed: Helm) -> None:
    """The API server aggregates the roles only with a controller manager; what they would add is shown all the same."""
    installed.install()
    for role, verb, allowed in (("edit", "create", True), ("view", "list", True), ("view", "create", False)):
        bound = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"{role}-{verb}", "namespace": "default"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"{ACCOUNT}-{role}"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": f"{role}-{verb}"}],
        }
        cluster.apply(bound)
        asked = ("auth", "can-i", verb, PLURAL, "--namespace=default", f"--as={role}-{verb}")
        if allowed:
            assert cluster.kubectl(*asked).strip() == "yes"
        else:
            with pytest.raises(KubectlError):
                cluster.kubectl(*asked)
