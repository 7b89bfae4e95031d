"""From pods to a step of the rollout."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvloop.api.labels import TEMPLATE_HASH, Role
from kvloop.plan.config import PlanConfig
from kvloop.plan.desired import Desired, plan
from kvloop.plan.observed import Child, ChildRef, Container, Observed, Pod, Workload
from kvloop.plan.sides import is_failing

Make = Callable[..., Any]
OLD, NEW = "registry.example/vllm:0.31.0", "registry.example/vllm:0.32.0"


class World:
    """A cluster in which the StatefulSets' pods are of a chosen plan."""

    def __init__(self, make: Make, config: PlanConfig) -> None:
        self._make, self._config = make, config

    def templates(self, spec: dict[str, Any] | None) -> dict[str, str]:
        """Hashes of the pod templates by name of the StatefulSet."""
        return {
            child["metadata"]["name"]: child["spec"]["template"]["metadata"]["annotations"][TEMPLATE_HASH]
            for child in plan(self._make(spec), None, self._config).children
            if child["kind"] == "StatefulSet"
        }

    def pods(self, role: Role, image: str, count: int, **fields: Any) -> list[Pod]:
        of_image = {"engine": {"image": image}}
        revision, template = (
            plan(self._make(of_image), None, self._config).revision,
            self.templates(of_image)[f"chat-{role}"],
        )
        ready = Pod("", "", role, revision, template, image, phase="Running", ready=True)
        return [replace(ready, name=f"chat-{role}-{n}", uid=f"{role}{n}", **fields) for n in range(count)]

    def plan(self, *pods: Pod, spec: dict[str, Any] | None = None, base: str = OLD, **metadata: Any) -> Desired:
        """With StatefulSets whose controllers know the newest template, and are free to replace every pod."""
        return self.plan_with({"template": self.templates(spec)}, *pods, spec=spec, base=base, **metadata)

    def plan_with(
        self,
        known: dict[str, Any],
        *pods: Pod,
        spec: dict[str, Any] | None = None,
        base: str = OLD,
        generation: int = 1,
        **metadata: Any,
    ) -> Desired:
        children = {}
        for role in Role:
            ref = ChildRef("StatefulSet", f"chat-{role}")
            fields = known | {"template": known["template"][ref.name]}
            workload = Workload(replicas=2, current_revision=base, **fields)
            children[ref] = Child(ref, "u", "1-2-3", generation, 1, workload=workload)
        return plan(self._make(spec, **metadata), Observed(0.0, children, pods), self._config)


@pytest.fixture
def world(make: Make, config: PlanConfig) -> World:
    return World(make, config)


def partitions(desired: Desired) -> tuple[int, ...]:
    sent = {
        child["metadata"]["name"]: child["spec"]["updateStrategy"]["rollingUpdate"]["partition"]
        for child in desired.children
        if child["kind"] == "StatefulSet"
    }
    return tuple(sent[f"chat-{role}"] for role in Role)


def both(world: World, image: str, **fields: Any) -> list[Pod]:
    return [pod for role in Role for pod in world.pods(role, image, 2, **fields)]


def test_nothing_is_held_back_at_first(world: World) -> None:
    desired = world.plan()
    assert partitions(desired) == (0, 0)
    assert desired.delete_pods == ()
    assert not desired.rollout.done


def test_an_unchanged_plan_is_done(world: World) -> None:
    desired = world.plan(*both(world, NEW))
    assert partitions(desired) == (0, 0)
    assert desired.rollout.done


def test_a_change_takes_a_pair_at_a_time(world: World) -> None:
    assert partitions(world.plan(*both(world, OLD))) == (1, 1)


def test_a_pause_holds_it(world: World) -> None:
    desired = world.plan(*both(world, OLD), spec={"rollout": {"paused": True}})
    assert partitions(desired) == (2, 2)
    assert "paused" in desired.rollout.message


def test_max_unavailable_is_the_roles_own(world: World) -> None:
    spec = {"prefill": {"maxUnavailable": 2}, "decode": {"maxUnavailable": 2}}
    idle = both(world, OLD, ready=False)
    assert partitions(world.plan(*idle, spec=spec)) == (0, 0)


