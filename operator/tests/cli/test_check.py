"""`kvloop check`, before anything runs: each thing that stands in the way is found, and what to do is said."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvloop import __version__
from kvloop.api.crd import definition
from kvloop.api.v1alpha1 import parse
from kvloop.cli.checks import spec
from kvloop.cli.checks.finding import Finding, Level
from kvloop.kube.errors import ForbiddenError, InvalidError, NotFoundError
from kvloop.plan.config import PlanConfig
from kvloop.plan.scope import Scope

from .doubles import Body, Cluster, connect, operator, resource, run

GPU, NIC = "nvidia.com/gpu", "vpc.amazonaws.com/efa"
SIDE: Body = {"replicas": 1, "tensorParallelSize": 8}
EFA: Body = {
    "engine": {"image": "registry.example/vllm@sha256:" + 64 * "0", "version": "0.32.0"},
    "prefill": SIDE,
    "decode": SIDE,
    "transfer": {"fabric": "EFA"},
    "placement": {"instanceType": "p5en.48xlarge"},
}


def node(name: str, zone: str = "a", **changes: Any) -> Body:
    """A p5en with everything free."""
    labels = {"node.kubernetes.io/instance-type": "p5en.48xlarge", "topology.kubernetes.io/zone": zone}
    allocatable = {
        "cpu": "190",
        "memory": "1937332Mi",
        "pods": "100",
        "nvidia.com/gpu": "8",
        "vpc.amazonaws.com/efa": "16",
    }
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]} | changes.pop("spec", {}),
        "status": {"allocatable": allocatable | changes},
    }


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Where the resource `EFA` would run."""
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    namespace = {"kind": "Namespace", "metadata": {"name": "team", "labels": labels}}
    crd = json.loads(json.dumps(definition()).replace('"properties": {}, ', "").replace(', "properties": {}', ""))
    cluster = Cluster(crd, operator(), namespace, node("n1"), node("n2"))
    connect(monkeypatch, cluster)
    return cluster


Check = Callable[..., dict[str, Finding]]


@pytest.fixture
def check(cluster: Cluster, tmp_path: Path) -> Check:
    """Findings about a file with a resource, by check."""

    def run_check(**changes: Any) -> dict[str, Finding]:
        path = tmp_path / "chat.yaml"
        body = resource(**EFA | changes)
        path.write_text(yaml.safe_dump({**body, "metadata": {"name": "chat"}, "status": None}))
        result = run("check", "-f", path, "-o", "json")
        told = json.loads(result.stdout)
        assert result.exit_code == (told["level"] == "fail")
        return {
            each["check"]: Finding(each["check"], Level(each["level"]), each["detail"], each["remedy"])
            for each in told["checks"]
        }

    return run_check


def problems(found: dict[str, Finding]) -> dict[str, Level]:
    """All that is not well; and each of these has a remedy."""
    assert all(each.remedy for each in found.values() if each.level is not Level.OK)
    return {name: each.level for name, each in found.items() if each.level is not Level.OK}


def test_all_is_well(check: Check) -> None:
    found = check()
    assert problems(found) == {}
    assert {
        "Kubernetes",
        "CRD",
        "Operator",
        "Resource",
        "Admission",
        "vLLM",
        "Engine image",
        "Instance type",
        "Nodes",
    } <= set(found)
    assert found["Nodes"].detail.startswith("room for all 2 engines in zone a")
    assert found["Instance type"].detail.endswith("prefill 8+16, decode 8+16")


def test_as_text(cluster: Cluster, tmp_path: Path) -> None:
    result = run("check")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "ok    Kubernetes: v1.34.2",
        f"ok    CRD: as in kvloop {__version__}",
        f"ok    Operator: kvloop/operator:{__version__} in kvloop-system",
        "3 ok, 0 warn, 0 fail",
    ]
    cluster.kubernetes = "v1.29.1-eks"
    result = run("check")
    assert result.exit_code == 1
    assert "fail  Kubernetes: v1.29.1-eks is too old\n      -> upgrade the cluster" in result.stdout


