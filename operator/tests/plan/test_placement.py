"""On which nodes engines run."""

from collections.abc import Callable
from typing import Any

from kvloop.api.labels import Role
from kvloop.plan import placement
from kvloop.plan.scope import Scope

Scoped = Callable[..., Scope]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ENGINES = {
    "matchLabels": {"kvloop.io/name": "chat"},
    "matchExpressions": [{"key": "kvloop.io/role", "operator": "Exists"}],
}


def affinity(scope: Scope, role: Role = Role.PREFILL) -> dict[str, Any]:
    return placement.affinity(scope, role) or {}


def test_nodes_are_chosen_by_type_zone_and_the_users_labels(scope: Scoped) -> None:
    wanted = {"instanceType": "p5.48xlarge", "zone": "us-east-1a", "nodeSelector": {"pool": "gpu"}}
    assert placement.node_selector(scope({"placement": wanted})) == {
        "node.kubernetes.io/instance-type": "p5.48xlarge",
        "topology.kubernetes.io/zone": "us-east-1a",
        "pool": "gpu",
    }
    assert placement.node_selector(scope()) is None


def test_taints_of_the_devices_are_tolerated(scope: Scoped) -> None:
    own = {"key": "team", "operator": "Exists"}
    spec = {"transfer": {"fabric": "EFA"}, "placement": {"tolerations": [own]}}
    assert placement.tolerations(scope(spec), Role.PREFILL) == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "vpc.amazonaws.com/efa", "operator": "Exists", "effect": "NoSchedule"},
        own,
    ]
    assert placement.tolerations(scope({"prefill": {"gpus": 0}}), Role.PREFILL) is None


def test_the_first_pod_chooses_the_zone_and_all_follow(scope: Scoped) -> None:
    for role in Role:
        [term] = affinity(scope(), role)["podAffinity"][REQUIRED]
        assert term == {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": ENGINES}


def test_a_pinned_zone_needs_no_affinity(scope: Scoped) -> None:
    assert affinity(scope({"placement": {"zone": "us-east-1a"}}))["podAffinity"] is None


def test_the_zone_may_be_preferred_or_of_no_matter(scope: Scoped) -> None:
    preferred = affinity(scope({"placement": {"sameZone": "Preferred"}}))["podAffinity"]
    assert REQUIRED not in preferred
    assert [term["weight"] for term in preferred[PREFERRED]] == [100]
    assert affinity(scope({"placement": {"sameZone": "None"}}))["podAffinity"] is None


def test_prefill_and_decode_keep_off_each_others_hosts(scope: Scoped) -> None:
    for role, other in ((Role.PREFILL, "decode"), (Role.DECODE, "prefill")):
        [term] = affinity(scope(), role)["podAntiAffinity"][PREFERRED]
        assert term["podAffinityTerm"] == {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {"kvloop.io/name": "chat", "kvloop.io/role": other}},
        }


def test_efa_prefers_the_nearest_layer_of_the_network(scope: Scoped) -> None:
    terms = affinity(scope({"transfer": {"fabric": "EFA"}}))["podAffinity"][PREFERRED]
    layers = {term["podAffinityTerm"]["topologyKey"]: term["weight"] for term in terms}
    assert layers == {f"topology.k8s.aws/network-node-layer-{layer}": 10 * layer for layer in (1, 2, 3, 4)}


def test_reservations_and_placement_groups_are_preferred_only(scope: Scoped) -> None:
    spec = {"placement": {"placementGroup": "pg-1", "capacityReservation": "cr-1"}}
    nodes = affinity(scope(spec))["nodeAffinity"]
    assert REQUIRED not in nodes
    wanted = {
        expression["key"]: expression["values"]
        for term in nodes[PREFERRED]
        for expression in term["preference"]["matchExpressions"]
    }
    assert wanted == {
        "karpenter.k8s.aws/placement-group-id": ["pg-1"],
        "karpenter.k8s.aws/capacity-reservation-id": ["cr-1"],
    }
    assert affinity(scope())["nodeAffinity"] is None