def test_pods_in_the_way_are_deleted_by_name(world: World) -> None:
    stuck = both(world, OLD, ready=False, containers=(Container("vllm", waiting="ImagePullBackOff"),))
    desired = world.plan(*stuck)
    assert partitions(desired) == (0, 0)
    assert set(desired.delete_pods) == {f"chat-{role}-{n}" for role in Role for n in range(2)}


SEVERAL = {"prefill": {"maxUnavailable": 2}, "decode": {"replicas": 0}}


def test_a_stateful_set_that_replaces_one_at_a_time_gets_help_where_several_may_go(world: World) -> None:
    desired = world.plan(*world.pods(Role.PREFILL, OLD, 2), spec=SEVERAL)
    assert partitions(desired) == (0, 0)
    assert desired.delete_pods == ("chat-prefill-0", "chat-prefill-1")


def test_help_waits_for_the_other_side_s_turn(world: World) -> None:
    pods = [*world.pods(Role.PREFILL, OLD, 2), *world.pods(Role.DECODE, OLD, 1)]
    spec = SEVERAL | {"decode": {"replicas": 1}}
    assert world.plan(*pods, spec=spec).delete_pods == ("chat-prefill-1",)
    assert world.plan(*pods[:1], spec=spec).delete_pods == ("chat-prefill-0",)


def test_nothing_is_deleted_that_would_come_back_of_the_old_template(world: World) -> None:
    """Its controller must have seen the new one, and from where on it is to be used."""
    pods = world.pods(Role.PREFILL, OLD, 2)
    new, old = world.templates(SEVERAL), world.templates({"engine": {"image": OLD}})
    assert world.plan_with({"template": new}, *pods, spec=SEVERAL, generation=2).delete_pods == ()
    assert world.plan_with({"template": old}, *pods, spec=SEVERAL).delete_pods == ()
    assert world.plan_with({"template": new, "partition": 1}, *pods, spec=SEVERAL).delete_pods == ("chat-prefill-1",)


def test_no_pod_is_deleted_during_deletion(world: World) -> None:
    stuck = both(world, OLD, ready=False, containers=(Container("vllm", waiting="ImagePullBackOff"),))
    desired = world.plan(*stuck, deletion_timestamp="2030-01-01T00:00:00Z")
    assert desired.delete_pods == ()


def test_replicas_of_somebody_else_are_those_of_the_statefulset(world: World) -> None:
    spec = {"prefill": {"replicas": None}, "decode": {"replicas": None}}
    assert partitions(world.plan(*both(world, OLD), spec=spec)) == (1, 1)


def test_an_engine_that_has_started_is_not_idle_while_it_is_down(world: World) -> None:
    down = both(world, OLD, ready=False, containers=(Container("vllm", running=True, started=True),))
    assert world.plan(*down).delete_pods == ()


@pytest.mark.parametrize(
    ("container", "failing"),
    [
        (Container("vllm", running=True), False),
        (Container("vllm", waiting="ContainerCreating"), False),
        (Container("vllm", waiting="PodInitializing"), False),
        (Container("logs", waiting="ErrImagePull"), True),
        (Container("vllm", waiting="CrashLoopBackOff"), True),
        (Container("vllm", waiting="CreateContainerConfigError"), True),
        (Container("vllm", running=True, restarts=2, terminated="Error", exit_code=1), False),
        (Container("vllm", running=True, restarts=3, terminated="Error", exit_code=1), True),
        (Container("vllm", running=True, restarts=9, terminated="Completed", exit_code=0), False),
        (Container("vllm", running=True, started=True, restarts=9, terminated="Error", exit_code=1), False),
    ],
)
def test_failing_is_what_time_does_not_heal(container: Container, failing: bool) -> None:
    pod = Pod("chat-prefill-0", "u", "prefill", containers=(container,))
    assert is_failing(pod) is failing
    assert not is_failing(replace(pod, ready=True))


def test_an_evicted_pod_fails() -> None:
    assert is_failing(Pod("chat-prefill-0", "u", "prefill", phase="Failed", reason="Evicted"))
