"""What the policies look at: the resource, what there should be and what there is, sorted by role."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvloop.api.labels import TEMPLATE_HASH, Condition, Reason, Role
from kvloop.api.v1alpha1 import DisaggregatedInference, Status
from kvloop.api.v1alpha1.engine import RoleSpec
from kvloop.api.v1alpha1.status import ConditionStatus
from kvloop.plan import names, router, valkey
from kvloop.plan.desired import Desired
from kvloop.plan.observed import ChildRef, Observed, Pod
from kvloop.plan.resolve import role_spec


@dataclass(frozen=True)
class Fleet:
    """The engines of one role. `pods` are those that stay; `template` is the hash of the newest pod template."""

    role: Role
    spec: RoleSpec
    wanted: int
    template: str
    pods: tuple[Pod, ...]

    @property
    def ready(self) -> tuple[Pod, ...]:
        """Pods of any template that are ready."""
        return tuple(pod for pod in self.pods if pod.ready)

    @property
    def updated(self) -> tuple[Pod, ...]:
        """Pods of the newest template."""
        return tuple(pod for pod in self.pods if pod.template == self.template)


@dataclass(frozen=True)
class View:
    """Input of every policy."""

    cr: DisaggregatedInference
    observed: Observed
    desired: Desired
    previous: Status
    status_seconds: float

    @property
    def name(self) -> str:
        """Name of the resource."""
        return self.cr.metadata.name

    @property
    def deleting(self) -> bool:
        """Whether the resource is on its way out."""
        return self.cr.metadata.deletion_timestamp is not None

    @cached_property
    def children(self) -> Mapping[ChildRef, Mapping[str, Any]]:
        """What there should be."""
        return {ChildRef(each["kind"], each["metadata"]["name"]): each for each in self.desired.children}

    @cached_property
    def fleets(self) -> Mapping[Role, Fleet]:
        """The engines of both roles."""
        return {role: self._fleet(role) for role in Role}

    def _fleet(self, role: Role) -> Fleet:
        spec, name = role_spec(self.cr.spec, role), names.role(self.name, role)
        workload = self.observed.workload("StatefulSet", name)
        planned = self.children.get(ChildRef("StatefulSet", name))
        return Fleet(
            role=role,
            spec=spec,
            wanted=spec.replicas if spec.replicas is not None else workload.replicas if workload else 1,
            template=planned["spec"]["template"]["metadata"]["annotations"][TEMPLATE_HASH] if planned else "",
            pods=self.observed.pods_of(role),
        )

    @property
    def outdated(self) -> bool:
        """Whether there are engines of older templates that stay, until it is their turn."""
        return any(
            pod.template != fleet.template and pod.ordinal < fleet.wanted
            for fleet in self.fleets.values()
            for pod in fleet.pods
        )

    @property
    def routers(self) -> tuple[Pod, ...]:
        """Router pods of any template."""
        return self.observed.pods_of(router.COMPONENT)

    @cached_property
    def waiting_for(self) -> tuple[Pod, ...]:
        """Pods of the newest templates that are not ready: whatever is wrong with these is what is wrong."""
        return tuple(pod for pod in self._newest() if not pod.ready)

    def _newest(self) -> Iterator[Pod]:
        for fleet in self.fleets.values():
            yield from fleet.updated
        for component in (router.COMPONENT, valkey.COMPONENT):
            # A ReplicaSet's pods do not tell whose turn it is, but the youngest pod is of the newest one. Those
            # that have ended it leaves behind, and makes younger ones.
            pods = self.observed.pods_of(component)
            youngest = max(pods, key=lambda pod: pod.created_at, default=None)
            live = (pod for pod in pods if pod is youngest or pod.phase not in {"Failed", "Succeeded"})
            yield from (pod for pod in live if youngest and pod.controller_revision == youngest.controller_revision)

    def was_stalled_by(self, reason: Reason) -> bool:
        """Whether the previous status, of the same spec, was stalled for that reason."""
        return any(
            each.type == Condition.STALLED
            and each.status == ConditionStatus.TRUE
            and each.reason == reason
            and each.observed_generation == self.cr.metadata.generation
            for each in self.previous.conditions
        )
