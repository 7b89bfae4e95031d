"""The plan: from a custom resource and what is there to the children that should be there. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvloop.api.labels import Role
from kvloop.api.v1alpha1 import DisaggregatedInference
from kvloop.api.v1alpha1.status import ResolvedStatus
from kvloop.plan import (
    claims,
    config_maps,
    names,
    network_policy,
    placement,
    pod_disruption_budget,
    pod_monitor,
    rbac,
    router,
    services,
    statefulset,
    valkey,
)
from kvloop.plan import revision as revisions
from kvloop.plan.config import PlanConfig
from kvloop.plan.observed import ChildRef, Observed
from kvloop.plan.rollout import Rollout, step
from kvloop.plan.scope import Scope
from kvloop.plan.sides import sides


@dataclass(frozen=True)
class Desired:
    """Children in the order in which to apply them, and what was decided on the way.

    `keep` are children that are no longer planned and must not go yet, since pods of an older template need them.
    `rollout` is the step of the rollout that the children take, `delete_pods` the names of the pods that it takes,
    `url` where clients inside the cluster reach the router, `node_selector` the labels of nodes that engines may run
    on.
    """

    children: tuple[dict[str, Any], ...]
    keep: frozenset[ChildRef]
    revision: str
    resolved: ResolvedStatus
    rollout: Rollout
    delete_pods: tuple[str, ...]
    url: str
    node_selector: Mapping[str, str]


def plan(cr: DisaggregatedInference, observed: Observed | None, config: PlanConfig) -> Desired:
    """The wanted children; none for a resource that is being deleted, whose children the garbage collector takes."""
    scope = Scope.of(cr, config)
    revision = revisions.of(scope)
    workloads = {role: statefulset.build(scope, role, revision) for role in Role}
    templates = {role: statefulset.template_hash(workload) for role, workload in workloads.items()}
    rollout = step(sides(scope, revision, templates, observed), paused=cr.spec.rollout.paused)
    for role, workload in workloads.items():
        statefulset.set_partition(workload, rollout.partitions[role])
    deleting = cr.metadata.deletion_timestamp is not None
    return Desired(
        children=() if deleting else _children(scope, revision, list(workloads.values()), observed),
        keep=claims.in_use(scope, observed),
        revision=revision,
        resolved=scope.resolved.to_status(),
        rollout=rollout,
        delete_pods=() if deleting else tuple(names.pod(scope.name, *place) for place in rollout.delete),
        url=_url(scope),
        node_selector=placement.node_selector(scope) or {},
    )


def _children(
    scope: Scope, revision: str, workloads: list[dict[str, Any]], observed: Observed | None
) -> tuple[dict[str, Any], ...]:
    """What others refer to comes first."""
    return (
        *rbac.build(scope),
        *config_maps.build(scope),
        *_services(scope, revision, observed),
        *network_policy.build(scope),
        *pod_disruption_budget.build(scope, observed),
        *(claims.build(scope, role) for role in Role if claims.uses_claim(scope)),
        *valkey.build(scope),
        *workloads,
        router.deployment(scope),
        *pod_monitor.build(scope),
    )


def _services(scope: Scope, revision: str, observed: Observed | None) -> list[dict[str, Any]]:
    """A revision keeps its routing Services for as long as it has pods."""
    found: list[dict[str, Any]] = []
    for role in Role:
        pods = observed.pods if observed else ()
        living = {pod.revision for pod in pods if pod.component == role and pod.revision}
        found.append(services.governing(scope, role))
        found += [services.routing(scope, role, each) for each in sorted(living | {revision})]
    return [*found, services.client(scope)]


def _url(scope: Scope) -> str:
    """Where clients inside the cluster reach the router."""
    host = f"{names.client_service(scope.name)}.{scope.namespace}.svc.{scope.config.cluster_domain}"
    return f"http://{host}:{scope.spec.router.port}"
