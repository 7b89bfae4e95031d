"""When nodes are listed, and how long that is believed."""

import asyncio

import pytest

from kvloop.controller.nodes import Nodes
from kvloop.kube.errors import ForbiddenError, ServerError, UnavailableError
from kvloop.plan.observed import NodeKind

from .doubles import Clock, MemoryKube, node

LABELS = {"topology.kubernetes.io/zone": "us-east-1a", "node.kubernetes.io/instance-type": "p5en.48xlarge"}
SELECTOR = "node.kubernetes.io/instance-type=p5en.48xlarge,topology.kubernetes.io/zone=us-east-1a"
WORDS = "no nodes are available: Insufficient nvidia.com/gpu"
KIND = NodeKind("us-east-1a", "p5en.48xlarge", 1, {"nvidia.com/gpu": 8})


@pytest.fixture
def nodes(kube: MemoryKube, clock: Clock) -> Nodes:
    kube.objects["Node", "a"] = node("a", gpu="8")
    return Nodes(kube, readable=True, clock=clock)


async def test_all_that_wait_for_the_same_nodes_share_a_list(nodes: Nodes, kube: MemoryKube, clock: Clock) -> None:
    assert await asyncio.gather(*(nodes.kinds(LABELS, WORDS) for _ in range(8))) == [(KIND,)] * 8
    assert kube.calls == [("list", "Node", SELECTOR)]
    assert await nodes.kinds({}, WORDS) == (KIND,)
    assert kube.calls[1:] == [("list", "Node", "")]
    clock.now += 31
    kube.objects["Node", "a"] = node("a", gpu="7")
    assert await nodes.kinds(LABELS, WORDS) == (NodeKind(KIND.zone, KIND.instance_type, 1, {"nvidia.com/gpu": 7}),)


async def test_other_words_of_the_scheduler_mean_other_nodes(nodes: Nodes, kube: MemoryKube) -> None:
    assert await nodes.kinds(LABELS, WORDS) == (KIND,)
    kube.objects.clear()
    assert await nodes.kinds(LABELS, WORDS) == (KIND,)
    assert await nodes.kinds(LABELS, "no nodes are available: node(s) were unschedulable") == ()


async def test_without_the_right_it_asks_once(nodes: Nodes, kube: MemoryKube, clock: Clock) -> None:
    kube.errors["Node", ""] = ForbiddenError('User "x" cannot list resource "nodes"', 403)
    for _ in range(3):
        assert await nodes.kinds(LABELS, WORDS) is None
        clock.now += 60
    assert len(kube.calls) == 1


async def test_serving_some_namespaces_it_does_not_ask(kube: MemoryKube) -> None:
    assert await Nodes(kube, readable=False).kinds(LABELS, WORDS) is None
    assert kube.calls == []


async def test_what_passes_is_asked_again(nodes: Nodes, kube: MemoryKube, clock: Clock) -> None:
    kube.errors["Node", ""] = ServerError("etcd is slow", 500)
    assert await nodes.kinds(LABELS, WORDS) is None
    del kube.errors["Node", ""]
    clock.now += 31
    assert await nodes.kinds(LABELS, WORDS) == (KIND,)
    clock.now += 31
    kube.errors["Node", ""] = UnavailableError("no connection")
    with pytest.raises(UnavailableError):
        await nodes.kinds(LABELS, WORDS)
