"""The plan: from a custom resource and what is there to the children that should be there. Pure.

Most of it follows from the resource alone: its *blueprint*, which may be kept until the resource is edited.
"""

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
class Blueprint:
    """What a resource wants, wherever its rollout stands.

    `children` are in the order in which to apply them. `templates` are hashes of the engines' pod templates, `url` is
    where clients inside the cluster reach the router, `node_selector` the labels of nodes that engines may run on.
    """

    children: tuple[dict[str, Any], ...]
    revision: str
    templates: Mapping[Role, str]
    resolved: ResolvedStatus
    url: str
    node_selector: Mapping[str, str]


@dataclass(frozen=True)
class Desired(Blueprint):
    """What to do now.

    `keep` are children that are no longer planned and must not go yet, since pods of an older template need them.
    `rollout` is the step of the rollout that the children take, `delete_pods` the names of the pods that it takes.
    """

    keep: frozenset[ChildRef]
    rollout: Rollout
    delete_pods: tuple[str, ...]


def blueprint(cr: DisaggregatedInference, config: PlanConfig) -> Blueprint:
    """What follows from the resource alone."""
    scope = Scope.of(cr, config)
    revision = revisions.of(scope)
    workloads = {role: statefulset.build(scope, role, revision) for role in Role}
    return Blueprint(
        children=_children(scope, revision, list(workloads.values())),
        revision=revision,
        templates={role: statefulset.template_hash(workload) for role, workload in workloads.items()},
        resolved=scope.resolved.to_status(),
        url=_url(scope),
        node_selector=placement.node_selector(scope) or {},
    )


def plan(
    cr: DisaggregatedInference, observed: Observed | None, config: PlanConfig, known: Blueprint | None = None
) -> Desired:
    """What to do now; no children for a resource that is being deleted, which the garbage collector takes.

    `known` is the resource's blueprint, if it has been made before.
    """
    base, scope = known or blueprint(cr, config), Scope.of(cr, config)
    rollout = step(sides(scope, base.revision, base.templates, observed), paused=cr.spec.rollout.paused)
    deleting = cr.metadata.deletion_timestamp is not None
    return Desired(
        children=() if deleting else _completed(scope, base, rollout, observed),
        revision=base.revision,
        templates=base.templates,
        resolved=base.resolved,
        url=base.url,
        node_selector=base.node_selector,
        keep=claims.in_use(scope, observed),
        rollout=rollout,
        delete_pods=() if deleting else tuple(names.pod(scope.name, *place) for place in rollout.delete),
    )


def _children(scope: Scope, revision: str, workloads: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """What others refer to comes first."""
    return (
        *rbac.build(scope),
        *config_maps.build(scope),
        *(services.governing(scope, role) for role in Role),
        *(services.routing(scope, role, revision) for role in Role),
        services.client(scope),
        *network_policy.build(scope),
        *pod_disruption_budget.build(scope),
        *(claims.build(scope, role) for role in Role if claims.uses_claim(scope)),
        *valkey.build(scope),
        *workloads,
        router.deployment(scope),
        *pod_monitor.build(scope),
    )


def _completed(
    scope: Scope, base: Blueprint, rollout: Rollout, observed: Observed | None
) -> tuple[dict[str, Any], ...]:
    """With what depends on what is there: Services of older revisions, budgets under an autoscaler, partitions."""
    partitions = {names.role(scope.name, role): partition for role, partition in rollout.partitions.items()}
    return (
        *_older_services(scope, base.revision, observed),
        *pod_disruption_budget.build_scaled(scope, observed),
        *(
            statefulset.with_partition(child, partitions[child["metadata"]["name"]])
            if child["kind"] == statefulset.KIND
            else child
            for child in base.children
        ),
    )


def _older_services(scope: Scope, revision: str, observed: Observed | None) -> list[dict[str, Any]]:
    """A revision keeps its routing Services for as long as it has pods."""
    living = {(Role(pod.component), pod.revision) for pod in (observed.pods if observed else ()) if pod.is_engine}
    older = sorted((role, each) for role, each in living if each not in {"", revision})
    return [services.routing(scope, role, each) for role, each in older]


def _url(scope: Scope) -> str:
    """Where clients inside the cluster reach the router."""
    host = f"{names.client_service(scope.name)}.{scope.namespace}.svc.{scope.config.cluster_domain}"
    return f"http://{host}:{scope.spec.router.port}"
