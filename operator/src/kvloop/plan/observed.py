"""What the planner may look at: a small, frozen projection of the cluster. No Kubernetes client types.

The controller copies, the planner judges: no field here is a conclusion, so that every judgement is in a pure function.
Times are Unix seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvloop.api.labels import Reason, Role
from kvloop.plan.measured import Measured


@dataclass(frozen=True, order=True, slots=True)
class ChildRef:
    """Names one child within the namespace of the custom resource."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Workload:
    """What a StatefulSet or Deployment says of its pods.

    `replicas`, `partition` and `template` (the pod template's annotation TEMPLATE_HASH) are of spec, the rest is of
    status: `pods` is status.replicas; `current_revision` and `update_revision` are a StatefulSet's, from which pods
    below the partition, and from it up, are made, and equal when a rollout has ended. `create_failure` is why it cannot
    make pods, empty if it can: the message of a Deployment's condition ReplicaFailure, or of a StatefulSet's newest
    event FailedCreate.
    """

    replicas: int
    partition: int = 0
    template: str = ""
    pods: int = 0
    ready: int = 0
    updated: int = 0
    current_revision: str = ""
    update_revision: str = ""
    create_failure: str = ""


@dataclass(frozen=True, slots=True)
class Child:
    """One child as the API server holds it.

    `owner_uid` is the uid of its controller, None if it has none. `applied_hash` is the annotation APPLIED_HASH.
    `observed_generation` is 0 for kinds that have none. `workload` is set for StatefulSets and Deployments.
    """

    ref: ChildRef
    uid: str
    owner_uid: str | None
    generation: int = 0
    observed_generation: int = 0
    applied_hash: str = ""
    workload: Workload | None = None


@dataclass(frozen=True, slots=True)
class Container:
    """One entry of containerStatuses or initContainerStatuses.

    `running` is whether state.running is there, and `started_at` its startedAt, 0 otherwise; `started` is the field of
    that name: the startup probe has passed.
    `waiting` and `message` are reason and message of state.waiting, empty otherwise. `terminated` and `exit_code` are
    of state.terminated or, failing that, lastState.terminated: how it ended when it last did.
    """

    name: str
    image: str = ""
    running: bool = False
    started_at: float = 0.0
    started: bool = False
    restarts: int = 0
    waiting: str = ""
    message: str = ""
    terminated: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod.

    `component` is the label APP_COMPONENT: prefill, decode, router and so on. `revision` is the label REVISION,
    `template` the annotation TEMPLATE_HASH, `controller_revision` the label controller-revision-hash (of a ReplicaSet's
    pod: pod-template-hash). `claim_templates` are names of ResourceClaimTemplates. `ready` is the condition Ready, and
    `ready_changed_at` when it last changed; `scheduled` is the condition PodScheduled, and `unschedulable` its message
    when it is False, without numbers of nodes. `reason` and `message` are status.reason and status.message, as of an
    evicted pod. `probe_failure` is the message of an Event about the readiness probe, if the pod has long been running.
    `containers` has init containers first.
    """

    name: str
    uid: str
    component: str
    revision: str = ""
    template: str = ""
    controller_revision: str = ""
    claim_templates: tuple[str, ...] = ()
    phase: str = "Pending"
    ready: bool = False
    ready_changed_at: float = 0.0
    scheduled: bool = False
    deleting: bool = False
    created_at: float = 0.0
    node: str = ""
    unschedulable: str = ""
    reason: str = ""
    message: str = ""
    probe_failure: str = ""
    containers: tuple[Container, ...] = ()

    @property
    def is_engine(self) -> bool:
        """Whether it is one of the two roles' pods."""
        return self.component in set(Role)

    @property
    def ordinal(self) -> int:
        """The number that a StatefulSet gave to the pod; 0 for a pod of another kind."""
        number = self.name.rpartition("-")[2]
        return int(number) if number.isdecimal() else 0


@dataclass(frozen=True)
class Missing:
    """A Secret or ConfigMap that the spec names and that is not there, or that lacks `key`."""

    kind: str
    name: str
    key: str = ""


@dataclass(frozen=True)
class NodeKind:
    """Nodes that are alike: how many, and the extended resources that each has allocatable, used or not."""

    zone: str
    instance_type: str
    nodes: int
    allocatable: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ApplyFailure:
    """A child that the API server refused, with its answer. `terminal`: trying again cannot help."""

    ref: ChildRef
    reason: Reason
    message: str
    terminal: bool = False


@dataclass(frozen=True)
class Observed:
    """Everything that is known of one custom resource at the time `now`.

    `capacity` are the ready nodes with the labels of `placement.node_selector`; None where the operator may not read
    nodes, or had no reason to. `measured` is None while no router answers.
    """

    now: float
    children: Mapping[ChildRef, Child] = field(default_factory=dict)
    pods: tuple[Pod, ...] = ()
    missing: frozenset[Missing] = frozenset()
    capacity: tuple[NodeKind, ...] | None = None
    measured: Measured | None = None
    apply_failures: tuple[ApplyFailure, ...] = ()

    def workload(self, kind: str, name: str) -> Workload | None:
        """The workload of that child, None if it is not there."""
        child = self.children.get(ChildRef(kind, name))
        return child.workload if child else None

    def pods_of(self, component: str) -> tuple[Pod, ...]:
        """Pods of that component (a Role is one) that are not on their way out, in order of their numbers."""
        live = (pod for pod in self.pods if pod.component == component and not pod.deleting)
        return tuple(sorted(live, key=lambda pod: (pod.ordinal, pod.name)))
