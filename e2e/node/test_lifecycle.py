"""From the first apply to deletion: what a user waits for, what goes wrong, how it heals, what is left at the end."""

import asyncio
import base64
import json
from typing import Any

import pytest

from e2e.cluster import eventually
from e2e.node.harness import WEIGHTS, NodeSite, Platform, Talk, is_ready, opened, restarts, wrong
from e2e.site import CHILDREN, Body
from kvloop.api.labels import ENGINE_CONTAINER, PLURAL, Role

pytestmark = pytest.mark.node

TOKEN = "hf_of-this-test"  # noqa: S105 (no secret)
SLOW_S = 120
"""Draining alone takes an engine up to half a minute."""


async def served(site: NodeSite, weights: str = WEIGHTS) -> None:
    """Whether a turn is answered, and rightly, at the first try."""
    async with site.client() as client:
        talk = Talk(client, "patience")
        await talk.say()
        assert not await wrong(talk.turns, weights)


async def test_whoever_waits_for_ready_is_served(site: NodeSite) -> None:
    """Row 1: even who waits from before the resource exists. And row 3: nothing at all is a state, too."""
    waiting = asyncio.create_task(asyncio.to_thread(site.wait_ready))
    site.create()
    await waiting
    pods = site.pods()
    assert {pod["metadata"]["labels"]["app.kubernetes.io/component"]: is_ready(pod) for pod in pods} == {
        "prefill": True,
        "decode": True,
        "router": True,
    }
    await served(site)

    site.patch({"prefill": {"replicas": 0}, "decode": {"replicas": 0}})
    site.wait_for("Available", "False", "ScaledToZero", timeout_s=SLOW_S)
    site.wait_for("Ready", "True", "ScaledToZero", timeout_s=SLOW_S)
    eventually(lambda: len(site.pods()) == 1, SLOW_S)
    site.patch({"prefill": {"replicas": 1}, "decode": {"replicas": 1}})
    await asyncio.to_thread(site.wait_ready)
    await served(site)


def test_deletion_leaves_nothing_with_an_operator_or_without(platform: Platform, site: NodeSite) -> None:
    """Row 6's kind: a finalizer would hold the resource until an operator comes."""
    for name in ("with", "without"):
        site.create(name)
    for name in ("with", "without"):
        site.wait_ready(name)
    assert len(left(site, "without")) > len(CHILDREN)
    site.kubectl("delete", PLURAL, "with", "--timeout=10s")
    eventually(lambda: all(each.startswith("Pod/") for each in left(site, "with")), SLOW_S)
    with platform.without_operator():
        site.kubectl("delete", PLURAL, "without", "--timeout=10s")
        eventually(lambda: not left(site, "with") and not left(site, "without"), SLOW_S)


def left(site: NodeSite, name: str) -> list[str]:
    """What is there of a custom resource."""
    kinds = ",".join((*CHILDREN, "pods", "endpointslices", "controllerrevisions"))
    objects = site.items(kinds, f"--selector=kvloop.io/name={name}")
    return [f"{each['kind']}/{each['metadata']['name']}" for each in objects]


async def test_a_bad_image_and_a_missing_token_are_told_and_heal(site: NodeSite) -> None:
    """Rows 7, 8 and 9: nobody deletes a pod by hand."""
    token = {"name": "hugging-face", "key": "token"}
    source = {"huggingFace": {"repository": "org/sim", "tokenSecretRef": token}}
    bad = site.engine(image="kvloop/enginesim:no-such-tag") | {"imagePullPolicy": "Never"}
    site.create(model={"name": "sim", "source": source, "maxLength": 8192}, engine=bad)
    stalled = site.wait_for("Stalled", "True", "ImagePullFailed")
    assert "kvloop/enginesim:no-such-tag" in stalled["message"]

    site.patch({"engine": site.engine()})
    stalled = site.wait_for("Stalled", "True", "SecretNotFound", timeout_s=SLOW_S)
    assert '"hugging-face"' in stalled["message"]
    assert '"token"' in stalled["message"]
    secret: Body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hugging-face"}}
    site.cluster.apply(secret | {"stringData": {"another": TOKEN}}, site.namespace)
    eventually(lambda: 'no key "token"' in site.condition("Stalled")["message"], SLOW_S)

    site.cluster.apply(secret | {"stringData": {"token": TOKEN}}, site.namespace)
    site.wait_for("Ready", "True", timeout_s=SLOW_S)
    for role in Role:
        (pod,) = site.pods(role)
        assert restarts(pod) == 0
        assert site.python(pod, "import os; print(os.environ['HF_TOKEN'])").strip() == TOKEN
    await served(site, "org/sim")
    everything = json.dumps(site.items(",".join((PLURAL, *CHILDREN, "pods", "events"))))
    assert TOKEN not in everything
    assert base64.b64encode(TOKEN.encode()).decode() not in everything


def test_in_a_restricted_namespace(platform: Platform) -> None:
    """Operator and router keep to the restricted Pod Security Standard; engines do where their image has a user.

    Stock vLLM images run as root, which that standard forbids: then the status says so, and what the pods lack.
    """
    with opened(platform, "restricted") as site:
        site.create()
        refused = site.wait_for("Stalled", "True", "AdmissionRefused", timeout_s=SLOW_S)
        assert "runAsNonRoot" in refused["message"]
        eventually(lambda: [is_ready(pod) for pod in site.pods("router")] == [True])
        assert not [*site.pods("prefill"), *site.pods("decode")]

        template = {"podTemplate": {"spec": {"securityContext": {"runAsNonRoot": True}}}}
        site.patch({"prefill": template, "decode": template})
        site.wait_for("Ready", "True", timeout_s=SLOW_S)
        for pod in site.pods():
            assert "capabilities" in container(pod)["securityContext"]
    operators = platform.cluster.get("namespace", "kvloop-system", "default")
    assert operators["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def container(pod: Body) -> dict[str, Any]:
    """The engine's container, or the router's."""
    (found,) = (each for each in pod["spec"]["containers"] if each["name"] in {ENGINE_CONTAINER, "router"})
    return dict(found)
