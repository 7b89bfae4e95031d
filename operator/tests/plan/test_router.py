"""The router's Deployment and configuration."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from kvloop.api import contract

Children = Callable[..., dict[tuple[str, str], dict[str, Any]]]
CONFIG_HASH = "kvloop.io/config-hash"


def config(children: Children, spec: dict[str, Any] | None = None) -> contract.RouterConfig:
    """As the router itself reads it."""
    text = children(spec)["ConfigMap", "chat-router"]["data"]["router.yaml"]
    return contract.parse(yaml.safe_load(text))


def pod(children: Children, spec: dict[str, Any] | None = None) -> dict[str, Any]:
    template: dict[str, Any] = children(spec)["Deployment", "chat-router"]["spec"]["template"]
    return template


def test_the_router_loads_what_the_operator_writes(children: Children) -> None:
    found = config(children)
    assert found.endpoints.endpoint_slices == contract.EndpointSlices(namespace="ns", name="chat", port_name="http")
    assert found.store.memory == contract.MemoryStore()
    assert (found.listen.port, found.admin.port) == (8000, 9090)
    assert found.api_keys_folder is None
    assert found.transfer == contract.Transfer()
    assert found.drain_seconds == 120


def test_every_setting_of_the_resource_arrives(children: Children) -> None:
    router = {
        "port": 80,
        "holdoutPercent": 7,
        "leaseSeconds": 99,
        "maxPinnedPercent": 33,
        "whenNoPrefill": "Fail",
        "tenantHeader": "X-Tenant",
        "store": {"memory": {"maxConversations": 5}},
        "deadlines": {"prefillSeconds": 1, "firstByteSeconds": 2, "idleSeconds": 3, "connectSeconds": 4},
    }
    transfer = {"bidirectional": False, "decoderKVBlocksTTLSeconds": 77, "kvRecomputeThresholdTokens": 8}
    spec = {"router": router, "transfer": transfer, "engine": {"shutdownTimeoutSeconds": 9}}
    found = config(children, spec)
    assert (found.holdout_percent, found.lease_seconds, found.max_pinned_percent) == (7, 99, 33)
    assert (found.when_no_prefill, found.tenant_header) == ("Fail", "X-Tenant")
    assert found.store.memory == contract.MemoryStore(max_conversations=5)
    assert found.deadlines == contract.Deadlines(
        prefill_seconds=1, first_byte_seconds=2, idle_seconds=3, connect_seconds=4
    )
    assert (found.transfer.bidirectional, found.transfer.decoder_kv_blocks_ttl_seconds) == (False, 77)
    assert (found.transfer.kv_recompute_threshold_tokens, found.drain_seconds) == (8, 9)
    assert children(spec)["Service", "chat"]["spec"]["ports"] == [{"name": "http", "port": 80, "targetPort": "http"}]


@pytest.mark.parametrize(
    ("tag", "bidirectional", "ttl"), [("0.20.1", False, 480), ("0.21.0", True, 480), ("0.22.0", True, 900)]
)
def test_the_router_believes_of_the_engines_what_they_were_really_told(
    tag: str, bidirectional: bool, ttl: int, children: Children
) -> None:
    spec = {"engine": {"image": f"registry.example/vllm:{tag}"}, "transfer": {"decoderKVBlocksTTLSeconds": 900}}
    transfer = config(children, spec).transfer
    assert (transfer.bidirectional, transfer.decoder_kv_blocks_ttl_seconds) == (bidirectional, ttl)


def test_secrets_are_mounted_and_never_read(children: Children) -> None:
    spec = {
        "router": {
            "apiKeysSecretRef": {"name": "keys"},
            "store": {"valkey": {"url": "rediss://store:6379/0", "passwordSecretRef": {"name": "db", "key": "pw"}}},
        }
    }
    found, spec_of_pod = config(children, spec), pod(children, spec)["spec"]
    volumes = {volume["name"]: volume.get("secret") for volume in spec_of_pod["volumes"]}
    mounts = {mount["name"]: mount for mount in spec_of_pod["containers"][0]["volumeMounts"]}
    assert volumes["api-keys"] == {"secretName": "keys"}
    assert str(found.api_keys_folder) == mounts["api-keys"]["mountPath"]
    assert volumes["store"] == {"secretName": "db", "items": [{"key": "pw", "path": "password"}]}
    assert found.store.valkey is not None
    assert found.store.valkey.url == "rediss://store:6379/0"
    assert str(found.store.valkey.password_file) == f"{mounts['store']['mountPath']}/password"
    assert all(mount["readOnly"] for mount in mounts.values())


def test_a_managed_valkey_is_the_routers_alone(children: Children) -> None:
    spec = {"router": {"store": {"valkey": {"managed": True}}}}
    planned = children(spec)
    store = config(children, spec).store.valkey
    assert store is not None
    assert store.url == "redis://chat-valkey.ns.svc.cluster.local:6379/0"
    assert planned["Service", "chat-valkey"]["spec"]["ports"][0]["port"] == 6379
    [rule] = planned["NetworkPolicy", "chat-valkey"]["spec"]["ingress"]
    assert rule["from"] == [
        {"podSelector": {"matchLabels": {"kvloop.io/name": "chat", "app.kubernetes.io/component": "router"}}}
    ]
    args = planned["Deployment", "chat-valkey"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--requirepass" not in args
    assert ("Deployment", "chat-valkey") not in children()


def test_a_managed_valkey_takes_the_password_from_its_secret(children: Children) -> None:
    valkey = {"managed": True, "passwordSecretRef": {"name": "db", "key": "pw"}}
    planned = children({"router": {"store": {"valkey": valkey}}})
    server = planned["Deployment", "chat-valkey"]["spec"]["template"]["spec"]["containers"][0]
    assert server["args"][-2:] == ["--requirepass", "$(PASSWORD)"]
    assert server["env"] == [{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "pw"}}}]


def test_settings_that_are_reloaded_restart_nothing(children: Children) -> None:
    before = pod(children)
    changes = ({"holdoutPercent": 9}, {"leaseSeconds": 60}, {"whenNoPrefill": "Fail"}, {"port": 81}, {"replicas": 0})
    for change in changes:
        assert pod(children, {"router": change}) == before
    assert pod(children, {"transfer": {"decoderKVBlocksTTLSeconds": 60}}) == before
    assert before["metadata"]["annotations"].keys() == {CONFIG_HASH}


def test_the_router_fits_the_restricted_profile(children: Children) -> None:
    for spec in (None, {"router": {"store": {"valkey": {"managed": True}}}}):
        for (kind, name), child in children(spec).items():
            if kind == "Deployment":
                restricted(name, child["spec"]["template"]["spec"])


def restricted(name: str, spec: dict[str, Any]) -> None:
    assert spec["securityContext"]["runAsNonRoot"] is True, name
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True


def test_probes_ask_the_admin_port(children: Children) -> None:
    [router] = pod(children)["spec"]["containers"]
    assert router["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "admin"}
    assert router["livenessProbe"]["httpGet"] == {"path": "/health", "port": "admin"}
    assert {port["name"]: port["containerPort"] for port in router["ports"]} == {"http": 8000, "admin": 9090}


def test_streams_end_within_the_grace_period(children: Children) -> None:
    spec = pod(children, {"engine": {"shutdownTimeoutSeconds": 300}})["spec"]
    pre_stop = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] == pre_stop + 300 + 15


def test_image_resources_and_environment_may_be_chosen(children: Children) -> None:
    env = [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}]
    chosen = {"image": "own/router:2", "resources": {"limits": {"cpu": "2"}}, "env": env}
    [router] = pod(children, {"router": chosen})["spec"]["containers"]
    assert router["env"] == env
    assert (router["image"], router["resources"]) == ("own/router:2", {"limits": {"cpu": "2"}})
    assert pod(children)["spec"]["containers"][0]["image"] == "registry.example/kvloop-router:1"


def test_the_router_may_read_endpoint_slices_of_its_namespace_and_nothing_else(children: Children) -> None:
    planned = children()
    assert planned["Role", "chat-router"]["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}
    ]
    binding = planned["RoleBinding", "chat-router"]
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "chat-router"}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "chat-router", "namespace": "ns"}]
    assert planned["ServiceAccount", "chat-router"]["automountServiceAccountToken"] is False
    assert pod(children)["spec"]["serviceAccountName"] == "chat-router"
    assert pod(children)["spec"]["automountServiceAccountToken"] is True
