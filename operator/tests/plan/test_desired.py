"""The whole plan."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvloop.api.labels import Role
from kvloop.plan.config import ApiAvailable, PlanConfig
from kvloop.plan.desired import plan
from kvloop.plan.observed import Child, ChildRef, Observed, Pod, Workload

Make = Callable[..., Any]
Children = Callable[..., dict[tuple[str, str], dict[str, Any]]]


def kinds(children: tuple[dict[str, Any], ...]) -> list[str]:
    return [child["kind"] for child in children]


def observed(*pods: Pod, **replicas: int) -> Observed:
    workloads = {
        ChildRef("StatefulSet", f"chat-{role}"): Child(
            ChildRef("StatefulSet", f"chat-{role}"), "u", "1-2-3", workload=Workload(replicas=count)
        )
        for role, count in replicas.items()
    }
    return Observed(now=0.0, children=workloads, pods=pods)


def test_what_others_refer_to_comes_first(make: Make, config: PlanConfig) -> None:
    order = kinds(plan(make(), None, config).children)
    first = {kind: order.index(kind) for kind in set(order)}
    assert first["ServiceAccount"] < first["Role"] < first["RoleBinding"] < first["Deployment"]
    assert first["ConfigMap"] < first["StatefulSet"]
    assert first["Service"] < first["StatefulSet"]
    assert order[-1] == "PodMonitor"


def test_no_child_is_planned_during_deletion(make: Make, config: PlanConfig) -> None:
    deleting = plan(make(deletion_timestamp="2030-01-01T00:00:00Z"), None, config)
    assert deleting.children == ()
    assert deleting.revision == plan(make(), None, config).revision
    assert plan(make(deletionTimestamp="2030-01-01T00:00:00Z"), None, config).children == ()


def test_no_owner_without_a_uid(children: Children) -> None:
    assert all("ownerReferences" not in child["metadata"] for child in children(uid="").values())


def test_replicas_of_somebody_else_are_not_sent(children: Children) -> None:
    planned = children({"prefill": {"replicas": None}, "decode": {"replicas": 0}})
    assert "replicas" not in planned["StatefulSet", "chat-prefill"]["spec"]
    assert planned["StatefulSet", "chat-decode"]["spec"]["replicas"] == 0


def test_the_statefulset(children: Children) -> None:
    spec = children()["StatefulSet", "chat-decode"]["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["serviceName"] == "chat-decode"
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert spec["selector"]["matchLabels"] == {"kvloop.io/name": "chat", "kvloop.io/role": "decode"}


def test_a_governing_service_names_every_pod(children: Children) -> None:
    service = children()["Service", "chat-prefill"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert not {"kvloop.io/role", "kvloop.io/revision"} & service["metadata"]["labels"].keys()


@pytest.mark.parametrize("role", list(Role))
def test_a_routing_service_tells_role_and_revision(
    role: Role, make: Make, children: Children, config: PlanConfig
) -> None:
    revision = plan(make(), None, config).revision
    service = children()["Service", f"chat-{role}-{revision}"]
    wanted = {"kvloop.io/name": "chat", "kvloop.io/role": role.value, "kvloop.io/revision": revision}
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == wanted
    assert wanted.items() <= service["metadata"]["labels"].items()
    assert "publishNotReadyAddresses" not in service["spec"]
    pods = children()["StatefulSet", f"chat-{role}"]["spec"]["template"]["metadata"]["labels"]
    assert wanted.items() <= pods.items()


def test_an_older_revision_keeps_its_routing_service_while_it_has_pods(children: Children) -> None:
    old = Pod(name="chat-prefill-0", uid="a", component="prefill", revision="0123456789")
    leaving = Pod(name="chat-decode-0", uid="b", component="decode", revision="9876543210", deleting=True)
    router = Pod(name="chat-router-x", uid="c", component="router")
    planned = children(observed=observed(old, leaving, router))
    services = [name for kind, name in planned if kind == "Service"]
    assert "chat-prefill-0123456789" in services
    assert "chat-decode-9876543210" in services
    assert "chat-decode-0123456789" not in services
    assert len(services) == 7


def test_what_is_nested_deeper_than_any_pod_is_left_to_the_api_server(children: Children) -> None:
    """Which refuses it with the name of the field; the CRD takes such a thing where it does not look."""
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep}
    variables, tolerations = [{"name": "A", "valueFrom": deep}], [deep]
    spec = {
        "prefill": {"podTemplate": {"spec": {"affinity": deep}}},
        "decode": {"env": variables},
        "router": {"env": variables},
        "placement": {"tolerations": tolerations},
    }
    planned = children(spec)
    prefill, decode = (planned["StatefulSet", f"chat-{role}"]["spec"]["template"]["spec"] for role in Role)
    router = planned["Deployment", "chat-router"]["spec"]["template"]["spec"]
    affinity = prefill["affinity"]
    for _ in range(300):
        affinity = affinity["a"]
    assert variables[0] in decode["containers"][0]["env"]
    assert variables[0] in router["containers"][0]["env"]
    assert deep in decode["tolerations"]


@pytest.mark.parametrize(("replicas", "budget"), [(0, False), (1, False), (2, True), (9, True)])
def test_a_budget_only_where_a_pod_can_be_spared(replicas: int, budget: bool, children: Children) -> None:
    planned = children({"prefill": {"replicas": replicas}})
    assert (("PodDisruptionBudget", "chat-prefill") in planned) is budget


def test_a_budget_follows_an_autoscaler(children: Children) -> None:
    spec = {"prefill": {"replicas": None}}
    assert ("PodDisruptionBudget", "chat-prefill") not in children(spec)
    assert ("PodDisruptionBudget", "chat-prefill") not in children(spec, observed(prefill=1))
    planned = children(spec, observed(prefill=3))
    assert planned["PodDisruptionBudget", "chat-prefill"]["spec"]["maxUnavailable"] == 1


def test_a_budget_for_several_routers(children: Children) -> None:
    spec = {"router": {"replicas": 2, "store": {"valkey": {"url": "redis://v"}}}}
    assert ("PodDisruptionBudget", "chat-router") in children(spec)
    assert ("PodDisruptionBudget", "chat-router") not in children()


def test_engines_are_reached_by_routers_watchers_and_each_other(children: Children) -> None:
    http, between = children()["NetworkPolicy", "chat-engines"]["spec"]["ingress"]
    assert http["ports"] == [{"port": "http"}]
    router, operator, prometheus = http["from"]
    assert router["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "router"
    assert operator["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "kvloop-system"}
    assert operator["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "operator"
    assert prometheus == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert "ports" not in between
    assert between["from"][0]["podSelector"]["matchLabels"] == {"kvloop.io/name": "chat"}


def test_clients_reach_the_router_and_only_watchers_its_admin_port(children: Children) -> None:
    clients, admin = children()["NetworkPolicy", "chat-router"]["spec"]["ingress"]
    assert clients == {"ports": [{"port": "http"}]}
    assert admin["ports"] == [{"port": "admin"}]
    assert len(admin["from"]) == 2


@pytest.mark.parametrize(
    ("mode", "served", "made"),
    [("Auto", True, True), ("Auto", False, False), ("Enabled", False, True), ("Disabled", True, False)],
)
def test_pod_monitors(mode: str, served: bool, made: bool, make: Make, config: PlanConfig) -> None:
    settings = replace(config, api_available=ApiAvailable(pod_monitor=served))
    children = plan(make({"monitoring": {"podMonitor": mode}}), None, settings).children
    ports = [child["spec"]["podMetricsEndpoints"][0]["port"] for child in children if child["kind"] == "PodMonitor"]
    assert ports == (["http", "admin"] if made else [])


def test_the_client_service(children: Children) -> None:
    service = {"type": "LoadBalancer", "annotations": {"a": "b"}}
    found = children({"router": {"service": service}})["Service", "chat"]
    assert found["spec"]["type"] == "LoadBalancer"
    assert found["metadata"]["annotations"] == {"a": "b"}
    assert "annotations" not in children()["Service", "chat"]["metadata"]


def test_the_url(make: Make, config: PlanConfig) -> None:
    settings = replace(config, cluster_domain="example.internal")
    assert plan(make({"router": {"port": 81}}), None, settings).url == "http://chat.ns.svc.example.internal:81"


def test_keys_of_the_plugin_stay_the_same_over_versions(make: Make, config: PlanConfig) -> None:
    """Pods of the last release, which restart during an upgrade, must still find theirs."""
    newer = {path.replace("kvloop_engine-1.", "kvloop_engine-2."): text for path, text in config.plugin_files.items()}
    keys = [
        next(child for child in plan(make(), None, settings).children if child["kind"] == "ConfigMap")["data"].keys()
        for settings in (config, replace(config, plugin_files=newer))
    ]
    assert keys[0] == keys[1] == {"kvloop.__init__.py", "kvloop.engine.plugin.py", "METADATA", "entry_points.txt"}
