"""The operator on a real API server, with the rights of its own ClusterRole: what it writes, and what it does not."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from e2e.cluster import Client, KubectlError, eventually
from e2e.control.harness import ACCOUNT, NAMESPACE, OperatorProcess, Site, install, settled
from e2e.site import resource
from kvloop.api.labels import PLURAL
from kvloop.cli.main import app

pytestmark = pytest.mark.api

ELSEWHERE = {"spec": {"selector": {"kvloop.io/name": "elsewhere"}}}


@pytest.fixture(scope="module")
def kubeconfig(api_cluster: Client) -> Path:
    return install(api_cluster)


@pytest.fixture(scope="module")
def operator(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    with OperatorProcess(kubeconfig, tmp_path_factory.mktemp("operator") / "operator.log") as process:
        yield process


@pytest.fixture
def site(api_cluster: Client, operator: OperatorProcess, namespace: str) -> Site:
    operator.ensure()
    return Site(api_cluster, namespace, operator)


@pytest.fixture
def chat(site: Site) -> Iterator[Site]:
    """With a custom resource `chat`, all of whose children are there."""
    with site.served() as served:
        yield served


def test_every_child_is_there_owned_and_touched_by_kvloop_alone(chat: Site) -> None:
    uid = chat.get(PLURAL, "chat")["metadata"]["uid"]
    found = chat.children()
    kinds = {kind for kind, _ in found}
    assert {"StatefulSet", "Deployment", "Service", "ConfigMap", "ServiceAccount", "Role", "RoleBinding"} <= kinds
    for child in found.values():
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (uid, True)
        writers = [entry for entry in child["metadata"]["managedFields"] if not entry.get("subresource")]
        assert [(entry["manager"], entry["operation"]) for entry in writers] == [("kvloop", "Apply")]


def test_of_the_custom_resource_only_the_status_is_written(chat: Site) -> None:
    (body,) = chat.items(PLURAL, "--show-managed-fields")
    ours = [entry for entry in body["metadata"]["managedFields"] if entry["manager"] == "kvloop"]
    assert [(entry["operation"], entry["subresource"]) for entry in ours] == [("Apply", "status")]
    assert "finalizers" not in body["metadata"]
    assert not [name for name in body["metadata"].get("annotations", {}) if "kvloop.io" in name or "kopf" in name]
    assert body["metadata"]["generation"] == 1


def test_a_change_writes_only_the_children_that_it_concerns(chat: Site) -> None:
    audit = chat.audit()
    chat.patch({"router": {"holdoutPercent": 7}})
    eventually(lambda: audit.writes()["patch", f"{PLURAL}/status"])
    settled(audit)
    assert audit.writes() == {("patch", "configmaps"): 1, ("patch", f"{PLURAL}/status"): 1}


def test_a_restart_writes_nothing(chat: Site) -> None:
    audit = chat.audit()
    assert chat.operator.terminate() == 0
    chat.operator.start()
    eventually(lambda: chat.operator.metric('kvloop_reconcile_total{result="ok"}'))
    settled(audit)
    assert not audit.writes()


def test_two_operators_by_mistake_do_not_fight(chat: Site, kubeconfig: Path, tmp_path: Path) -> None:
    audit = chat.audit()
    with OperatorProcess(kubeconfig, tmp_path / "second.log") as second:
        eventually(lambda: second.metric('kvloop_reconcile_total{result="ok"}'))
        settled(audit)
        assert not audit.writes()
        chat.patch({"router": {"holdoutPercent": 7}})
        eventually(lambda: audit.writes()["patch", f"{PLURAL}/status"])
        settled(audit)
        assert 1 <= audit.writes()["patch", "configmaps"] <= 2


def test_an_edit_of_what_is_ours_is_undone_with_one_write(chat: Site) -> None:
    audit = chat.audit()
    before = chat.get("service", "chat")["spec"]["selector"]
    chat.edit("service", "chat", ELSEWHERE)
    eventually(lambda: chat.get("service", "chat")["spec"]["selector"] == before)
    settled(audit)
    assert audit.writes() == {("patch", "services"): 1}


def test_an_edit_made_while_the_operator_was_away_is_undone(chat: Site) -> None:
    before = chat.get("service", "chat")["spec"]["selector"]
    chat.operator.terminate()
    chat.edit("service", "chat", ELSEWHERE)
    chat.operator.start()
    eventually(lambda: chat.get("service", "chat")["spec"]["selector"] == before)


def test_an_edit_of_what_is_not_ours_stays(chat: Site) -> None:
    audit = chat.audit()
    note = {"metadata": {"annotations": {"example.com/note": "keep"}}, "spec": {"minReadySeconds": 3}}
    chat.edit("deployment", "chat-router", note)
    settled(audit)
    assert not audit.writes()
    body = chat.get("deployment", "chat-router")
    assert body["metadata"]["annotations"]["example.com/note"] == "keep"
    assert body["spec"]["minReadySeconds"] == 3


def test_somebody_who_insists_is_met_ever_more_slowly(chat: Site) -> None:
    audit = chat.audit()
    for number in range(12):
        chat.edit("service", "chat", {"spec": {"selector": {"kvloop.io/name": f"elsewhere-{number}"}}})
    settled(audit, quiet_s=5)
    assert 1 <= audit.writes()["patch", "services"] <= 4


def test_a_deleted_child_comes_back(chat: Site) -> None:
    uid = chat.get("configmap", "chat-router")["metadata"]["uid"]
    chat.kubectl("delete", "configmap", "chat-router")
    eventually(lambda: chat.get("configmap", "chat-router")["metadata"]["uid"] != uid)


def test_a_child_that_lost_its_labels_gets_them_back(chat: Site) -> None:
    uid = chat.get("service", "chat")["metadata"]["uid"]
    chat.edit("service", "chat", {"metadata": {"labels": None}})
    eventually(lambda: ("Service", "chat") in chat.children())
    assert chat.get("service", "chat")["metadata"]["uid"] == uid


def test_a_resource_nested_as_deep_as_the_api_server_takes_blinds_nobody(site: Site) -> None:
    """Whatever a watch brings is read in this one process: Python's own limit would end it, again and again."""
    deep = '{"a":' * 4000 + "1" + "}" * 4000
    template = {"replicas": 0, "gpus": 0, "podTemplate": {"spec": {"affinity": "DEEP"}}}
    text = json.dumps(resource("deep", site.namespace, prefill=template)).replace('"DEEP"', deep)
    site.cluster.kubectl("create", "--filename=-", input=text)
    stalled = "jsonpath={.status.conditions[?(@.type=='Stalled')].message}"
    told = eventually(lambda: site.kubectl("get", PLURAL, "deep", "--output", stalled))
    assert told == "StatefulSet deep-prefill: .spec.template.spec.affinity.a: field not declared in schema"
    with site.served():
        assert site.children()
    where = ["--kubeconfig", str(site.cluster.kubeconfig), "--namespace", site.namespace]
    shown = CliRunner().invoke(app, ["status", "deep", *where], catch_exceptions=False)
    assert "affinity.a: field not declared" in " ".join(shown.stdout.split())
    site.kubectl("delete", PLURAL, "deep")


