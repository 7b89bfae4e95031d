"""The charts without a cluster: what they render, refuse, and never hold."""

import json
import re
from functools import reduce
from typing import Any, Final

import kubernetes_validate  # type: ignore[import-untyped]  # it publishes no types
import pytest
import yaml

from e2e.charts.generate import CASES, CHARTS, ROOT, files, template
from e2e.charts.helm import HelmError, helm
from kvloop.controller.settings import parse
from kvloop.kube.kinds import CHILDREN, CUSTOM_RESOURCE, EVENT, LEASE, NODE, POD, Kind
from kvloop.plan.config import VALKEY_IMAGE

NAMES: Final = sorted(path.name for path in CASES.iterdir())
VALUES: Final = yaml.safe_load((CHARTS / "kvloop" / "values.yaml").read_text())
SCHEMA: Final = json.loads((CHARTS / "kvloop" / "values.schema.json").read_text())
Body = dict[str, Any]
LISTS_NODES: Final = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
"""The one right that the operator has only if it serves all namespaces."""


def rendered(case: str) -> list[Body]:
    return [body for body in yaml.safe_load_all((CASES / case / "out.yaml").read_text()) if body]


def one(case: str, kind: str) -> Body:
    (body,) = (each for each in rendered(case) if each["kind"] == kind)
    return body


def test_all_that_is_generated_is_up_to_date() -> None:
    assert {str(path): text for path, text in files().items()} == {
        str(path): (ROOT / path).read_text(encoding="utf-8") for path in files()
    }


@pytest.mark.parametrize("chart", ["kvloop", "kvloop-crds"])
def test_helm_finds_nothing_to_complain_of(chart: str) -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in helm("lint", "--strict", CHARTS / chart)


@pytest.mark.parametrize("case", NAMES)
@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_objects_fit_the_upstream_schemas(case: str, version: str) -> None:
    for body in rendered(case):
        if not body["apiVersion"].startswith("monitoring.coreos.com/"):
            kubernetes_validate.validate(body, version, strict=True)


def test_the_crd_chart_is_the_crd_and_is_kept() -> None:
    (crd,) = yaml.safe_load_all(helm("template", "kvloop-crds", CHARTS / "kvloop-crds"))
    kept = crd["metadata"].pop("annotations")
    assert kept == {"helm.sh/resource-policy": "keep", "argocd.argoproj.io/sync-options": "Prune=false"}
    assert crd == yaml.safe_load((ROOT / "crds" / "kvloop.io_disaggregatedinferences.yaml").read_text())


def test_charts_and_application_have_one_version() -> None:
    charts = [yaml.safe_load((CHARTS / name / "Chart.yaml").read_text()) for name in ("kvloop", "kvloop-crds")]
    project = (ROOT / "pyproject.toml").read_text()
    for chart in charts:
        assert f'\nversion = "{chart["appVersion"]}"\n' in project
        assert chart["version"] == charts[0]["version"]


def test_templates_ask_no_cluster_and_throw_no_dice() -> None:
    """Whatever differs from one rendering to the next would be drift for GitOps tools; hooks are no part of them."""
    text = "".join(path.read_text() for path in CHARTS.glob("*/templates/*"))
    used = {word for action in re.findall(r"\{\{.*?\}\}", text, re.DOTALL) for word in re.findall(r"\w+", action)}
    assert used >= {"include", "toYaml"}
    assert not used & {
        "lookup",
        "now",
        "uuidv4",
        "htpasswd",
        "genCA",
        "genSelfSignedCert",
        "genSignedCert",
        "derivePassword",
    }
    assert not [word for word in used if word.startswith("rand")]
    assert "helm.sh/hook" not in text
    assert template() == template()


