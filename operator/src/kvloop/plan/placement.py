"""On which nodes engine pods may run, and near what."""

from typing import Any

from kvloop.api.labels import NAME, ROLE, Role
from kvloop.api.v1alpha1.placement import SameZone
from kvloop.api.v1alpha1.pod import EFA_RESOURCE
from kvloop.api.v1alpha1.transfer import Fabric
from kvloop.plan import labels
from kvloop.plan.render import without_none
from kvloop.plan.scope import Scope

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
NETWORK_LAYER = "topology.k8s.aws/network-node-layer-{}"
"""Layer 1 is the broadest; types have three or four, and the last one is the nearest.
https://docs.aws.amazon.com/eks/latest/userguide/ml-workload-topology.html"""
PLACEMENT_GROUP = "karpenter.k8s.aws/placement-group-id"
CAPACITY_RESERVATION = "karpenter.k8s.aws/capacity-reservation-id"


def node_selector(scope: Scope) -> dict[str, str] | None:
    """Labels that nodes must have."""
    placement = scope.spec.placement
    wanted = {INSTANCE_TYPE: placement.instance_type, ZONE: placement.zone}
    return {**placement.node_selector, **without_none(wanted)} or None


def tolerations(scope: Scope, role: Role) -> list[dict[str, Any]] | None:
    """Those for the usual taints of GPU and EFA nodes, and the user's."""
    taints = []
    if scope.resolved.gpus[role]:
        taints.append(scope.role(role).gpu_resource)
    if scope.resolved.efa[role]:
        taints.append(EFA_RESOURCE)
    generated = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in taints]
    return [*generated, *scope.spec.placement.tolerations] or None


def affinity(scope: Scope, role: Role) -> dict[str, Any] | None:
    """Same zone as the other engines, near them in the network, but not on the other role's hosts."""
    near, nearer = _same_zone(scope), [*_preferred_zone(scope), *_network_layers(scope)]
    return {
        "nodeAffinity": _preferred_nodes(scope),
        "podAffinity": _terms(near, nearer),
        "podAntiAffinity": _terms([], [_other_role(scope, role)]),
    }


def _terms(required: list[dict[str, Any]], preferred: list[dict[str, Any]]) -> dict[str, Any] | None:
    terms = {
        "requiredDuringSchedulingIgnoredDuringExecution": required,
        "preferredDuringSchedulingIgnoredDuringExecution": preferred,
    }
    return {key: value for key, value in terms.items() if value} or None


def _engines_in(scope: Scope, topology_key: str) -> dict[str, Any]:
    return {"topologyKey": topology_key, "labelSelector": labels.any_engine(scope.name)}


def _same_zone(scope: Scope) -> list[dict[str, Any]]:
    """A pinned zone says it already. Without one, the first pod chooses and the others follow."""
    placement = scope.spec.placement
    if placement.same_zone is SameZone.REQUIRED and not placement.zone:
        return [_engines_in(scope, ZONE)]
    return []


def _preferred_zone(scope: Scope) -> list[dict[str, Any]]:
    placement = scope.spec.placement
    if placement.same_zone is SameZone.PREFERRED and not placement.zone:
        return [{"weight": 100, "podAffinityTerm": _engines_in(scope, ZONE)}]
    return []


def _network_layers(scope: Scope) -> list[dict[str, Any]]:
    """EC2's network tree; a nearer layer weighs more. Nodes without the labels lose nothing."""
    if scope.spec.transfer.fabric is not Fabric.EFA:
        return []
    return [
        {"weight": 10 * layer, "podAffinityTerm": _engines_in(scope, NETWORK_LAYER.format(layer))}
        for layer in (1, 2, 3, 4)
    ]


def _other_role(scope: Scope, role: Role) -> dict[str, Any]:
    """P and D on one host would exchange KV without the fabric, and one host's end would take both."""
    other = next(candidate for candidate in Role if candidate is not role)
    selector = {"matchLabels": {NAME: scope.name, ROLE: other.value}}
    return {"weight": 50, "podAffinityTerm": {"topologyKey": HOST, "labelSelector": selector}}


def _preferred_nodes(scope: Scope) -> dict[str, Any] | None:
    """Preferred only: a pod bound to a reservation that has lapsed would wait for ever."""
    placement = scope.spec.placement
    wanted = {PLACEMENT_GROUP: placement.placement_group, CAPACITY_RESERVATION: placement.capacity_reservation}
    return _terms(
        [],
        [
            {
                "weight": 100,
                "preference": {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]},
            }
            for key, value in wanted.items()
            if value
        ],
    )
