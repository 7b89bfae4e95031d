"""GPUs and EFA devices by dynamic resource allocation."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvloop.api.labels import Role
from kvloop.plan import claims
from kvloop.plan.observed import Child, ChildRef, Observed, Pod, Workload
from kvloop.plan.scope import Scope

Scoped = Callable[..., Scope]


def dra(
    instance_type: str | None, gpus: int, devices: int | None = None, resource: str | None = None
) -> dict[str, Any]:
    return {
        "transfer": {
            "fabric": "EFA",
            "efa": {"mechanism": "DynamicResourceAllocation", "devicesPerPod": devices},
        },
        "placement": {"instanceType": instance_type},
        "prefill": {"tensorParallelSize": gpus} | ({"gpuResource": resource} if resource else {}),
        "decode": {"tensorParallelSize": gpus},
    }


def counts(scope: Scope) -> list[tuple[str, int]]:
    requests = claims.devices(scope, Role.PREFILL)["requests"]
    return [(request["exactly"]["deviceClassName"], request["exactly"]["count"]) for request in requests]


GPU, EFA = "gpu.nvidia.com", "efa.networking.k8s.aws"


@pytest.mark.parametrize(
    ("spec", "expected", "aligned"),
    [
        (dra("p5.48xlarge", 1), [(GPU, 1), (EFA, 4)], 1),
        (dra("p5en.48xlarge", 2), [(GPU, 1), (EFA, 2)] * 2, 2),
        (dra("p4d.24xlarge", 4), [(GPU, 2), (EFA, 1)] * 2, 2),
        (dra("p4d.24xlarge", 1), [(GPU, 1), (EFA, 1)], 1),
        # The whole node, an odd number, or an unknown node: all of it, wherever it is.
        (dra("p5.48xlarge", 8), [(GPU, 8), (EFA, 32)], 0),
        (dra("p5.48xlarge", 4, devices=15), [(GPU, 4), (EFA, 15)], 0),
        (dra(None, 2), [(GPU, 2), (EFA, 1)], 0),
        # No class is known for other GPUs: their device plugin gives them.
        (dra("p5.48xlarge", 1, resource="example.com/gpu"), [(EFA, 4)], 0),
    ],
)
def test_each_gpu_shares_a_root_with_its_efa_devices(
    spec: dict[str, Any], expected: list[tuple[str, int]], aligned: int, scope: Scoped
) -> None:
    scoped = scope(spec)
    assert counts(scoped) == expected
    constraints = claims.devices(scoped, Role.PREFILL).get("constraints", [])
    assert [constraint["matchAttribute"] for constraint in constraints] == ["resource.kubernetes.io/pcieRoot"] * aligned
    requests = [request["name"] for request in claims.devices(scoped, Role.PREFILL)["requests"]]
    assert [name for constraint in constraints for name in constraint["requests"]] == (requests if aligned else [])


def test_other_devices_get_another_template_since_it_cannot_change(scope: Scoped) -> None:
    names = {claims.template_name(scope(dra("p5.48xlarge", gpus)), Role.PREFILL) for gpus in (1, 2, 4)}
    assert len(names) == 3


def test_no_claim_without_dynamic_resource_allocation(scope: Scoped) -> None:
    assert not claims.uses_claim(scope({"transfer": {"fabric": "EFA"}}))
    ucx = {"transfer": {"fabric": "UCX", "efa": {"mechanism": "DynamicResourceAllocation"}}}
    assert not claims.uses_claim(scope(ucx))


TEMPLATE = ChildRef("ResourceClaimTemplate", "chat-prefill-older")


def observed(*pods: Pod, generation: int = 1, **revisions: str) -> Observed:
    """With an older template, and a StatefulSet of each role whose controller has seen generation 1."""
    refs = [ChildRef("StatefulSet", f"chat-{role}") for role in Role]
    workload = Workload(2, current_revision="a", update_revision=revisions.get("update", "a"))
    sets = {ref: Child(ref, "u", "1-2-3", generation, 1, workload=workload) for ref in refs}
    return Observed(0.0, {TEMPLATE: Child(TEMPLATE, "u", "1-2-3"), **sets}, pods)


def test_a_template_stays_while_a_pod_has_it_or_may_be_made_with_it(scope: Scoped) -> None:
    scoped = scope(dra("p5.48xlarge", 1))
    older = Pod("chat-prefill-0", "u", "prefill", claim_templates=(TEMPLATE.name,))
    assert claims.in_use(scoped, observed(older)) == {TEMPLATE}
    assert claims.in_use(scoped, observed(update="b")) == {TEMPLATE}, "a pod below the partition may come back"
    assert claims.in_use(scoped, observed(generation=2)) == {TEMPLATE}, "of the new template nothing is known yet"
    newer = replace(older, claim_templates=("chat-prefill-newer",))
    assert claims.in_use(scoped, observed(newer)) == frozenset()
    assert claims.in_use(scoped, None) == frozenset()