def old_crd(cluster: Cluster) -> None:
    crd = deepcopy(definition())
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].pop("router")
    cluster.add(crd)


def forbid(kind: str) -> Callable[[Cluster], None]:
    def change(cluster: Cluster) -> None:
        cluster.errors[kind] = ForbiddenError(f'User "me" cannot get resource "{kind}"', 403)

    return change


def without(kind: str) -> Callable[[Cluster], None]:
    def change(cluster: Cluster) -> None:
        cluster.objects = {key: body for key, body in cluster.objects.items() if key[0] != kind}

    return change


def stopped(cluster: Cluster) -> None:
    cluster.add({**operator(), "status": {}})


def level(name: str) -> Callable[[Cluster], None]:
    def change(cluster: Cluster) -> None:
        labels = {"pod-security.kubernetes.io/enforce": name}
        cluster.add({"kind": "Namespace", "metadata": {"name": "team", "labels": labels}})

    return change


def quota(hard: Body, used: Body) -> Callable[[Cluster], None]:
    def change(cluster: Cluster) -> None:
        meta = {"name": "q", "namespace": "team"}
        cluster.add({"kind": "ResourceQuota", "metadata": meta, "status": {"hard": hard, "used": used}})

    return change


def nodes(*bodies: Body) -> Callable[[Cluster], None]:
    def change(cluster: Cluster) -> None:
        without("Node")(cluster)
        for body in bodies:
            cluster.add(body)

    return change


def refusing(error: Exception) -> Callable[[Cluster], None]:
    return lambda cluster: setattr(cluster, "refusal", error)


OK, WARN, FAIL = Level
BOTH = ("Nodes for prefill", "Nodes for decode")
TAINTED = {"taints": [{"key": "mine", "effect": "NoExecute"}]}


@pytest.mark.parametrize(
    ("change", "expected", "says"),
    [
        (lambda c: setattr(c, "kubernetes", "v1.30.9"), {"Kubernetes": FAIL}, "too old"),
        (without("CustomResourceDefinition"), {"CRD": FAIL}, "not installed"),
        (old_crd, {"CRD": WARN}, "is not that of kvloop"),
        (forbid("CustomResourceDefinition"), {"CRD": WARN}, "could not be looked at"),
        (without("Deployment"), {"Operator": FAIL}, "none serves the namespace team"),
        (lambda c: c.add(operator("--namespace=other")), {"Operator": FAIL}, "none serves"),
        (lambda c: c.add(operator(namespace="second")), {"Operator": FAIL}, "kvloop-system, second"),
        (stopped, {"Operator": FAIL}, "does not run"),
        (lambda c: c.add(operator(image="kvloop/operator:9.9.9")), {"Operator": WARN}, "another version"),
        (forbid("Deployment"), {"Operator": WARN}, "could not be looked at"),
        (refusing(InvalidError("spec.x: bad")), {"Admission": FAIL}, "spec.x: bad"),
        (refusing(ForbiddenError("exceeded quota")), {"Admission": FAIL}, "exceeded quota"),
        (refusing(ForbiddenError('User "me" cannot patch resource "x"')), {"Admission": WARN}, "cannot patch"),
        (lambda c: c.denied.add(("create", "pods/proxy")), {"Rights": WARN}, "you may not create pods/proxy"),
        (refusing(NotFoundError('namespaces "team" not found')), {"Admission": FAIL}, "not found"),
        (without("Namespace"), {"Pod Security": FAIL}, "there is no namespace team"),
        (level("baseline"), {"Pod Security": FAIL}, "IPC_LOCK"),
        (forbid("Namespace"), {"Pod Security": WARN}, "could not be looked at"),
        (quota({f"requests.{GPU}": "20"}, {f"requests.{GPU}": "8"}), {"Quota q": FAIL}, f"16 of {GPU} more"),
        (quota({"pods": "50", f"requests.{GPU}": "16"}, {}), {}, ""),
        (quota({"services": "1"}, {"services": "1"}), {}, ""),
        (forbid("ResourceQuota"), {"Quotas": WARN}, "could not be looked at"),
        (nodes(), dict.fromkeys(BOTH, WARN), "none has the labels node.kubernetes.io/instance-type=p5en"),
        (nodes(node("n", spec=TAINTED)), dict.fromkeys(BOTH, FAIL), "1 are tainted with mine"),
        (nodes(node("n", **{GPU: "0"})), dict.fromkeys(BOTH, FAIL), f"8 of {GPU}, and none of 1 has more than 0"),
        (nodes(node("n", **{NIC: "0"})), dict.fromkeys(BOTH, FAIL), f"16 of {NIC}"),
        (nodes(node("n", **{NIC: "15"})), dict.fromkeys(BOTH, FAIL), "more than 15"),
        (nodes(node("n")), {"Nodes": WARN}, "room for 1 of 2 engines"),
        (nodes(node("n"), node("m", zone="b")), {"Nodes": WARN}, "room for 1 of 2 engines in zone"),
        (forbid("Node"), {"Nodes": WARN}, "could not be looked at"),
    ],
)
def test_what_is_wrong_with_a_cluster(
    cluster: Cluster, check: Check, change: Callable[[Cluster], None], expected: dict[str, Level], says: str
) -> None:
    change(cluster)
    found = check()
    assert problems(found) == expected
    assert not says or any(says in found[name].detail for name in expected)


