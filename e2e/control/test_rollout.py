"""Rollouts with the cluster's own StatefulSet controllers and simulated pods."""

import json

import pytest

from e2e.cluster import KubectlError, eventually
from e2e.control.harness import Site, settled
from e2e.control.pods import UNREADY, engine, pods, set_ready
from kvloop.api.labels import Role

pytestmark = pytest.mark.control


def names(site: Site, role: str = "prefill", **annotations: str) -> set[str]:
    """Engines with these annotations."""
    wanted = {key.replace("_", "-"): value for key, value in annotations.items()}
    return {
        pod["metadata"]["name"]
        for pod in pods(site, role)
        if wanted.items()
        <= {key.rpartition("/")[2]: value for key, value in pod["metadata"]["annotations"].items()}.items()
    }


def test_as_many_at_a_time_as_the_spec_allows(site: Site) -> None:
    """A StatefulSet by itself replaces one, and waits until it is ready."""
    site.create(prefill=engine(replicas=4) | {"maxUnavailable": 3}, decode=engine(replicas=0))
    site.wait_for("Ready", "True")
    site.patch({"prefill": {"podTemplate": UNREADY}})
    new = {f"chat-prefill-{number}" for number in (1, 2, 3)}
    eventually(lambda: names(site, fake_ready="false") == new)
    settled(site.audit())
    assert names(site, fake_ready="false") == new
    assert site.status()["prefill"]["summary"] == "1/4"
    for name in new:
        set_ready(site, name)
    eventually(lambda: "chat-prefill-0" in names(site, fake_ready="false"))
    set_ready(site, "chat-prefill-0")
    site.wait_for("Ready", "True")


def uids(site: Site) -> dict[str, str]:
    """Of all engine pods, by name."""
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for role in Role for pod in pods(site, role)}


def images(site: Site) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for role in Role for pod in pods(site, role)}


def test_a_roll_back_touches_only_what_had_changed(site: Site) -> None:
    site.create(prefill=engine(replicas=3), decode=engine(replicas=3))
    site.wait_for("Ready", "True")
    before = uids(site)
    site.patch({"engine": {"image": "does-not-exist:1"}})
    site.wait_for("Stalled", "True", "ImagePullFailed")
    settled(site.audit())
    assert site.condition("Available")["status"] == "True"
    failed = {name for name, uid in uids(site).items() if before[name] != uid}
    assert failed == {"chat-prefill-2", "chat-decode-2"}
    site.patch({"engine": {"image": "enginesim:1"}})
    site.wait_for("Ready", "True", timeout_s=90)
    assert {name for name, uid in uids(site).items() if before[name] != uid} == failed


def test_the_newest_edit_wins(site: Site) -> None:
    """An edit in the middle of a rollout, and another in the middle of that one: no pod of the former two is left."""
    site.create()
    site.wait_for("Ready", "True")
    for number in (2, 3):
        slow = {"podTemplate": UNREADY}
        site.patch({"engine": {"image": f"enginesim:{number}"}, "prefill": slow, "decode": slow})
        eventually(lambda: f"enginesim:{number}" in images(site))  # noqa: B023 (called at once)
        assert "enginesim:1" in images(site)
    site.patch({"engine": {"image": "enginesim:4"}, "prefill": {"podTemplate": None}, "decode": {"podTemplate": None}})
    site.wait_for("Ready", "True", timeout_s=90)
    assert images(site) == {"enginesim:4"}


def evict(site: Site, pod: str) -> None:
    """What a drain of the pod's node asks for."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": site.namespace}}
    path = f"/api/v1/namespaces/{site.namespace}/pods/{pod}/eviction"
    site.cluster.kubectl("create", f"--raw={path}", "--filename=-", input=json.dumps(body))


def test_a_disruption_budget_lets_one_engine_go(site: Site) -> None:
    """Row 28: not before it is back the next one."""
    site.create(prefill=engine(UNREADY), decode=engine(replicas=0))
    eventually(lambda: len(names(site)) == 2)
    for name in names(site):
        eventually(lambda: site.get("pod", name)["status"].get("containerStatuses"))  # noqa: B023 (called at once)
        set_ready(site, name)
    site.wait_for("Ready", "True")
    eventually(lambda: site.get("poddisruptionbudget", "chat-prefill")["status"]["disruptionsAllowed"] == 1)
    before = uids(site)
    evict(site, "chat-prefill-0")
    eventually(lambda: uids(site).get("chat-prefill-0", before["chat-prefill-0"]) != before["chat-prefill-0"])
    with pytest.raises(KubectlError, match="disruption budget"):
        evict(site, "chat-prefill-1")
