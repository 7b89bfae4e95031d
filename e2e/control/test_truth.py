"""Status with real controllers and simulated pods: it says what is true, at every moment, and why."""

import pytest

from e2e.cluster import KubectlError, eventually
from e2e.control.harness import Site, settled
from e2e.control.pods import UNREADY, engine, pods, set_ready, set_waiting
from kvloop.api.labels import PLURAL

pytestmark = pytest.mark.control


def test_a_pair_becomes_ready(site: Site) -> None:
    site.create()
    site.wait_for("Ready", "True")
    site.wait_for("Available", "True")
    site.wait_for("Reconciling", "False")
    site.wait_for("Stalled", "False")
    status = site.status()
    assert (status["prefill"]["summary"], status["decode"]["summary"]) == ("2/2", "2/2")
    assert status["url"] == f"http://chat.{site.namespace}.svc.cluster.local:8000"
    site.kubectl("wait", f"{PLURAL}/chat", "--for=condition=Ready", "--timeout=5s")


def test_without_an_operator_nothing_looks_done(site: Site) -> None:
    """Row 1: an object whose status nobody has written must not count as current."""
    site.operator.terminate()
    site.create()
    assert site.status() == {"observedGeneration": -1}
    with pytest.raises(KubectlError):
        site.kubectl("wait", f"{PLURAL}/chat", "--for=condition=Ready", "--timeout=1s")
    site.operator.start()
    site.wait_for("Ready", "True")


def test_ready_waits_for_every_pod_of_the_new_revision(site: Site) -> None:
    """Row 2: Ready is never true for a generation whose pods are not all there."""
    site.create()
    site.wait_for("Ready", "True")
    site.patch({"engine": {"image": "enginesim:2"}})
    seen = []

    def finished() -> bool:
        body = site.get(PLURAL, "chat")
        ready = next(each for each in body["status"]["conditions"] if each["type"] == "Ready")
        images = {pod["spec"]["containers"][0]["image"] for role in ("prefill", "decode") for pod in pods(site, role)}
        done = ready["status"] == "True" and ready["observedGeneration"] == body["metadata"]["generation"]
        seen.append((done, images))
        return bool(done)

    eventually(finished, timeout_s=90)
    assert [images for done, images in seen if done] == [{"enginesim:2"}]


def test_zero_replicas_is_a_state(site: Site) -> None:
    """Row 3."""
    site.create(prefill=engine(replicas=0), decode=engine(replicas=0))
    site.wait_for("Ready", "True")
    site.wait_for("Available", "False", "ScaledToZero")
    site.patch({"prefill": {"replicas": 1}, "decode": {"replicas": 1}})
    site.wait_for("Available", "True")


def test_a_missing_secret_is_named_and_heals(site: Site) -> None:
    """Row 8."""
    token = {"tokenSecretRef": {"name": "hugging-face", "key": "token"}}
    model = {"name": "sim", "source": {"huggingFace": {"repository": "org/sim", **token}}, "maxLength": 8192}
    site.create(model=model, prefill=engine(UNREADY, replicas=1), decode=engine(replicas=1))
    (pod,) = eventually(lambda: pods(site, "prefill"))
    eventually(lambda: site.get("pod", pod["metadata"]["name"])["status"].get("containerStatuses"))
    set_waiting(site, pod["metadata"]["name"], "CreateContainerConfigError", 'secret "hugging-face" not found')
    stalled = site.wait_for("Stalled", "True", "SecretNotFound")
    assert "hugging-face" in stalled["message"]
    set_ready(site, pod["metadata"]["name"])
    site.wait_for("Stalled", "False")
    site.wait_for("Ready", "True")


def test_a_secret_that_a_volume_lacks_is_read_from_events(site: Site) -> None:
    volumes = {"spec": {"volumes": [{"name": "keys", "secret": {"secretName": "api-keys"}}]}}
    site.create(prefill=engine(UNREADY | volumes, replicas=1), decode=engine(replicas=1))
    (pod,) = eventually(lambda: pods(site, "prefill"))
    name = pod["metadata"]["name"]
    eventually(lambda: site.get("pod", name)["status"].get("containerStatuses"))
    set_waiting(site, name, "ContainerCreating", "")
    site.edit("pod", name, {"status": {"phase": "Pending"}}, "--subresource=status")
    message = 'MountVolume.SetUp failed for volume "keys" : secret "api-keys" not found'
    about = {"kind": "Pod", "name": name, "namespace": site.namespace, "uid": pod["metadata"]["uid"]}
    event = {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "mount"}, "involvedObject": about,
        "type": "Warning", "reason": "FailedMount", "message": message, "lastTimestamp": "2030-01-01T00:00:00Z",
    }  # fmt: skip
    site.cluster.apply(event, site.namespace)
    stalled = site.wait_for("Stalled", "True", "SecretNotFound")
    assert "api-keys" in stalled["message"]


def test_a_bad_image_is_told_and_its_correction_rolls_out(site: Site) -> None:
    """Row 9: a StatefulSet alone would wait for ever for the pods of the bad revision."""
    site.create()
    site.wait_for("Ready", "True")
    site.patch({"engine": {"image": "does-not-exist:1"}})
    eventually(lambda: site.condition("Ready")["reason"] == "ImagePullFailed", timeout_s=90)
    assert site.condition("Available")["status"] == "True", "the old revision still serves"
    site.patch({"engine": {"image": "enginesim:3"}})
    site.wait_for("Ready", "True", timeout_s=120)
    images = {pod["spec"]["containers"][0]["image"] for role in ("prefill", "decode") for pod in pods(site, role)}
    assert images == {"enginesim:3"}


def test_pods_that_may_not_be_made_are_told(site: Site) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    site.cluster.apply(quota, site.namespace)
    eventually(lambda: site.get("resourcequota", "none").get("status", {}).get("hard"))
    site.create()
    eventually(lambda: site.condition("Ready").get("reason") == "AdmissionRefused")
    eventually(lambda: "StatefulSet chat-prefill cannot make its pods" in site.condition("Ready")["message"])
    assert "quota" in site.condition("Ready")["message"]
    site.kubectl("delete", "resourcequota", "none")
    site.wait_for("Ready", "True", timeout_s=120)


def test_no_disruption_budget_under_two_replicas(site: Site) -> None:
    """Row 24."""
    site.create(prefill=engine(replicas=1), decode=engine(replicas=2))
    site.wait_for("Ready", "True")
    budgets = [name for kind, name in site.children() if kind == "PodDisruptionBudget"]
    assert budgets == ["chat-decode"]


def test_events_are_posted_once_for_each_transition(site: Site) -> None:
    site.create()
    site.wait_for("Ready", "True")
    audit = site.audit()
    settled(audit)
    events = site.items("events", "--field-selector=involvedObject.kind=DisaggregatedInference")
    said = [(event["type"], event["reason"]) for event in events]
    assert ("Normal", "Ready") in said
    assert len(said) == len(set(said)), said
