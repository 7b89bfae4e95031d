"""Every kind of trouble gives its reason, says what to do, and stalls only if somebody must act."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvloop.api.labels import Reason, Role
from kvloop.plan.observed import ApplyFailure, ChildRef, Container, Missing, NodeKind, Pod

Build = Callable[..., Any]
P0, D0, ROUTER = "chat-prefill-0", "chat-decode-0", "chat-router-abc-0"


def told(world: Any) -> tuple[str, bool, str]:
    """Reason and message of Ready, and whether it is stalled for that reason."""
    world.report()
    ready, stalled = world.condition("Ready"), world.condition("Stalled")
    assert ready["status"] == "False"
    is_stalled = stalled["status"] == "True"
    assert is_stalled == (world.condition("Reconciling")["status"] == "False")
    if is_stalled:
        assert (stalled["reason"], stalled["message"]) == (ready["reason"], ready["message"])
    return ready["reason"], is_stalled, ready["message"]


NOT_FOUND = 'failed to pull and unpack image "registry.example/i:1": registry.example/i:1: not found'
PULLS = {
    "no such tag": ("ErrImagePull", NOT_FOUND, True, f"({NOT_FOUND}). Correct spec.engine.image, or push it."),
    "backing off says the same": (
        "ImagePullBackOff",
        f'Back-off pulling image "registry.example/i:1": ErrImagePull: {NOT_FOUND}',
        True,
        f"({NOT_FOUND}). Correct spec.engine.image, or push it.",
    ),
    "backing off says nothing": (
        "ImagePullBackOff",
        'Back-off pulling image "registry.example/i:1"',
        True,
        'chat-prefill-0 cannot pull image "registry.example/i:1". Correct spec.engine.image, or push it.',
    ),
    "no access": (
        "ErrImagePull",
        "401 Unauthorized",
        True,
        "(401 Unauthorized). Give credentials in spec.engine.imagePullSecrets.",
    ),
    "not a name": ("InvalidImageName", "couldn't parse image name", True, "Correct spec.engine.image"),
    "no such registry": ("ErrImagePull", "lookup registry.exmaple: no such host", True, "Correct spec.engine.image"),
    "registry down": ("ErrImagePull", "dial tcp: i/o timeout", False, "(dial tcp: i/o timeout). It is tried again."),
    "registry overloaded": ("ErrImagePull", "429 Too Many Requests", False, "It is tried again."),
    "registry broken": ("ErrImagePull", "unexpected status: 503 Service Unavailable", False, "It is tried again."),
}


@pytest.mark.parametrize(("waiting", "message", "stalls", "expected"), PULLS.values(), ids=PULLS.keys())
def test_image_pull(healthy: Build, waiting: str, message: str, stalls: bool, expected: str) -> None:
    world = healthy()
    world.container(P0, waiting=waiting, message=message)
    reason, stalled, said = told(world)
    assert (reason, stalled) == (Reason.IMAGE_PULL_FAILED, stalls)
    assert said.startswith('chat-prefill-0 cannot pull image "registry.example/i:1"')
    assert said.endswith(expected) or expected in said


def test_the_one_that_needs_somebody_is_told(healthy: Build) -> None:
    world = healthy()
    world.container(P0, waiting="ErrImagePull", message="i/o timeout")
    world.container(D0, waiting="ErrImagePull", message="manifest unknown")
    _, stalled, said = told(world)
    assert stalled
    assert said.startswith("chat-decode-0")


def test_the_router_s_image(healthy: Build) -> None:
    world = healthy()
    world.container(ROUTER, waiting="ErrImagePull", message="not found")
    assert told(world)[2].endswith("Correct the image, or push it.")


CRASHED = {
    "first": ({"running": True, "restarts": 1, "exit_code": 1}, False, "ended with exit code 1, restarted 1 time."),
    "second": ({"waiting": "CrashLoopBackOff", "restarts": 1, "exit_code": 2}, False, "exit code 2, restarted 1 time."),
    "third": ({"waiting": "CrashLoopBackOff", "restarts": 2, "exit_code": 1}, True, "restarted 2 times."),
    "ends well but should not end": ({"waiting": "CrashLoopBackOff", "restarts": 5, "exit_code": 0}, True, "code 0"),
    "not yet restarted": ({"exit_code": 137}, False, "exit code 137, restarted 0 times."),
}


@pytest.mark.parametrize(("state", "stalls", "expected"), CRASHED.values(), ids=CRASHED.keys())
def test_crash(healthy: Build, state: dict[str, Any], stalls: bool, expected: str) -> None:
    world = healthy()
    world.container(D0, terminated="Error", **state)
    reason, stalled, said = told(world)
    assert (reason, stalled) == (Reason.ENGINE_CRASHED, stalls)
    assert expected in said
    assert said.endswith("See kubectl logs chat-decode-0 --container vllm --previous.")


def test_a_crash_loop_is_one_until_the_engine_is_ready(healthy: Build) -> None:
    world = healthy()
    world.container(D0, waiting="CrashLoopBackOff", restarts=4, exit_code=1)
    assert told(world)[:2] == (Reason.ENGINE_CRASHED, True)
    world.container(D0, running=True, restarts=5, exit_code=1)
    assert told(world)[:2] == (Reason.ENGINE_CRASHED, True)
    world.ready(D0)
    world.report()
    assert world.condition("Stalled")["status"] == "False"
    world.container(D0, running=True, restarts=6, exit_code=1)
    assert told(world)[:2] == (Reason.ENGINE_CRASHED, False)


def test_an_edit_forgets_the_crash_loop(healthy: Build) -> None:
    world = healthy()
    world.container(D0, waiting="CrashLoopBackOff", restarts=4, exit_code=1)
    world.report()
    world.edit(rollout={"progressDeadlineSeconds": 999})
    world.container(D0, running=True, restarts=5, exit_code=1)
    assert told(world)[:2] == (Reason.ENGINE_CRASHED, False)


def test_out_of_memory(healthy: Build) -> None:
    world = healthy()
    world.container(D0, waiting="CrashLoopBackOff", terminated="OOMKilled", restarts=2, exit_code=137)
    reason, stalled, said = told(world)
    assert (reason, stalled) == (Reason.ENGINE_OUT_OF_MEMORY, True)
    assert said.endswith("ran out of memory, restarted 2 times. Raise limits.memory in spec.decode.resources.")
    world = healthy()
    world.container(ROUTER, waiting="CrashLoopBackOff", terminated="OOMKilled", restarts=2, exit_code=137)
    assert told(world)[0] == Reason.ROUTER_CRASHED
    assert told(world)[2].endswith("Raise limits.memory in spec.router.resources.")


def test_the_router_crashes(healthy: Build) -> None:
    world = healthy()
    world.container(ROUTER, waiting="CrashLoopBackOff", restarts=2, exit_code=1)
    assert told(world)[:2] == (Reason.ROUTER_CRASHED, True)


@pytest.mark.parametrize(
    ("message", "stalls"), [("exec: vllm: not found", True), ("", True), ("context deadline exceeded", False)]
)
def test_a_container_that_cannot_be_started(healthy: Build, message: str, stalls: bool) -> None:
    world = healthy()
    world.container(P0, waiting="RunContainerError", message=message)
    cause = message or "RunContainerError"
    assert told(world) == (
        Reason.ENGINE_CRASHED,
        stalls,
        f"chat-prefill-0: container vllm cannot be started ({cause}).",
    )


def test_an_init_container_that_has_done_its_work_is_no_crash(healthy: Build) -> None:
    world = healthy()
    containers = (Container("prepare", terminated="Completed", exit_code=0), Container("vllm", running=True))
    world.change(P0, ready=False, containers=containers)
    assert told(world)[:2] == (Reason.MODEL_LOADING, False)


TOKEN = {"name": "hf", "key": "token"}
GATED = {"source": {"path": None, "huggingFace": {"repository": "a/b", "tokenSecretRef": TOKEN}}}
MISSING = {
    "secret": (
        Missing("Secret", "hf"),
        (
            Reason.SECRET_NOT_FOUND,
            True,
            'Secret "hf" is not there: create it with the key "token"; the pods that wait for it then start.',
        ),
    ),
    "key": (
        Missing("Secret", "hf", "token"),
        (
            Reason.SECRET_NOT_FOUND,
            True,
            'Secret "hf" has no key "token": add it; the pods that wait for it then start.',
        ),
    ),
    "config map": (
        Missing("ConfigMap", "chat-engine-plugin"),
        (
            Reason.CONFIG_MAP_NOT_FOUND,
            True,
            'ConfigMap "chat-engine-plugin" is not there: create it; the pods that wait for it then start.',
        ),
    ),
}


@pytest.mark.parametrize(("missing", "expected"), MISSING.values(), ids=MISSING.keys())
def test_missing_reference(healthy: Build, missing: Missing, expected: tuple[Reason, bool, str]) -> None:
    world = healthy(model=GATED)
    world.container(P0, waiting="CreateContainerConfigError", message='secret "hf" not found')
    world.facts["missing"] = frozenset({missing, Missing("Secret", "zz-of-a-former-spec")})
    assert told(world) == expected


def test_a_missing_secret_that_is_mounted_is_told_with_its_key(healthy: Build) -> None:
    store = {"valkey": {"url": "redis://valkey:6379", "passwordSecretRef": {"name": "valkey", "key": "secret"}}}
    world = healthy(router={"store": store})
    world.container(ROUTER, waiting="ContainerCreating")
    world.facts["missing"] = frozenset({Missing("Secret", "valkey")})
    assert 'create it with the key "secret";' in told(world)[2]


def test_what_nobody_waits_for_is_not_missing(healthy: Build) -> None:
    """The Secret was deleted under running pods, or the spec names it no more."""
    world = healthy(model=GATED)
    world.facts["missing"] = frozenset({Missing("Secret", "hf")})
    world.report()
    assert world.condition("Ready")["status"] == "True"
    world.facts["missing"] = frozenset({Missing("Secret", "of-a-former-spec")})
    world.container(P0, waiting="CreateContainerConfigError", message='secret "x" not found')
    assert told(world)[0] == Reason.ENGINE_CRASHED


REFUSALS = {
    "name": (Reason.NAME_CONFLICT, "ConfigMap x exists", True, True),
    "immutable": (Reason.IMMUTABLE_FIELD, "StatefulSet x: spec.selector cannot be changed", True, True),
    "template": (Reason.INVALID_POD_TEMPLATE, "spec.template.spec.containers[0].image: Required value", True, True),
    "policy": (Reason.ADMISSION_REFUSED, "admission webhook denied the request: no", False, True),
    "webhook down": (Reason.ADMISSION_REFUSED, "failed calling webhook: connection refused", False, False),
    "quota": (Reason.ADMISSION_REFUSED, "exceeded quota: pods", False, False),
    "other": (Reason.APPLY_FAILED, "500", False, False),
}


@pytest.mark.parametrize(("reason", "message", "terminal", "stalls"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refused_child(healthy: Build, reason: Reason, message: str, terminal: bool, stalls: bool) -> None:
    world = healthy()
    world.facts["apply_failures"] = (ApplyFailure(ChildRef("StatefulSet", "x"), reason, message, terminal),)
    assert told(world) == (reason, stalls, message)


def test_of_several_refused_children_the_hopeless_one_is_told(healthy: Build) -> None:
    world = healthy()
    world.facts["apply_failures"] = (
        ApplyFailure(ChildRef("Service", "a"), Reason.APPLY_FAILED, "500"),
        ApplyFailure(ChildRef("Service", "b"), Reason.NAME_CONFLICT, "taken", terminal=True),
    )
    assert told(world) == (Reason.NAME_CONFLICT, True, "taken")


UNMADE = {
    "policy": (
        'pods "chat-prefill-0" is forbidden: violates PodSecurity "restricted:latest": no',
        Reason.ADMISSION_REFUSED,
        True,
        "Change the policy or the spec.",
    ),
    "quota": (
        'pods "chat-prefill-0" is forbidden: exceeded quota: q',
        Reason.ADMISSION_REFUSED,
        False,
        "Raise the quota",
    ),
    "webhook down": (
        'failed calling webhook "w": connection refused',
        Reason.ADMISSION_REFUSED,
        False,
        "It is tried again.",
    ),
    "account": (
        'pods "x" is forbidden: error looking up service account ns/a: serviceaccount "a" not found',
        Reason.ADMISSION_REFUSED,
        True,
        "Create the ServiceAccount",
    ),
    "template": (
        'Pod "chat-prefill-0" is invalid: spec.volumes[0].name: Required value',
        Reason.INVALID_POD_TEMPLATE,
        True,
        "spec.volumes[0].name: Required value. Correct podTemplate.",
    ),
}


@pytest.mark.parametrize(("failure", "reason", "stalls", "expected"), UNMADE.values(), ids=UNMADE.keys())
def test_pods_that_cannot_be_made(healthy: Build, failure: str, reason: Reason, stalls: bool, expected: str) -> None:
    world = healthy()
    del world.pods[P0]
    world.set_workload("StatefulSet", "chat-prefill", pods=1, create_failure=failure)
    found = told(world)
    assert found[:2] == (reason, stalls)
    assert found[2].startswith("StatefulSet chat-prefill cannot make its pods: ")
    assert expected in found[2]


def test_an_old_failure_to_make_pods_is_forgotten(healthy: Build) -> None:
    world = healthy()
    world.set_workload("StatefulSet", "chat-prefill", pods=2, create_failure="exceeded quota")
    world.report()
    assert world.condition("Ready")["status"] == "True"


FAILED = {
    "refused by the kubelet": ("UnexpectedAdmissionError", "Allocate failed", Reason.ADMISSION_REFUSED),
    "out of something": ("OutOfnvidia.com/gpu", "", Reason.ADMISSION_REFUSED),
    "evicted": ("Evicted", "The node was low on memory.", Reason.PODS_PENDING),
}


@pytest.mark.parametrize(("reason", "message", "expected"), FAILED.values(), ids=FAILED.keys())
def test_failed_pod(healthy: Build, reason: str, message: str, expected: Reason) -> None:
    world = healthy()
    world.change(P0, ready=False, phase="Failed", reason=reason, message=message, containers=())
    cause = (message or reason).rstrip(".")
    assert told(world) == (expected, False, f"chat-prefill-0 has failed and is replaced ({cause}).")


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_router_pod_that_has_ended_and_was_replaced_is_no_problem(healthy: Build, phase: str) -> None:
    """A ReplicaSet leaves what was evicted, or went with its node, until somebody clears it away."""
    world = healthy()
    ended = replace(world.pods["chat-router-abc-0"], name="chat-router-abc-1", ready=False, phase=phase)
    world.pods |= {"chat-router-abc-1": replace(ended, reason="Evicted")}
    world.change("chat-router-abc-0", created_at=60.0)
    world.report()
    assert world.condition("Ready")["status"] == "True"
    world.change("chat-router-abc-1", created_at=120.0, phase="Failed")
    world.set_workload("Deployment", "chat-router", ready=0)
    world.report()
    assert "chat-router-abc-1 has failed and is replaced" in world.condition("Ready")["message"]


def test_an_engine_on_its_way_to_be_ready(healthy: Build) -> None:
    """Between the startup probe and the readiness probe, as every engine is once."""
    world = healthy()
    world.container(D0, running=True, started=True, started_at=world.now - 600)
    world.change(D0, ready_changed_at=world.now - 600)
    assert told(world) == (Reason.MODEL_LOADING, False, "Loaded, about to be ready: chat-decode-0.")
    world.container(P0, running=True)
    assert told(world) == (Reason.MODEL_LOADING, False, "Loading the model: chat-prefill-0.")


def test_an_engine_that_never_gets_ready(healthy: Build) -> None:
    world = healthy()
    world.container(D0, running=True, started=True, started_at=world.now - 600)
    world.change(D0, ready_changed_at=world.now - 600, probe_failure="statuscode: 404")
    assert told(world) == (
        Reason.ENGINE_NOT_READY,
        False,
        f"Fails the readiness probe: {D0} (statuscode: 404). See kubectl describe pod {D0} and its log.",
    )


def test_an_engine_that_was_ready_and_is_not(healthy: Build) -> None:
    world = healthy()
    world.container(D0, running=True, started=True, started_at=world.now - 600)
    world.change(D0, ready_changed_at=world.now - 5)
    assert told(world) == (
        Reason.ENGINE_NOT_READY,
        False,
        f"Fails the readiness probe, after it was ready: {D0}. See kubectl describe pod {D0} and its log.",
    )


def test_pods_on_their_way_out_and_of_older_templates_do_not_count(healthy: Build) -> None:
    world = healthy()
    world.pods["old"] = replace(world.pods[P0], name="chat-prefill-9", deleting=True, ready=False)
    world.report()
    assert world.condition("Ready")["status"] == "True"
    world.change(P0, template="older", ready=False)
    world.container(P0, waiting="ErrImagePull", message="not found")
    assert told(world)[:2] == (Reason.ROLLING_OUT, False)


def test_too_many_pods(healthy: Build) -> None:
    world = healthy()
    world.engine(Role.PREFILL, 2, ready=True)
    assert told(world) == (Reason.PODS_PENDING, False, "3 of 2 prefill pods are there.")
    world.change("chat-prefill-2", template="older")
    assert told(world)[0] == Reason.PODS_PENDING


def test_router_rollout(healthy: Build) -> None:
    world = healthy()
    world.set_workload("Deployment", "chat-router", pods=2, updated=1, ready=1)
    assert told(world) == (Reason.ROUTER_NOT_READY, False, "Deployment chat-router replaces pods.")
    # The old router's crash is of no interest any more: the youngest pod is the new one's.
    world.pods["young"] = Pod("young", "young", "router", controller_revision="new", created_at=9.0)
    world.container(ROUTER, waiting="CrashLoopBackOff", restarts=9, exit_code=1)
    assert told(world)[0] == Reason.ROUTER_NOT_READY


def test_the_managed_store_belongs_to_it(healthy: Build) -> None:
    world = healthy(router={"replicas": 2, "store": {"valkey": {"managed": True}}})
    assert world.condition("Ready")["message"] == "0 of 1 pods of Deployment chat-valkey are ready."


def test_a_deployment_that_is_there_but_says_nothing_yet(healthy: Build) -> None:
    world = healthy()
    ref = ChildRef("Deployment", "chat-router")
    world.children[ref] = replace(world.children[ref], workload=None)
    assert told(world)[2] == "0 of 1 pods of Deployment chat-router are ready."


def test_children_to_be_made_or_updated(world: Build) -> None:
    made = world()
    assert told(made)[0] == Reason.PROGRESSING
    assert told(made)[2].startswith("Making ServiceAccount chat-router and ")
    made.all_ready()
    del made.children[ChildRef("Service", "chat")]
    assert told(made) == (Reason.PROGRESSING, False, "Making Service chat.")
    made.all_ready()
    ref = ChildRef("Deployment", "chat-router")
    made.children[ref] = replace(made.children[ref], generation=2)
    assert told(made) == (Reason.PROGRESSING, False, "Deployment chat-router is being updated.")


def test_long_foreign_messages_are_cut(healthy: Build) -> None:
    world = healthy()
    world.container(P0, waiting="ErrImagePull", message="not found " * 1000)
    assert len(told(world)[2]) < 600


SHORT = "no nodes are available: Insufficient {}, node(s) had untolerated taint"
EFA = "vpc.amazonaws.com/efa"


def unscheduled(world: Any, message: str, pod: str = P0) -> tuple[str, bool, str]:
    world.change(pod, ready=False, scheduled=False, unschedulable=message, containers=())
    return told(world)


def on_efa(healthy: Build, *kinds: NodeKind, devices: int = 16, mechanism: str = "DevicePlugin") -> Any:
    """A resource whose pods ask for 16 EFA devices each."""
    world = healthy(
        transfer={"fabric": "EFA", "efa": {"devicesPerPod": devices, "mechanism": mechanism}},
        placement={"instanceType": "p5en.48xlarge"},
    )
    if kinds:
        world.facts["capacity"] = kinds
    return world


def nodes(**allocatable: int) -> NodeKind:
    names = {"gpu": "nvidia.com/gpu", "efa": EFA}
    resources = {names[name]: count for name, count in allocatable.items()}
    return NodeKind("us-east-1a", "p5en.48xlarge", 3, resources)


def test_no_room(healthy: Build) -> None:
    reason, stalled, said = unscheduled(healthy(), SHORT.format("nvidia.com/gpu"))
    assert (reason, stalled) == (Reason.INSUFFICIENT_CAPACITY, False)
    assert said == (
        "chat-prefill-0 cannot be scheduled: no nodes are available: Insufficient nvidia.com/gpu, node(s) had"
        " untolerated taint. Add nodes that fit, correct spec.placement, or ask for less."
    )


def test_no_node_is_large_enough(healthy: Build) -> None:
    world = healthy(prefill={"replicas": 2, "gpus": 16})
    world.facts["capacity"] = (nodes(gpu=8), NodeKind("us-east-1a", "g6e.xlarge", 1))
    said = unscheduled(world, SHORT.format("nvidia.com/gpu"))[2]
    assert "It asks for 16 nvidia.com/gpu; no node has more than 8." in said


def test_the_router_has_no_room(healthy: Build) -> None:
    assert unscheduled(healthy(), SHORT.format("cpu"), ROUTER)[0] == Reason.INSUFFICIENT_CAPACITY


def test_no_node_has_efa(healthy: Build) -> None:
    reason, stalled, said = unscheduled(on_efa(healthy, nodes(gpu=8)), SHORT.format(EFA))
    assert (reason, stalled) == (Reason.EFA_UNAVAILABLE, False)
    assert "waits for a node with 16 EFA devices, but no node has vpc.amazonaws.com/efa to give" in said
    assert "install the EFA device plugin" in said


def test_one_efa_device_is_missing(healthy: Build) -> None:
    """As after a device failure: the node advertises 15 of 16."""
    reason, _, said = unscheduled(on_efa(healthy, nodes(gpu=8, efa=15)), SHORT.format(EFA))
    assert reason == Reason.EFA_UNAVAILABLE
    assert "none has more than 15 to give" in said
    assert said.endswith("or set transfer.efa.devicesPerPod: 15.")


@pytest.mark.parametrize("kinds", [(), (nodes(gpu=8, efa=16),)])
def test_efa_devices_are_taken(healthy: Build, kinds: tuple[NodeKind, ...]) -> None:
    """Whether or not nodes can be read."""
    reason, _, said = unscheduled(on_efa(healthy, *kinds), SHORT.format(EFA))
    assert reason == Reason.EFA_UNAVAILABLE
    assert "waits for a node with 16 EFA devices free: no nodes are available" in said


def test_some_nodes_have_fewer_efa_devices(healthy: Build) -> None:
    said = unscheduled(on_efa(healthy, nodes(gpu=8, efa=16), nodes(gpu=8, efa=15)), SHORT.format(EFA))[2]
    assert "Some nodes have fewer than 16 to give, used or not. Add such nodes" in said


def test_there_is_no_node_of_the_type(healthy: Build) -> None:
    world = on_efa(healthy)
    world.facts["capacity"] = ()
    reason, _, said = unscheduled(world, "no nodes are available: node(s) didn't match Pod's node affinity")
    assert reason == Reason.INSUFFICIENT_CAPACITY
    assert "No ready node has the labels node.kubernetes.io/instance-type=p5en.48xlarge. Add nodes" in said
    world = healthy()
    world.facts["capacity"] = ()
    assert "There is no ready node." in unscheduled(world, SHORT.format("cpu"))[2]


def test_enough_efa_but_no_gpus(healthy: Build) -> None:
    world = on_efa(healthy, nodes(gpu=8, efa=16))
    assert unscheduled(world, SHORT.format("nvidia.com/gpu"))[0] == Reason.INSUFFICIENT_CAPACITY


def test_efa_by_claim(healthy: Build) -> None:
    world = on_efa(healthy, mechanism="DynamicResourceAllocation")
    reason, _, said = unscheduled(world, "no nodes are available: cannot allocate all claims")
    assert reason == Reason.EFA_UNAVAILABLE
    assert "Install the EFA DRA driver" in said
    assert unscheduled(world, SHORT.format("nvidia.com/gpu"))[0] == Reason.INSUFFICIENT_CAPACITY


APART = "no nodes are available: Insufficient nvidia.com/gpu, node(s) didn't match pod affinity rules"


def test_zones_split(healthy: Build) -> None:
    reason, stalled, said = unscheduled(healthy(), APART)
    assert (reason, stalled) == (Reason.ZONES_SPLIT, False)
    assert "Set placement.zone to one that has room for all engines" in said
    assert "large enough" not in said
    assert unscheduled(healthy(placement={"sameZone": "Preferred"}), APART)[0] == Reason.INSUFFICIENT_CAPACITY


def test_zones_split_although_some_devices_are_taken(healthy: Build) -> None:
    """The node that fails only the affinity has all that is asked for."""
    world = on_efa(healthy, nodes(gpu=8, efa=16))
    assert unscheduled(world, APART.replace("affinity", f"affinity, Insufficient {EFA}"))[0] == Reason.EFA_UNAVAILABLE
    assert unscheduled(world, f"{APART}, Insufficient {EFA}")[0] == Reason.ZONES_SPLIT


def test_zones_split_tells_where_nodes_are_that_are_large_enough(healthy: Build) -> None:
    world = healthy(prefill={"replicas": 2, "gpus": 8})
    world.facts["capacity"] = (
        nodes(gpu=8),
        replace(nodes(gpu=8), zone="us-east-1b", nodes=1),
        replace(nodes(gpu=4), zone="us-east-1c"),
        replace(nodes(gpu=8), zone=""),
    )
    said = unscheduled(world, APART)[2]
    assert "large enough, used or not: 3 in us-east-1a, 1 in us-east-1b. Set placement.zone" in said
    world.facts["capacity"] += (replace(nodes(gpu=8), nodes=100),)
    assert "used or not: 4 or more in us-east-1a, 1 in us-east-1b." in unscheduled(world, APART)[2], "of 4 engines"


VOLUMES = {
    "no claim": ('persistentvolumeclaim "weights" not found', True),
    "not bound": ("pod has unbound immediate PersistentVolumeClaims", False),
    "elsewhere": ("no nodes are available: node(s) had volume node affinity conflict", False),
}


@pytest.mark.parametrize(("message", "stalls"), VOLUMES.values(), ids=VOLUMES.keys())
def test_volume(healthy: Build, message: str, stalls: bool) -> None:
    assert unscheduled(healthy(), message)[:2] == (Reason.VOLUME_NOT_READY, stalls)
