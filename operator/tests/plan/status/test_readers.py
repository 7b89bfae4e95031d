"""kstatus, `kubectl wait` and Argo CD read the status right at every moment of a resource's life.

Argo CD's is the health check in manifests/argocd.
"""

from collections.abc import Callable
from typing import Any

import pytest

from e2e.gitops.readers import argo, kstatus, kubectl_wait
from kvloop.api.labels import Role
from kvloop.plan.observed import Missing

PULL = {"waiting": "ErrImagePull", "message": "rpc error: code = NotFound desc = registry.example/i:1: not found"}


class Replay:
    """Reports the status at every step, and compares what each reader makes of it."""

    def __init__(self, world: Any) -> None:
        self.world = world

    def expect(self, reading: str, reason: str, available: str = "False", health: str = "") -> None:
        edited = self.world.latest["observedGeneration"] != self.world.body["metadata"]["generation"]
        if edited:  # between an edit and our answer to it nobody may take the old status for the new one
            assert kstatus(self.world.body) in {"InProgress", "Terminating"}
            assert argo(self.world.body) == "Progressing"
            assert not kubectl_wait(self.world.body)
        self.world.report()
        body = self.world.body
        assert (kstatus(body), self.world.condition("Ready")["reason"]) == (reading, reason)
        assert self.world.condition("Available")["status"] == available
        assert kubectl_wait(body) == (reading == "Current")
        mapped = {"InProgress": "Progressing", "Failed": "Degraded", "Current": "Healthy", "Terminating": "Progressing"}
        assert argo(body) == (health or mapped[reading])
        generation = body["metadata"]["generation"]
        assert {each["observedGeneration"] for each in self.world.latest["conditions"]} == {generation}
        flags = {each["type"]: each["status"] == "True" for each in self.world.latest["conditions"]}
        assert not (flags["Reconciling"] and flags["Stalled"])
        assert not (flags["Ready"] and (flags["Reconciling"] or flags["Stalled"]))
        self.world.wait(30)


@pytest.fixture
def replay(world: Callable[..., Any]) -> Replay:
    return Replay(world())


def test_before_the_first_status(world: Callable[..., Any]) -> None:
    """The CRD's default of status keeps a new object from being read as current."""
    body = world().body
    assert (kstatus(body), argo(body), kubectl_wait(body)) == ("InProgress", "Progressing", False)
    assert kstatus({"metadata": body["metadata"]}) == "Current"


def test_from_nothing_to_ready(replay: Replay) -> None:
    world, expect = replay.world, replay.expect
    expect("InProgress", "Progressing")
    world.make_children()
    expect("InProgress", "PodsPending")
    world.all_load()
    expect("InProgress", "ModelLoading")
    world.ready("chat-prefill-0", "chat-decode-0")
    expect("InProgress", "ModelLoading")
    world.router_ready()
    expect("InProgress", "ModelLoading", "True")
    world.ready("chat-prefill-1", "chat-decode-1")
    expect("Current", "Ready", "True")


@pytest.fixture
def ready(replay: Replay) -> Replay:
    replay.world.all_ready()
    replay.expect("Current", "Ready", "True")
    return replay


def test_a_rollout_is_ready_only_when_every_pod_is_new(ready: Replay) -> None:
    world, expect = ready.world, ready.expect
    world.edit(model={"maxLength": 1024})
    expect("InProgress", "RollingOut", "True")
    for number, loading, loaded in ((1, "RollingOut", "RollingOut"), (0, "ModelLoading", "Ready")):
        for role in Role:
            world.engine(role, number)
            world.container(f"chat-{role}-{number}", running=True)
        expect("InProgress", loading, "True")
        world.ready(f"chat-prefill-{number}", f"chat-decode-{number}")
        expect("Current" if loaded == "Ready" else "InProgress", loaded, "True")