HUB: Body = {"huggingFace": {"repository": "a/b", "tokenSecretRef": {"name": "hf", "key": "t"}}}
CLAIMS: Body = {"fabric": "EFA", "efa": {"mechanism": "DynamicResourceAllocation"}}
NONE = SIDE | {"replicas": 0}
UNKNOWN: Body = {"instanceType": "x9.large"}


@pytest.mark.parametrize(
    ("changes", "expected", "says"),
    [
        ({"engine": {"image": "vllm:0.20.1"}}, {"Resource": FAIL}, "vLLM 0.21"),
        ({"engine": {"image": "vllm:0.21.0"}}, {"vLLM": WARN}, "does not know decoder_kv_blocks_ttl"),
        ({"engine": {"image": "vllm:0.25.0"}}, {"vLLM": WARN}, "nothing is reused"),
        ({"engine": {"image": "vllm:0.99.0"}}, {"vLLM": WARN}, "newer than"),
        ({"engine": {"image": "vllm:mine"}}, {"vLLM": WARN}, "does not tell its version"),
        ({"transfer": {"fabric": "EFA", "bidirectional": False}}, {"vLLM": WARN}, "nothing comes back"),
        ({"engine": {"image": "vllm:latest", "version": "0.32.0"}}, {"Engine image": WARN}, "another image"),
        ({"engine": {"image": "Vllm :x", "version": "0.32.0"}}, {"Engine image": FAIL}, "is no image name"),
        ({"router": {"image": "registry:5000/r"}}, {"Router image": WARN}, "another image"),
        ({"model": {"name": "m", "source": HUB}}, {"Weights": WARN, "Secret hf": FAIL}, "is missing"),
        ({"placement": {}}, {"Instance type": WARN}, "one EFA device"),
        ({"placement": UNKNOWN}, {"Instance type": WARN, **dict.fromkeys(BOTH, WARN)}, "not in kvloop's table"),
        ({"monitoring": {"podMonitor": "Enabled"}}, {"APIs": WARN}, "no PodMonitors"),
        ({"transfer": CLAIMS}, {"APIs": FAIL}, "does not serve resource.k8s.io/v1"),
        ({"prefill": NONE, "decode": NONE}, {}, ""),
        ({"transfer": {"fabric": "Push"}}, {"Resource": FAIL}, "spec.transfer.fabric"),
    ],
)
def test_what_is_wrong_with_a_resource(check: Check, changes: Body, expected: dict[str, Level], says: str) -> None:
    found = check(**changes)
    assert problems(found) == expected
    assert not says or any(says in found[name].detail for name in expected)