def test_a_name_that_is_taken_is_told_and_never_overwritten(site: Site) -> None:
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "chat-router"}, "data": {"mine": "yes"}}
    site.cluster.apply(theirs, site.namespace)
    site.create()
    stalled = site.wait_for("Stalled", "True", "NameConflict")
    assert "ConfigMap chat-router" in stalled["message"]
    body = site.get("configmap", "chat-router")
    assert body["data"] == {"mine": "yes"}
    assert not {"ownerReferences", "labels"} & body["metadata"].keys()
    assert ("StatefulSet", "chat-prefill") in site.children(), "the others are not held up"
    site.kubectl("delete", "configmap", "chat-router")
    site.wait_for("Stalled", "False", timeout_s=90)


def test_orphans_of_a_former_resource_are_adopted(chat: Site) -> None:
    before = chat.children()
    chat.operator.terminate()
    for kind, name in before:  # as --cascade=orphan leaves them where there is a garbage collector, and here too
        chat.edit(kind, name, {"metadata": {"ownerReferences": None}})
    chat.kubectl("delete", PLURAL, "chat")
    uid = chat.create()["metadata"]["uid"]
    chat.operator.start()

    def adopted() -> bool:
        owners = [child["metadata"].get("ownerReferences") for child in chat.children().values()]
        return all(owner and owner[0]["uid"] == uid for owner in owners)

    eventually(adopted)
    uids = {name: body["metadata"]["uid"] for name, body in before.items()}
    assert {name: body["metadata"]["uid"] for name, body in chat.children().items()} == uids


