"""The CRD in a real API server: what it admits, refuses, defaults and shows."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import pytest
from kubernetes import client, config

from e2e import crs
from e2e.cluster import Client, KubectlError
from kvloop.api.generate import CRD_PATH
from kvloop.api.labels import GROUP, KIND, PLURAL, VERSION
from kvloop.api.v1alpha1 import parse
from kvloop.api.validate import defaulted, validate

pytestmark = pytest.mark.api

ROOT: Final = Path(__file__).parents[2]
CRD: Final = f"crd/{PLURAL}.{GROUP}"


@pytest.fixture(scope="module")
def cluster(api_cluster: Client) -> Client:
    """The cluster with the CRD as `kubectl apply` installs it, which keeps a copy of the whole in an annotation."""
    api_cluster.kubectl("apply", f"--filename={ROOT / CRD_PATH}")
    api_cluster.wait_established(f"{PLURAL}.{GROUP}")
    return api_cluster


@pytest.fixture(scope="module")
def api(cluster: Client) -> Iterator[client.CustomObjectsApi]:
    with config.new_client_from_config(str(cluster.kubeconfig)) as connection:  # type: ignore[no-untyped-call]  # theirs
        yield client.CustomObjectsApi(connection)


def _create(
    api: client.CustomObjectsApi, body: crs.Body, namespace: str = "default", dry_run: str | None = None
) -> crs.Body:
    """Create as kubectl does, with strict validation."""
    created = api.create_namespaced_custom_object(
        GROUP, VERSION, namespace, PLURAL, body, dry_run=dry_run, field_validation="Strict"
    )
    return cast("crs.Body", created)


def _refusals(api: client.CustomObjectsApi, body: crs.Body) -> list[str]:
    """Why the API server refuses the object: `path: message` of each cause, without the value it quotes."""
    with pytest.raises(client.ApiException) as refused:
        _create(api, body, dry_run="All")
    assert refused.value.status == 422, refused.value.body
    causes = json.loads(refused.value.body or "{}")["details"]["causes"]
    assert {cause["reason"] for cause in causes} == {"FieldValueInvalid"}
    return [f"{cause['field']}: {_words(cause['message'])}".removeprefix("<nil>: ") for cause in causes]


def _words(message: str) -> str:
    return re.sub('^Invalid value: (".*": )?', "", message)


def test_the_schema_is_structural(cluster: Client) -> None:
    conditions = json.loads(cluster.kubectl("get", CRD, "--output=json"))["status"]["conditions"]
    assert {c["type"]: c["status"] for c in conditions} == {"NamesAccepted": "True", "Established": "True"}


@pytest.mark.parametrize("case", [*crs.valid(), *crs.accepted()], ids=lambda case: case.name)
def test_a_valid_object_is_admitted(api: client.CustomObjectsApi, case: crs.Case) -> None:
    _create(api, case.body, dry_run="All")


@pytest.mark.parametrize("case", crs.invalid(), ids=lambda case: case.name)
def test_kubectl_says_what_is_wrong_with_an_invalid_object(cluster: Client, case: crs.Case) -> None:
    with pytest.raises(KubectlError) as refused:
        cluster.kubectl("apply", "--dry-run=server", "--filename=-", input=json.dumps(case.body))
    assert case.says.lower() in str(refused.value).lower()


@pytest.mark.parametrize("case", crs.rejected(), ids=lambda case: case.name)
def test_each_rule_rejects_in_the_words_of_the_offline_validation(api: client.CustomObjectsApi, case: crs.Case) -> None:
    refusals = _refusals(api, case.body)
    assert any(case.says in refusal for refusal in refusals), refusals
    assert sorted(refusals) == sorted(validate(case.body))


@pytest.mark.parametrize("case", [*crs.valid(), crs.with_nulls()], ids=lambda case: case.name)
def test_the_servers_defaults_are_the_models_defaults(api: client.CustomObjectsApi, case: crs.Case) -> None:
    stored = _create(api, case.body, dry_run="All")
    assert stored["spec"] == defaulted(case.body)["spec"]
    assert parse(stored).spec == parse(defaulted(case.body)).spec


def test_nobody_takes_a_new_object_for_ready(api: client.CustomObjectsApi, namespace: str) -> None:
    body = crs.merged(crs.valid()[1].body, {"status": {"observedGeneration": 1, "url": "http://forged"}})
    assert _create(api, body, namespace)["status"] == {"observedGeneration": -1}


def test_status_is_written_through_its_own_subresource_only(cluster: Client, namespace: str) -> None:
    cluster.apply(crs.valid()[1].body, namespace)
    patch = json.dumps({"status": {"url": "http://small", "prefill": {"ready": 1, "summary": "1/2"}}})
    patched = ("patch", "di", "small", f"--namespace={namespace}", "--type=merge", f"--patch={patch}")
    cluster.kubectl(*patched)
    assert cluster.get("di", "small", namespace)["status"] == {"observedGeneration": -1}
    cluster.kubectl(*patched, "--subresource=status")
    assert cluster.get("di", "small", namespace)["status"]["url"] == "http://small"


def test_an_update_from_valid_to_invalid_is_refused(cluster: Client, namespace: str) -> None:
    cluster.apply(crs.valid()[1].body, namespace)
    for spec, words in (
        ({"router": {"replicas": 2}}, "store.valkey"),
        ({"transfer": {"decoderKVBlocksTTLSeconds": 5}}, "decoderKVBlocksTTLSeconds"),
        ({"model": None}, "spec.model: Required value"),
    ):
        patch = json.dumps({"spec": spec})
        with pytest.raises(KubectlError, match=words):
            cluster.kubectl("patch", "di", "small", f"--namespace={namespace}", "--type=merge", f"--patch={patch}")
    assert cluster.get("di", "small", namespace)["metadata"]["generation"] == 1


def test_every_field_may_be_changed_later(cluster: Client, namespace: str) -> None:
    bodies = [crs.merged(case.body, {"metadata": {"name": "changing"}}) for case in crs.valid()]
    for body in bodies:
        cluster.kubectl(
            "replace" if body is not bodies[0] else "create",
            f"--namespace={namespace}",
            "--filename=-",
            input=json.dumps(body),
        )
    assert cluster.get("di", "changing", namespace)["spec"] == defaulted(bodies[-1])["spec"]


def test_appliers_share_a_list_by_its_keys(cluster: Client, namespace: str) -> None:
    cluster.apply(crs.valid()[1].body, namespace)
    image = crs.valid()[1].body["spec"]["engine"]["image"]
    for manager in ("a", "b"):
        theirs = {"engine": {"image": image, "env": [{"name": manager.upper(), "value": "1"}]}}
        body = crs.merged(crs.valid()[1].body, {"spec": theirs})
        cluster.kubectl(
            "apply",
            "--server-side",
            f"--field-manager={manager}",
            f"--namespace={namespace}",
            "--filename=-",
            input=json.dumps(body),
        )
    env = cluster.get("di", "small", namespace)["spec"]["engine"]["env"]
    assert [variable["name"] for variable in env] == ["A", "B"]


def test_what_the_pod_template_does_not_declare_is_kept(api: client.CustomObjectsApi) -> None:
    template = {
        "metadata": {"labels": {"team": "search"}, "annotations": {"a": "b"}},
        "spec": {
            "schedulerName": "mine",
            "containers": [{"name": "logs", "image": "logs:1", "env": [{"name": "A", "valueFrom": {"x": 1}}]}],
            "volumes": [{"name": "v", "hostPath": {"path": "/mnt", "type": "Directory"}}],
        },
    }
    body = crs.merged(crs.valid()[1].body, {"spec": {"prefill": {"podTemplate": template}}})
    assert _create(api, body, dry_run="All")["spec"]["prefill"]["podTemplate"] == template


def test_kubectl_get_tells_the_truth_in_a_line(cluster: Client, namespace: str) -> None:
    cluster.apply(crs.valid()[1].body, namespace)
    ready = {
        "type": "Ready",
        "status": "False",
        "reason": "ModelLoading",
        "message": "",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {
        "conditions": [ready],
        "url": "http://small",
        "prefill": {"summary": "1/2"},
        "decode": {"summary": "2/2"},
        "router": {"summary": "1/1"},
        "reuse": {"hitPercent": "87%"},
    }
    patch = json.dumps({"status": status})
    cluster.kubectl(
        "patch", "di", "small", f"--namespace={namespace}", "--type=merge", "--subresource=status", f"--patch={patch}"
    )
    header, line = cluster.kubectl("get", "kvloop", f"--namespace={namespace}", "--output=wide").splitlines()
    assert header.split() == ["NAME", "READY", "REASON", "PREFILL", "DECODE", "ROUTER", "REUSE", "URL", "AGE"]
    assert line.split()[:-1] == ["small", "False", "ModelLoading", "1/2", "2/2", "1/1", "87%", "http://small"]
    narrow = cluster.kubectl("get", "di", f"--namespace={namespace}").splitlines()[0]
    assert "URL" not in narrow


def test_kubectl_explains_every_field(cluster: Client) -> None:
    text = cluster.kubectl("explain", f"{KIND.lower()}.spec", "--recursive")
    assert "decoderKVBlocksTTLSeconds" in text
    assert "FIELD: " in cluster.kubectl("explain", "di.spec.transfer.decoderKVBlocksTTLSeconds")


def test_two_roles_have_no_one_scale(cluster: Client, namespace: str) -> None:
    cluster.apply(crs.valid()[1].body, namespace)
    with pytest.raises(KubectlError, match=r"could not find the requested resource|not found"):
        cluster.kubectl("scale", "di/small", f"--namespace={namespace}", "--replicas=2")
