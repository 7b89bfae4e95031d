"""Who owns what: replicas under an autoscaler, deletion in every mode, and others who edit."""

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import Client, eventually
from e2e.cluster.pki import Authority
from e2e.control.harness import Site, settled
from e2e.site import CHILDREN
from kvloop.api.labels import PLURAL

pytestmark = pytest.mark.control


def replicas(site: Site, role: str = "prefill") -> int:
    found: int = site.get("statefulset", f"chat-{role}")["spec"]["replicas"]
    return found


def test_replicas_that_the_spec_leaves_out_are_somebody_elses(site: Site) -> None:
    """Row 5: absent, 3, absent again; and never a fight with whoever scales."""
    site.create(prefill={"gpus": 0})
    site.wait_for("Ready", "True")
    site.kubectl("scale", "statefulset", "chat-prefill", "--replicas=4")
    audit = site.audit()
    eventually(lambda: site.status()["prefill"]["summary"] == "4/4")
    settled(audit)
    assert replicas(site) == 4
    site.patch({"prefill": {"replicas": 3}})
    eventually(lambda: replicas(site) == 3)
    site.wait_for("Ready", "True")
    site.patch({"prefill": {"replicas": None}})
    audit = site.audit()
    eventually(lambda: audit.writes()["patch", f"{PLURAL}/status"])
    settled(audit)
    assert replicas(site) == 3, "leaving the count to others must not change it"
    site.kubectl("scale", "statefulset", "chat-prefill", "--replicas=5")
    eventually(lambda: site.status()["prefill"]["summary"] == "5/5")
    settled(site.audit())
    assert replicas(site) == 5


@pytest.mark.parametrize("cascade", ["background", "foreground"])
def test_deletion_takes_the_children_and_none_comes_back(site: Site, cascade: str) -> None:
    """Row 6."""
    site.create()
    site.wait_for("Ready", "True")
    audit = site.audit()
    site.kubectl("delete", PLURAL, "chat", f"--cascade={cascade}", "--timeout=60s")
    eventually(lambda: not site.children(), timeout_s=60)
    settled(audit)
    assert not [write for write in audit.writes() if write[1] in CHILDREN]
    assert not site.items("pods")


def test_orphaned_children_stay_and_serve_a_new_resource_of_the_name(site: Site) -> None:
    site.create()
    site.wait_for("Ready", "True")
    before = {pod["metadata"]["uid"] for pod in site.items("pods")}
    site.kubectl("delete", PLURAL, "chat", "--cascade=orphan")
    audit = site.audit()
    settled(audit)
    assert not [write for write in audit.writes() if write[1] in CHILDREN]
    assert site.children()
    site.create()
    site.wait_for("Ready", "True")
    assert {pod["metadata"]["uid"] for pod in site.items("pods")} == before, "no pod was restarted"


def test_deletion_needs_no_operator(site: Site) -> None:
    site.create()
    site.wait_for("Ready", "True")
    site.operator.terminate()
    site.kubectl("delete", PLURAL, "chat", "--timeout=30s")
    eventually(lambda: not site.children(), timeout_s=60)
    site.operator.start()


def test_a_deletion_that_a_foreign_finalizer_holds_up_makes_nothing_anew(site: Site) -> None:
    site.create()
    site.wait_for("Ready", "True")
    site.edit(PLURAL, "chat", {"metadata": {"finalizers": ["example.com/hold"]}})
    site.kubectl("delete", PLURAL, "chat", "--wait=false")
    audit = site.audit()
    site.kubectl("delete", "configmap", "chat-router")
    settled(audit)
    assert ("ConfigMap", "chat-router") not in site.children()
    site.edit(PLURAL, "chat", {"metadata": {"finalizers": None}})
    eventually(lambda: not site.children(), timeout_s=60)


def test_a_namespace_goes_without_a_fight(site: Site) -> None:
    site.create()
    site.wait_for("Ready", "True")
    site.cluster.kubectl("delete", "namespace", site.namespace, "--timeout=90s")
    errors = [line for line in site.operator.lines("the pass failed") if line["object"]["namespace"] == site.namespace]
    assert not errors
    site.cluster.kubectl("create", "namespace", site.namespace)  # for the fixture to delete


class Meddler(BaseHTTPRequestHandler):
    """A mutating webhook that sets a field of every pod template it sees, whoever owns it."""

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = "/spec/template/spec/terminationGracePeriodSeconds"
        patch = json.dumps([{"op": "replace", "path": path, "value": 777}]).encode()
        answer: dict[str, Any] = {"uid": review["request"]["uid"], "allowed": True, "patchType": "JSONPatch"}
        answer["patch"] = base64.b64encode(patch).decode()
        body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (http.server's name)
        pass


@pytest.fixture
def meddler(control_cluster: Client, namespace: str, tmp_path: Path) -> Iterator[None]:
    """The webhook, for StatefulSets of the namespace."""
    authority = Authority(tmp_path / "pki")
    authority.create()
    identity = authority.issue("webhook", hosts=["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    with HTTPServer(("127.0.0.1", 0), Meddler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"https://127.0.0.1:{server.server_port}/"
        control_cluster.apply(_webhook(namespace, url, authority.certificate.read_bytes()))
        yield
        control_cluster.kubectl("delete", "mutatingwebhookconfiguration", namespace)
        server.shutdown()
        thread.join()


def _webhook(namespace: str, url: str, ca: bytes) -> dict[str, Any]:
    rule = {"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["statefulsets"]}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": namespace},
        "webhooks": [
            {
                "name": "meddler.example.com",
                "clientConfig": {"url": url, "caBundle": base64.b64encode(ca).decode()},
                "rules": [rule | {"operations": ["CREATE", "UPDATE"]}],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }


@pytest.mark.usefixtures("meddler")
def test_a_mutating_webhook_starts_no_endless_reconcile(site: Site) -> None:
    """Row 4."""
    audit = site.audit()
    site.create()
    site.wait_for("Ready", "True")
    settled(audit)
    assert site.get("statefulset", "chat-prefill")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 777
    assert audit.writes()["patch", "statefulsets"] == 2, "one for each role"
    audit = site.audit()
    site.operator.terminate()
    site.operator.start()
    settled(audit)
    assert not audit.writes()