def leaves(values: Body, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {}
    for key, value in values.items():
        found |= leaves(value, (*path, key)) if isinstance(value, dict) and value else {(*path, key): value}
    return found


def test_the_schema_knows_exactly_the_values_that_there_are() -> None:
    def declared(schema: Body, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        if schema.get("additionalProperties") is not False or "properties" not in schema:
            return {path}
        assert schema["properties"]
        return {leaf for key, each in schema["properties"].items() for leaf in declared(each, (*path, key))}

    def cut(path: tuple[str, ...]) -> tuple[str, ...]:
        return path[:2] if path[0] == "resources" else path  # below are Kubernetes' own names

    assert {cut(path) for path in leaves(VALUES)} == declared(SCHEMA) - {("global",)}


def test_the_case_of_everything_differs_in_every_value() -> None:
    everything = yaml.safe_load((CASES / "everything" / "values.yaml").read_text())

    def differs(path: tuple[str, ...], default: Any) -> bool:
        return bool(reduce(lambda values, key: values.get(key, {}), path, everything) not in ({}, default))

    same = {path for path, default in leaves(VALUES).items() if not differs(path, default)}
    assert same == {
        ("image", "tag"),
        ("router", "image", "digest"),
        ("valkey", "image", "tag"),
        ("watchNamespaces",),
    }, "in one case or the other"


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("imagee.tag=1", "imagee"),
        ("image.tagg=1", "tagg"),
        ("image.digest=latest", "digest"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("image.repository=", "repository"),
        ("router.image.pullPolicy=Always", "pullPolicy"),
        ("watchNamespaces=search", "watchNamespaces"),
        ("watchNamespaces={Search}", "watchNamespaces"),
        ("extraArgs={log-level=debug}", "extraArgs"),
        ("resources.cpu=1", "cpu"),
        ("metrics.enabled=true", "enabled"),
        ("metrics.podMonitor.enabled=yes", "enabled"),
        ("networkPolicy.metricsFrom=monitoring", "metricsFrom"),
        ("scrapeNamespaces=monitoring", "scrapeNamespaces"),
        ("valkey.enabled=true", "enabled"),
        ("replicas=2", "replicas"),
    ],
)
def test_the_schema_refuses_what_it_does_not_know(setting: str, says: str) -> None:
    with pytest.raises(HelmError, match=says):
        template(extra=["--set", setting])


def test_an_older_kubernetes_is_refused() -> None:
    with pytest.raises(HelmError, match=r"1\.31"):
        template(extra=["--kube-version=1.30"])


def test_names_follow_the_release_and_stay_in_bounds() -> None:
    for release, name in (
        ("kvloop", "kvloop-operator"),
        ("kvloop-operator", "kvloop-operator"),
        ("x" * 53, "x" * 53 + "-operator"),
    ):
        text = helm("template", release, CHARTS / "kvloop")
        (deployment,) = (each for each in yaml.safe_load_all(text) if each["kind"] == "Deployment")
        assert deployment["metadata"]["name"] == name
        assert len(name) <= 63


@pytest.mark.parametrize("case", NAMES)
def test_the_operator_understands_its_arguments(case: str) -> None:
    (container,) = one(case, "Deployment")["spec"]["template"]["spec"]["containers"]
    settings = parse(container["args"], {})
    assert settings.namespace == (("search", "chat") if case == "namespaced" else ())
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"metrics": settings.metrics_port, "liveness": settings.liveness_port}
    assert settings.router_image.startswith(("kvloop/router:", "registry.example/kvloop/router:"))
    assert settings.scrape_namespace == (("monitoring",) if case == "everything" else ())
    valkey = settings.valkey_image
    assert valkey.startswith("registry.example/valkey/valkey@") if case == "everything" else valkey == VALKEY_IMAGE


@pytest.mark.parametrize("case", NAMES)
def test_the_pod_is_restricted_and_cannot_write(case: str) -> None:
    pod = one(case, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "volumes"} & pod.keys()
    assert one(case, "ServiceAccount")["automountServiceAccountToken"] is False


def roles(case: str) -> list[Body]:
    return [body for body in rendered(case) if body["kind"] in {"Role", "ClusterRole"}]


