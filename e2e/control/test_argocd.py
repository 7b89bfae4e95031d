"""What Argo CD and Flux read from live objects, and whether its buttons do what they say.

The objects of the walk are recorded as Argo CD's test data. KVLOOP_RECORD=1 writes them anew; then read their diff.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from e2e.cluster import Client, eventually
from e2e.control.harness import ROOT, Site
from e2e.gitops import argocd
from e2e.gitops.readers import FLUX, kstatus
from e2e.site import resource
from kvloop.api.labels import PLURAL

pytestmark = pytest.mark.control

SAMPLE: Final = ROOT / "manifests" / "samples" / "p5en.yaml"
NAME: Final = "p5en"
Body = dict[str, Any]


def walk(site: Site, cluster: Client) -> Iterator[tuple[str, Body]]:
    """A resource in each state of its life."""
    sample = yaml.safe_load(SAMPLE.read_text(encoding="utf-8"))

    def there(state: str) -> tuple[str, Body]:
        return state, site.get(PLURAL, NAME)

    with site.operator.frozen():
        cluster.apply(sample, site.namespace)
        yield there("new")
    site.wait_for("Ready", "False", "InsufficientCapacity", NAME)
    yield there("pending")
    cluster.add_fake_nodes(2, prefix="argocd", zone=sample["spec"]["placement"]["zone"])
    site.wait_for("Ready", "True", "Ready", NAME)
    yield there("ready")
    with site.operator.frozen():
        site.patch({"model": {"maxLength": 16384}, "rollout": {"paused": True}}, NAME)
        yield there("edited")
    site.wait_for("Ready", "False", "Paused", NAME)
    yield there("paused")
    image = sample["spec"]["engine"]["image"]
    site.patch({"engine": {"image": f"does-not-exist/{image}"}, "rollout": {"paused": False}}, NAME)
    site.wait_for("Stalled", "True", "ImagePullFailed", NAME)
    yield there("stalled")
    site.patch({"engine": {"image": image}, "prefill": {"replicas": 0}, "decode": {"replicas": 0}}, NAME)
    site.wait_for("Ready", "True", "ScaledToZero", NAME)
    yield there("scaled-to-zero")
    site.edit(PLURAL, NAME, {"metadata": {"finalizers": ["example.com/hold"]}})
    site.kubectl("delete", PLURAL, NAME, "--wait=false")
    site.wait_for("Ready", "False", "Deleting", NAME)
    yield there("deleting")
    site.edit(PLURAL, NAME, {"metadata": {"finalizers": None}})


def test_argo_cd_and_flux_read_every_state_right(site: Site, control_cluster: Client) -> None:
    tests = yaml.safe_load((argocd.FOLDER / "health_test.yaml").read_text())["tests"]
    wanted = {Path(test["inputPath"]).stem: test["healthStatus"]["status"] for test in tests}
    seen = dict(walk(site, control_cluster))
    if os.environ.get("KVLOOP_RECORD"):
        for state, body in seen.items():
            record(state, body, site.namespace)
    assert {state: argocd.health(body).status for state, body in seen.items()} == wanted
    assert {state: kstatus(body) for state, body in seen.items()} == FLUX
    for state, body in seen.items():
        recorded = yaml.safe_load((argocd.FOLDER / "testdata" / f"{state}.yaml").read_text())
        assert outline(recorded) == outline(body), state


def record(state: str, body: Body, namespace: str) -> None:
    text = yaml.safe_dump(body, sort_keys=False, width=116).replace(namespace, "default")
    (argocd.FOLDER / "testdata" / f"{state}.yaml").write_text(text)


def outline(body: Body) -> tuple[Body, list[list[str]]]:
    """What two runs must have in common."""
    conditions = body["status"].get("conditions", [])
    return body["spec"], [[each[key] for key in ("type", "status", "reason")] for each in conditions]


def uids(site: Site) -> dict[str, str]:
    pods = site.items("pods", "--selector=kvloop.io/role")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


def press(site: Site, button: str) -> None:
    """What Argo CD does with the result of an action: it patches what has changed."""
    body = site.get(PLURAL, "chat")
    assert argocd.actions(body)[button]
    site.edit(PLURAL, "chat", {"spec": argocd.act(button, body)["spec"]})


def test_the_buttons_pause_resume_and_restart(site: Site) -> None:
    site.create()
    site.wait_for("Ready", "True")
    before = uids(site)
    press(site, "pause")
    press(site, "restart")
    site.wait_for("Ready", "False", "Paused")
    assert uids(site) == before
    assert argocd.health(site.get(PLURAL, "chat")).status == "Suspended"
    press(site, "resume")
    site.wait_for("Ready", "True", timeout_s=120)
    after = uids(site)
    assert after.keys() == before.keys()
    assert not set(after.values()) & set(before.values())


def test_what_the_operator_writes_is_no_drift(site: Site) -> None:
    """`kubectl diff` compares as Argo CD and Flux do: the live object with the same object applied once more."""
    body = resource("chat", site.namespace)
    applied = json.dumps(body)
    site.cluster.kubectl("apply", "--server-side", "--field-manager=gitops", "--filename=-", input=applied)
    site.wait_for("Ready", "True")
    eventually(lambda: site.status().get("rollout"))
    for way in (("--server-side", "--field-manager=gitops"), ()):
        assert site.cluster.kubectl("diff", *way, "--filename=-", input=applied) == ""
    (live,) = site.items(PLURAL, "--show-managed-fields")
    managers = {(entry["manager"], entry.get("subresource", "")) for entry in live["metadata"]["managedFields"]}
    assert managers == {("gitops", ""), ("kvloop", "status")}
    assert live["metadata"]["generation"] == 1