def test_a_misspelt_pod_template_field_stalls_with_its_path_and_heals(site: Site) -> None:
    misspelt = {"podTemplate": {"spec": {"terminationGracePeriodSecond": 5}}}
    site.create(prefill={"replicas": 2, "gpus": 0, **misspelt})
    stalled = site.wait_for("Stalled", "True", "InvalidPodTemplate")
    assert "spec.template.spec.terminationGracePeriodSecond" in stalled["message"]
    audit = site.audit()
    site.edit("service", "chat", ELSEWHERE)
    eventually(lambda: audit.writes()["patch", "services"])
    settled(audit)
    assert audit.writes()["patch", "statefulsets"] == 0, "what was refused for good is not sent again"
    site.patch({"prefill": {"podTemplate": None}})
    site.wait_for("Stalled", "False")
    assert ("StatefulSet", "chat-prefill") in site.children()


def test_an_immutable_field_stalls_with_its_name_and_heals(chat: Site) -> None:
    labels = chat.get("statefulset", "chat-prefill")["spec"]["selector"]["matchLabels"]
    chat.operator.terminate()
    chat.kubectl("delete", "statefulset", "chat-prefill")
    other = chat.children()["StatefulSet", "chat-decode"]
    other["spec"]["selector"]["matchLabels"] = {"other": "selector"}
    other["spec"]["template"]["metadata"]["labels"] |= {"other": "selector"}
    meta = {key: other["metadata"][key] for key in ("labels", "namespace", "ownerReferences")}
    body = {"apiVersion": "apps/v1", "kind": "StatefulSet", "spec": other["spec"]}
    chat.cluster.apply(body | {"metadata": meta | {"name": "chat-prefill"}}, chat.namespace)
    chat.operator.start()
    stalled = chat.wait_for("Stalled", "True", "ImmutableField")
    assert "spec.selector" in stalled["message"]
    chat.kubectl("delete", "statefulset", "chat-prefill")
    chat.wait_for("Stalled", "False")
    assert chat.get("statefulset", "chat-prefill")["spec"]["selector"]["matchLabels"] == labels


def test_a_child_no_longer_wanted_is_deleted(chat: Site) -> None:
    budget = ("PodDisruptionBudget", "chat-decode")
    assert budget in chat.children()
    chat.patch({"decode": {"replicas": 1}})
    eventually(lambda: budget not in chat.children())


def test_health_metrics_and_logs(chat: Site) -> None:
    operator = chat.operator
    assert httpx.get(f"{operator.url}/healthz", trust_env=False, timeout=60).json()["canaryAgeSeconds"] < 90
    assert operator.metric('kvloop_reconcile_total{result="ok"}') >= 1
    assert operator.metric('kvloop_api_requests_total{code="200",kind="StatefulSet",verb="apply"}') >= 2
    assert operator.metric('kvloop_build_info{version="0.1.0"}') == 1
    lines = [line for line in operator.lines("applied") if "StatefulSet chat-prefill" in line["message"]]
    line = next(line["object"] for line in lines if line["object"]["namespace"] == chat.namespace)
    assert (line["kind"], line["name"]) == ("DisaggregatedInference", "chat")


@pytest.mark.usefixtures("kubeconfig")
def test_the_role_gives_what_is_needed_and_no_more(api_cluster: Client) -> None:
    user = f"--as=system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
    refused = [(verb, "secrets") for verb in ("get", "list", "watch", "create", "delete")]
    refused += [("create", "pods"), ("patch", PLURAL), ("create", "clusterroles")]
    for verb, what in refused:
        with pytest.raises(KubectlError):
            api_cluster.kubectl("auth", "can-i", verb, what, "--all-namespaces", user)