def test_a_bad_image_fails_at_once_while_the_old_one_serves(ready: Replay) -> None:
    world, expect = ready.world, ready.expect
    good = dict(world.pods)
    world.edit(engine={"image": "registry.example/vllm:0.32.0-typo"})
    expect("InProgress", "RollingOut", "True")
    for role in Role:
        world.engine(role, 1)
        world.container(f"chat-{role}-1", **PULL)
    expect("Failed", "ImagePullFailed", "True")
    world.edit(engine={"image": "registry.example/vllm:0.32.0"})
    expect("InProgress", "RollingOut", "True")
    world.pods = good
    expect("Current", "Ready", "True")


def test_to_nothing_and_back_and_away(ready: Replay) -> None:
    world, expect = ready.world, ready.expect
    world.edit(prefill={"replicas": 0}, decode={"replicas": 0})
    expect("InProgress", "PodsPending", "True")
    world.pods = {name: pod for name, pod in world.pods.items() if pod.component == "router"}
    expect("Current", "ScaledToZero")
    assert world.condition("Available")["reason"] == "ScaledToZero"
    world.edit(prefill={"replicas": 2}, decode={"replicas": 2})
    expect("InProgress", "PodsPending")
    world.all_ready()
    expect("Current", "Ready", "True")
    world.delete()
    expect("Terminating", "Deleting", "True")
    world.children, world.pods = {}, {}
    expect("Terminating", "Deleting")


def test_paused_waits_for_a_person_and_not_for_time(replay: Replay) -> None:
    world, expect = replay.world, replay.expect
    world.all_ready()
    expect("Current", "Ready", "True")
    world.edit(rollout={"paused": True})
    expect("Current", "Ready", "True", health="Suspended")
    world.edit(model={"maxLength": 1024})
    expect("InProgress", "Paused", "True", health="Suspended")
    assert world.condition("Reconciling")["status"] == "False"
    world.wait(100_000)
    expect("InProgress", "Paused", "True", health="Suspended")
    world.edit(rollout={})
    expect("InProgress", "RollingOut", "True")


def test_a_missing_secret_fails_at_once_and_heals(replay: Replay) -> None:
    world, expect = replay.world, replay.expect
    token = {"name": "hf", "key": "token"}
    source = {"path": None, "huggingFace": {"repository": "a/b", "tokenSecretRef": token}}
    world.edit(model={"source": source})
    world.make_children()
    world.all_load()
    for name in world.pods:
        world.container(name, waiting="CreateContainerConfigError", message='secret "hf" not found')
    world.facts["missing"] = frozenset({Missing("Secret", "hf")})
    expect("Failed", "SecretNotFound")
    world.facts["missing"] = frozenset()
    world.all_load()
    expect("InProgress", "ModelLoading")


def test_no_progress_for_too_long_is_a_failure(replay: Replay) -> None:
    world, expect = replay.world, replay.expect
    world.edit(rollout={"progressDeadlineSeconds": 600})
    world.make_children()
    for number in range(2):
        world.engine(Role.PREFILL, number, unschedulable="no nodes are available: Insufficient nvidia.com/gpu")
        world.engine(Role.DECODE, number)
        world.container(f"chat-decode-{number}", running=True)
    expect("InProgress", "InsufficientCapacity")
    world.ready("chat-decode-0")
    world.wait(500)
    expect("InProgress", "InsufficientCapacity")
    world.wait(500)
    expect("InProgress", "InsufficientCapacity")
    world.wait(100)
    expect("Failed", "InsufficientCapacity")
    assert world.condition("Stalled")["reason"] == "ProgressDeadlineExceeded"
    assert world.condition("Stalled")["message"].startswith("No progress for 600 s: chat-prefill-0 cannot be scheduled")
    world.ready("chat-decode-1")
    expect("InProgress", "InsufficientCapacity")
    world.all_ready()
    expect("Current", "Ready", "True")
    world.wait(100_000)
    expect("Current", "Ready", "True")