def test_all_that_pods_refer_to_has_to_be_there(cluster: Cluster, check: Check) -> None:
    sidecar = {
        "name": "s",
        "image": "x",
        "envFrom": [{"configMapRef": {"name": "settings"}}, {"secretRef": {"name": "perhaps", "optional": True}}],
        "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "one", "key": "k"}}}],
    }
    projected = {"name": "v", "projected": {"sources": [{"secret": {"name": "two"}}]}}
    template = {
        "spec": {"containers": [sidecar], "volumes": [projected, {"name": "w", "secret": {"secretName": "three"}}]}
    }
    found = check(
        model={"name": "m", "source": {"volume": {"claimName": "weights"}}},
        engine=EFA["engine"] | {"imagePullSecrets": [{"name": "pull"}], "serviceAccountName": "s3-reader"},
        decode=SIDE | {"podTemplate": template},
        placement=EFA["placement"] | {"priorityClassName": "high"},
        router={"apiKeysSecretRef": {"name": "keys"}},
    )
    missing = {f"Secret {name}" for name in ("one", "two", "three", "pull", "keys")}
    missing |= {"ConfigMap settings", "PersistentVolumeClaim weights", "ServiceAccount s3-reader", "PriorityClass high"}
    assert problems(found) == dict.fromkeys(missing, Level.FAIL)
    cluster.errors["Secret"] = ForbiddenError("no")
    cluster.add({"kind": "PriorityClass", "metadata": {"name": "high"}})
    cluster.add({"kind": "ConfigMap", "metadata": {"name": "settings", "namespace": "team"}})
    found = check(
        placement=EFA["placement"] | {"priorityClassName": "high"}, router={"apiKeysSecretRef": {"name": "keys"}}
    )
    assert problems(found) == {"Secret keys": Level.WARN}
    assert found["PriorityClass high"].level is Level.OK


def test_a_quota_demands_requests(cluster: Cluster, check: Check) -> None:
    quota({"requests.memory": "9000Gi"}, {})(cluster)
    found = check(placement={"instanceType": "x9.large"})
    assert (found["Quota q"].level, "do not say how much memory" in found["Quota q"].detail) == (Level.FAIL, True)


def test_a_resource_that_is_not_ready_is_asked_nothing(cluster: Cluster) -> None:
    waiting = {"type": "Ready", "status": "False", "reason": "ModelLoading", "message": "soon", "observedGeneration": 1}
    cluster.add(resource(**EFA, status={"conditions": [waiting]}))
    result = run("check", "chat")
    assert "warn  Running: is not Ready (ModelLoading: soon)" in result.stdout
    assert "Admission" not in result.stdout, "it was admitted"
    assert "Running" not in run("check", "chat", "--offline").stdout


def test_what_cannot_be_checked_ends_with_2(cluster: Cluster, tmp_path: Path) -> None:
    assert run("check", "none").exit_code == 2
    assert run("check", "-f", tmp_path / "none.yaml").exit_code == 2
    assert run("check", "chat", "-f", tmp_path / "none.yaml").exit_code == 2
    two = tmp_path / "two.yaml"
    two.write_text(yaml.safe_dump_all([resource("a"), resource("b")]))
    assert "one at a time" in run("check", "-f", two).stderr


def test_a_crd_that_nobody_may_read_and_nobody_serves(cluster: Cluster) -> None:
    forbid("CustomResourceDefinition")(cluster)
    cluster.errors["DisaggregatedInference"] = NotFoundError("404 page not found")
    assert "fail  CRD: is not installed" in run("check").stdout
    forbid("DisaggregatedInference")(cluster)
    assert "warn  CRD: could not be looked at" in run("check").stdout


@pytest.mark.parametrize("name", ["vllm", "vllm:1", "docker.io/vllm/vllm-openai:v0.32.0", "host:5000/a/b_c", "a.b/c:d"])
@pytest.mark.parametrize("digest", ["", "@sha256:" + 64 * "0"])
def test_names_of_images(name: str, digest: str) -> None:
    body = resource(engine={"image": name + digest, "version": "0.32.0"})
    first, *_ = spec.image(Scope.of(parse(body), PlanConfig(router_image="r:1")))
    assert first.level is not Level.FAIL
