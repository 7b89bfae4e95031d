"""What holds for every resource that the API server would admit."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it publishes no types
from hypothesis import given, settings
from hypothesis import strategies as st

from kvloop.api.instances import INSTANCE_TYPES
from kvloop.api.labels import Role
from kvloop.api.v1alpha1 import parse
from kvloop.api.validate import validate
from kvloop.plan.config import ApiAvailable, PlanConfig
from kvloop.plan.desired import Desired, blueprint, plan
from kvloop.plan.observed import Observed, Pod

Body = dict[str, Any]
CONFIG = PlanConfig(
    router_image="registry.example/kvloop-router:1",
    plugin_files={"kvloop/engine/plugin.py": "", "kvloop_engine-1.dist-info/METADATA": ""},
    api_available=ApiAvailable(pod_monitor=True),
)
DNS_LABEL = re.compile(r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")

names = st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True)
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
model_names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=12)
secret_keys = st.fixed_dictionaries({"name": names, "key": st.from_regex(r"[-._a-zA-Z0-9]{1,9}", fullmatch=True)})
quantities = st.sampled_from([1, 64, "500m", "16Gi", "2"])
variables = st.lists(
    st.fixed_dictionaries(
        {"name": st.from_regex(r"[A-Z]{3,8}_X", fullmatch=True)},
        optional={"value": words},
    ),
    max_size=3,
    unique_by=lambda variable: variable["name"],
)
arguments = st.lists(st.from_regex(r"--x-[a-z]{1,8}(=[!-~]{0,9})?", fullmatch=True), max_size=3)
sources = st.one_of(
    st.fixed_dictionaries({"path": st.just("/models/m")}),
    st.fixed_dictionaries({"s3": st.fixed_dictionaries({"uri": st.just("s3://bucket/m/")})}),
    st.fixed_dictionaries(
        {"volume": st.fixed_dictionaries({"claimName": names}, optional={"path": st.sampled_from(["", "m", "a/b"])})}
    ),
    st.fixed_dictionaries(
        {
            "huggingFace": st.fixed_dictionaries(
                {"repository": st.just("o/m")}, optional={"revision": words, "tokenSecretRef": secret_keys}
            )
        }
    ),
)
pod_templates = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries({"annotations": st.dictionaries(names, words, max_size=2)}),
        "spec": st.fixed_dictionaries(
            {"containers": st.lists(st.fixed_dictionaries({"name": names, "image": st.just("i")}), max_size=2)}
        ),
    },
)
tolerations = st.lists(st.just({"key": "team", "operator": "Exists"}), max_size=2)


def roles(gpus: int, fabric: str) -> st.SearchStrategy[Body]:
    return st.fixed_dictionaries(
        {"tensorParallelSize": st.just(gpus)},
        optional={
            "replicas": st.integers(0, 1024),
            "gpus": st.sampled_from([0, gpus] if fabric == "UCX" else [gpus]),
            "prefixCaching": st.booleans(),
            "resources": st.fixed_dictionaries(
                {},
                optional={
                    "requests": st.dictionaries(st.sampled_from(["cpu", "memory"]), quantities),
                    "limits": st.dictionaries(st.sampled_from(["cpu", "memory"]), quantities),
                },
            ),
            "args": arguments,
            "env": variables,
            "podTemplate": pod_templates,
            "maxUnavailable": st.integers(1, 9),
        },
    )


stores = st.one_of(
    st.fixed_dictionaries(
        {"valkey": st.fixed_dictionaries({"managed": st.just(True)}, optional={"passwordSecretRef": secret_keys})}
    ),
    st.fixed_dictionaries({"valkey": st.just({"url": "redis://v:6379/0"})}),
)
routers = st.fixed_dictionaries(
    {"store": stores},
    optional={
        "replicas": st.integers(0, 9),
        "port": st.integers(1, 65535),
        "apiKeysSecretRef": st.fixed_dictionaries({"name": names}),
        "holdoutPercent": st.integers(0, 100),
        "leaseSeconds": st.integers(15, 480),
        "whenNoPrefill": st.sampled_from(["Fail", "DecodeLocally"]),
        "tenantHeader": st.just("X-Tenant"),
    },
)


@st.composite
def resources(draw: st.DrawFn) -> Body:
    """A resource that the CRD admits."""
    kind = draw(st.sampled_from([None, *(name for name, row in INSTANCE_TYPES.items() if row.efa)]))
    most = INSTANCE_TYPES[kind].gpus if kind else 8
    gpus = draw(st.sampled_from([count for count in (1, 2, 4, 8) if count <= most]))
    fabric = draw(st.sampled_from(["EFA", "UCX"]))
    efa = st.fixed_dictionaries(
        {},
        optional={
            "mechanism": st.sampled_from(["DevicePlugin", "DynamicResourceAllocation"]),
            "devicesPerPod": st.integers(1, INSTANCE_TYPES[kind].efa if kind else 32),
            "hugepages2Mi": st.just("5120Mi"),
            "deviceRDMA": st.booleans(),
        },
    )
    transfer = st.fixed_dictionaries(
        {"fabric": st.just(fabric), **({"efa": efa} if fabric == "EFA" else {})},
        optional={
            "bidirectional": st.booleans(),
            "decoderKVBlocksTTLSeconds": st.integers(480, 86400),
            "kvRecomputeThresholdTokens": st.integers(0, 1 << 20),
            "kvLeaseDurationSeconds": st.integers(5, 86400),
        },
    )
    placement = st.fixed_dictionaries(
        {} if kind is None else {"instanceType": st.just(kind)},
        optional={
            "zone": st.just("us-east-1a"),
            "sameZone": st.sampled_from(["Required"] if fabric == "EFA" else ["Required", "Preferred", "None"]),
            "tolerations": tolerations,
            "placementGroup": st.just("pg-1"),
            "capacityReservation": st.just("cr-1"),
        },
    )
    engine = st.fixed_dictionaries(
        {"image": st.sampled_from(["vllm/vllm-openai:v0.32.0", "r.example:5000/vllm@sha256:00", "vllm:0.24.0"])},
        optional={
            "args": arguments,
            "env": variables,
            "blockSize": st.sampled_from([16, 64]),
            "shutdownTimeoutSeconds": st.integers(1, 86400),
            "imagePullSecrets": st.lists(st.fixed_dictionaries({"name": names}), max_size=2, unique_by=str),
        },
    )
    spec = {
        "model": {"name": draw(model_names), "source": draw(sources)},
        "engine": draw(engine),
        "prefill": draw(roles(gpus, fabric)),
        "decode": draw(roles(gpus, fabric)),
        "transfer": draw(transfer),
        "placement": draw(placement),
        "router": draw(routers),
    }
    return {
        "apiVersion": "kvloop.io/v1alpha1",
        "kind": "DisaggregatedInference",
        "metadata": {"name": draw(names), "namespace": "ns", "uid": "1-2-3"},
        "spec": spec,
    }


PODS = st.lists(
    st.builds(
        Pod,
        name=st.integers(0, 9).map(lambda number: f"x-{number}"),
        uid=st.just("u"),
        component=st.sampled_from([*Role, "router"]),
        revision=st.sampled_from(["", "0123456789", "abcdefabcd"]),
        ready=st.booleans(),
    ),
    max_size=6,
)
quick = settings(max_examples=30)


def planned(body: Body, observed: Observed | None = None) -> Desired:
    return plan(parse(body), observed, CONFIG)


@settings(quick, max_examples=15)
@given(resources())
def test_a_blueprint_survives_being_written_down(body: Body) -> None:
    """As the controller keeps it: nothing in it is more than JSON."""
    cr = parse(body)
    made = blueprint(cr, CONFIG)
    read = tuple(json.loads(json.dumps(child)) for child in made.children)
    assert plan(cr, None, CONFIG, replace(made, children=read)) == plan(cr, None, CONFIG)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


@settings(quick, max_examples=15)
@given(resources())
def test_the_resources_here_are_such_as_the_api_server_admits(body: Body) -> None:
    assert validate(body) == []


@settings(quick, max_examples=8)  # reading the schemas takes long, and the goldens are checked too
@given(resources(), PODS)
def test_every_child_fits_the_upstream_schema(body: Body, pods: list[Pod]) -> None:
    for child in planned(body, Observed(0.0, pods=tuple(pods))).children:
        if child["kind"] != "PodMonitor":
            kubernetes_validate.validate(child, "1.37", strict=True)


@quick
@given(resources())
def test_equal_resources_have_equal_plans_whatever_the_order_of_their_fields(body: Body) -> None:
    before = deepcopy(body)
    turned = {key: body[key] for key in reversed(body)} | {
        "spec": {key: body["spec"][key] for key in reversed(body["spec"])}
    }
    assert json.dumps(planned(body).children) == json.dumps(planned(turned).children)
    assert planned(body) == planned(body)
    assert body == before


@quick
@given(resources(), PODS)
def test_names_are_unique_dns_labels(body: Body, pods: list[Pod]) -> None:
    children = planned(body, Observed(0.0, pods=tuple(pods))).children
    identities = [(child["kind"], child["metadata"]["name"]) for child in children]
    assert len(set(identities)) == len(identities)
    assert all(DNS_LABEL.match(name) for _, name in identities)
    # A StatefulSet's pods carry its name and ten characters more in a label of at most 63.
    assert all(len(name) <= 52 for kind, name in identities if kind == "StatefulSet")


@quick
@given(resources())
def test_both_roles_agree_on_what_they_must_share(body: Body) -> None:
    prefill, decode = (child["spec"]["template"] for child in planned(body).children if child["kind"] == "StatefulSet")
    for label in ("kvloop.io/revision", "kvloop.io/name"):
        assert prefill["metadata"]["labels"][label] == decode["metadata"]["labels"][label]
    engines = [template["spec"]["containers"][0] for template in (prefill, decode)]
    assert engines[0]["image"] == engines[1]["image"]
    assert engines[0]["args"][0] == engines[1]["args"][0]
    connectors = [
        json.loads(argument.partition("=")[2])["kv_connector_extra_config"]
        for engine in engines
        for argument in engine["args"]
        if argument.startswith("--kv-transfer-config=")
    ]
    assert len(connectors) == 2
    assert connectors[0] == connectors[1]


@quick
@given(resources())
def test_devices_are_limited_as_requested_and_never_claimed_as_well(body: Body) -> None:
    for child in planned(body).children:
        if child["kind"] == "StatefulSet":
            resources_of = child["spec"]["template"]["spec"]["containers"][0].get("resources", {})
            limits, requests = resources_of.get("limits", {}), resources_of.get("requests", {})
            for name in ("vpc.amazonaws.com/efa", "nvidia.com/gpu", "hugepages-2Mi"):
                assert limits.get(name) == requests.get(name)
            assert not ("claims" in resources_of and "vpc.amazonaws.com/efa" in limits)


@quick
@given(resources())
def test_nothing_is_planned_during_deletion(body: Body) -> None:
    body["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    desired = planned(body)
    assert desired.children == ()
    assert desired.delete_pods == ()


@quick
@given(resources())
def test_replicas_are_sent_only_if_stated(body: Body) -> None:
    sent = {
        child["metadata"]["name"]: child["spec"] for child in planned(body).children if child["kind"] == "StatefulSet"
    }
    for role in Role:
        spec = sent[f"{body['metadata']['name']}-{role}"]
        assert spec.get("replicas") == body["spec"][role].get("replicas")
        assert ("replicas" in spec) == ("replicas" in body["spec"][role])


@quick
@given(resources())
def test_every_volume_mount_has_its_volume(body: Body) -> None:
    for child in planned(body).children:
        if child["kind"] in ("StatefulSet", "Deployment"):
            pod = child["spec"]["template"]["spec"]
            volumes = [volume["name"] for volume in pod.get("volumes", [])]
            assert len(set(volumes)) == len(volumes)
            for container in pod["containers"]:
                assert {mount["name"] for mount in container.get("volumeMounts", [])} <= set(volumes)


@quick
@given(resources())
def test_secrets_stand_in_the_plan_by_name_only(body: Body) -> None:
    """The planner never sees a Secret; what it is given of one must come out as a reference and nowhere else."""
    source = body["spec"]["model"]["source"].get("huggingFace", {})
    source["tokenSecretRef"] = {"name": "the-token", "key": "the-key"}
    body["spec"]["model"]["source"] = {"huggingFace": {"repository": "o/m", **source}}
    body["spec"]["router"]["apiKeysSecretRef"] = {"name": "the-keys"}
    for child in planned(body).children:
        found = {text for text in strings(child) if text in ("the-token", "the-key", "the-keys")}
        expected = {
            "StatefulSet": {"the-token", "the-key"},
            "Deployment": {"the-keys"} if child["metadata"]["name"].endswith("-router") else set(),
        }
        assert found == expected.get(child["kind"], set())