@pytest.mark.parametrize("case", NAMES)
def test_no_role_has_a_wildcard_or_secrets(case: str) -> None:
    for rule in (rule for role in roles(case) for rule in role["rules"]):
        words = {word for part in ("apiGroups", "resources", "verbs") for word in rule[part]}
        assert not words & {"*", "secrets", "pods/exec", "escalate", "bind", "impersonate"}, rule
        assert "nodes" not in words or rule == LISTS_NODES


def test_namespaced_it_has_no_right_beyond_its_namespaces() -> None:
    bodies = rendered("namespaced")
    assert not [body["kind"] for body in bodies if body["kind"].startswith("Cluster")]
    bound = [
        (body["metadata"]["namespace"], body["subjects"][0]["namespace"])
        for body in bodies
        if body["kind"] == "RoleBinding"
    ]
    assert sorted(bound) == [("chat", "kvloop-system"), ("search", "kvloop-system")]
    (rules,) = {json.dumps(role["rules"]) for role in roles("namespaced")}
    everywhere = [rule for rule in one_role("default")["rules"] if rule != LISTS_NODES]
    assert json.loads(rules) == everywhere, "as cluster-wide, but in fewer places"


def one_role(case: str) -> Body:
    return next(role for role in roles(case) if "aggregate" not in str(role["metadata"]["labels"]))


def test_the_role_gives_for_each_kind_what_the_operator_does_with_it() -> None:
    granted: dict[tuple[str, str], set[str]] = {}
    for rule in one_role("default")["rules"]:
        for group, resource in ((group, resource) for group in rule["apiGroups"] for resource in rule["resources"]):
            granted.setdefault((group, resource), set()).update(rule["verbs"])

    def verbs(kind: Kind) -> set[str]:
        return granted.pop((kind.group, kind.plural), set())

    for kind in CHILDREN:
        assert verbs(kind) == {"get", "list", "watch", "create", "patch", "delete"}, kind
    assert verbs(CUSTOM_RESOURCE) == {"get", "list", "watch"}
    assert verbs(POD) == {"get", "list", "watch", "delete"}
    assert verbs(EVENT) == {"create", "list"}
    assert verbs(NODE) == {"list"}
    assert verbs(LEASE) == {"get", "list", "watch", "patch", "create"}
    assert granted == {
        ("kvloop.io", "disaggregatedinferences/status"): {"patch"},
        ("kvloop.io", "disaggregatedinferences/finalizers"): {"update"},
        ("apps", "statefulsets/scale"): {"patch"},
        ("discovery.k8s.io", "endpointslices"): {"get", "list", "watch"},
    }


def test_every_value_is_explained() -> None:
    """Each top-level value, or the first below it, follows a comment, unless its name is a pod's own field."""
    of_pods = {"podLabels", "podAnnotations", "nodeSelector", "tolerations", "affinity", "priorityClassName"}
    lines = (CHARTS / "kvloop" / "values.yaml").read_text().splitlines()
    for key in VALUES.keys() - of_pods - {"extraEnv", "serviceAccount"}:
        (number,) = (n for n, line in enumerate(lines) if line.startswith(f"{key}:"))
        assert "#" in lines[number - 1] or "#" in lines[number + 1], key


def test_the_plain_install_is_the_chart_without_helm() -> None:
    plain = list(yaml.safe_load_all((ROOT / "manifests" / "install.yaml").read_text()))
    kinds = [body["kind"] for body in plain]
    assert kinds[:2] == ["CustomResourceDefinition", "Namespace"]
    assert "elm" not in "".join(json.dumps(body) for body in plain[1:])

    def without_helm(body: Body) -> Body:
        body["metadata"]["labels"] = {
            key: value
            for key, value in body["metadata"]["labels"].items()
            if key not in {"helm.sh/chart", "app.kubernetes.io/managed-by"}
        }
        return body

    assert plain[2:] == [without_helm(body) for body in rendered("default")]
