"""What the status says of reuse: it agrees with the engines' own counters, and every fault turns the right reason.

Two custom resources for all faults, so that two can be made at a time; both serve between faults as they should.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import pytest

from e2e.cluster import eventually
from e2e.node.harness import Load, NodeSite, Platform, Talk, is_ready, kill, metrics, opened, wrong
from e2e.node.test_restarts import answers
from e2e.site import Body
from kvloop.api.v1alpha1.pod import EFA_RESOURCE

pytestmark = pytest.mark.node

ONE, OTHER = "one", "other"
WINDOW_S: Final = 20
SLACK_S: Final = 20
"""For pods to be read, the status to be due and a pass to be made, on a machine with two cores."""


@pytest.fixture(scope="module")
def pair(platform: Platform) -> Iterator[NodeSite]:
    """Both resources, of one prefill and one decode engine each. Engines on EFA need more rights than a baseline."""
    with opened(platform, "privileged") as site:
        for name in (ONE, OTHER):
            site.create(name, engine=site.engine(ENGINESIM_WIRE="EFA"))
        for name in (ONE, OTHER):
            site.wait_ready(name)
        yield site


async def converse(site: NodeSite, name: str, talks: int, turns: int) -> int:
    """Conversations of some turns at the same time, all answers right; gives the turns."""
    async with site.client(name) as client:
        held = [Talk(client, f"the {number}th sea") for number in range(talks)]
        for _ in range(turns):
            await asyncio.gather(*(talk.say() for talk in held))
    assert not await wrong([turn for talk in held for turn in talk.turns])
    return talks * turns


async def test_the_status_agrees_with_the_engines_across_a_router_restart(pair: NodeSite) -> None:
    turns = await converse(pair, ONE, talks=5, turns=8)
    (old,) = pair.pods("router", ONE)
    pair.kubectl("delete", "pod", old["metadata"]["name"], "--wait=false")
    turns += await converse(pair, ONE, talks=1, turns=1)  # served by the one that leaves, or by its successor
    eventually(lambda: [is_ready(pod) for pod in pair.pods("router", ONE)] == [True], 60)
    eventually(lambda: answers(pair.url(ONE) + "/v1/models"))
    turns += await converse(pair, ONE, talks=5, turns=8)

    def told() -> Body:
        reuse: Body = pair.status(ONE).get("reuse", {})
        assert reuse.get("turns") == turns
        return reuse

    reuse = eventually(told, 60)
    ((prefill,), (decode,)) = ([metrics(pod) for pod in pair.pods(role, ONE)] for role in ("prefill", "decode"))
    source = "vllm:prompt_tokens_by_source_total"
    fetched = prefill.sum(source, source="external_kv_transfer")
    reads = prefill.sum("vllm:nixl_xfer_time_seconds_count")
    assert reads == 70
    assert decode.sum("vllm:request_success_total") == turns
    assert reuse["followUps"] == reuse["reusedTurns"] == reuse["transfer"]["transfers"] == reads
    for number in (reuse["reusedTokens"], reuse["saved"]["tokens"]):
        assert number == pytest.approx(fetched, rel=0.01)
    assert reuse["transfer"]["failures"] == 0
    assert reuse["time"]["conversations"] == turns - reads
    assert int(reuse["decodeCache"]["usedPercent"][:-1]) >= int(reuse["decodeCache"]["pinnedPercent"][:-1])
    advice = pair.status(ONE)["advice"]
    assert "Cannot tell yet" in advice["leaseSeconds"]["reason"]


@dataclass
class Fault:
    """Something goes wrong with a resource, by a change of its spec or by force."""

    site: NodeSite
    name: str
    reason: str
    says: str
    spec: Body = field(default_factory=dict)
    gap_s: float = 0.0
    """Pause between two turns of a conversation."""
    force: Callable[[], Awaitable[None]] | None = None
    """Keeps it wrong until cancelled."""

    async def turns(self) -> None:
        """The condition changes within two windows of traffic."""
        await asyncio.to_thread(self.apply)
        force = asyncio.ensure_future(self.force()) if self.force else None
        async with self.traffic():
            found = await asyncio.to_thread(
                self.site.wait_for, "KVTransferVerified", "False", self.reason, self.name, 2 * WINDOW_S + SLACK_S
            )
        if force:
            force.cancel()
        assert self.says in found["message"]

    def apply(self) -> None:
        """Change the spec, and wait until that has come to the pods."""
        if self.spec:
            self.site.patch(self.spec, self.name)
            self.site.wait_for("Ready", "True", name=self.name, timeout_s=90)
            for router in self.site.pods("router", self.name):
                # The kubelet brings a changed ConfigMap once a minute, and whenever the pod changes.
                change = {"metadata": {"annotations": {"fault": self.reason}}}
                self.site.edit("pod", router["metadata"]["name"], change)

    @asynccontextmanager
    async def traffic(self) -> AsyncIterator[None]:
        """Conversations, until the block ends."""
        async with self.site.client(self.name) as client:
            if not self.gap_s:
                async with Load(client):
                    yield
                return
            slow = asyncio.gather(*(self.hold(Talk(client, f"the {number}th gap")) for number in range(4)))
            yield
            slow.cancel()

    async def hold(self, talk: Talk) -> None:
        """One conversation with pauses."""
        while True:
            await talk.say(max_tokens=5)
            await asyncio.sleep(self.gap_s)


async def kill_prefill(site: NodeSite, name: str) -> None:
    """As often as it comes back; the kubelet lets it wait longer each time."""
    while True:
        (pod,) = await asyncio.to_thread(site.pods, "prefill", name)
        if any("running" in status["state"] for status in pod["status"]["containerStatuses"]):
            with suppress(AssertionError):  # it has just ended
                kill(pod)
        await asyncio.sleep(0.2)


async def test_every_fault_turns_the_condition_within_two_windows(platform: Platform, pair: NodeSite) -> None:
    """Three at each resource, one after the other; what was wrong before is mended by the next one's change."""
    give_devices(pair)
    unguarded, one_way = decode(VLLM_PLUGINS="none"), decode(ENGINESIM_ONE_WAY="true")
    short = decode() | {"transfer": {"decoderKVBlocksTTLSeconds": 15}}
    no_store = {"router": {"store": {"valkey": {"url": "redis://127.0.0.1:1"}}}}
    role = {"gpus": 1}
    tcp = {
        "router": {"store": None}, "engine": pair.engine(ENGINESIM_WIRE="TCP"), "prefill": role, "decode": role,
        "transfer": {"fabric": "EFA"}, "placement": {"sameZone": "Required"},
    }  # fmt: skip
    faults = {
        ONE: (
            Fault(pair, ONE, "GuardInactive", "one-decode-0", unguarded),
            Fault(pair, ONE, "NoTransfers", "Decode gives no handle", one_way),
            Fault(pair, ONE, "Expiring", "decoderKVBlocksTTLSeconds, now 15,", short, gap_s=6),
        ),
        OTHER: (
            Fault(pair, OTHER, "DecodeOnly", "prefill's pods", force=lambda: kill_prefill(pair, OTHER)),
            Fault(pair, OTHER, "NoTransfers", "Valkey", no_store),
            Fault(pair, OTHER, "TransportFallback", "as over TCP", tcp),
        ),
    }

    async def one_by_one(name: str) -> None:
        for fault in faults[name]:
            await fault.turns()

    with platform.operator_with("--window-seconds=20", "--scrape-seconds=2"):
        await asyncio.gather(*(one_by_one(name) for name in faults))


def decode(**env: str) -> Body:
    """`spec.decode` with these variables."""
    return {"decode": {"env": [{"name": name, "value": value} for name, value in env.items()]}}


def give_devices(site: NodeSite) -> None:
    """The node advertises accelerators and EFA devices, as their plugins would, and a zone."""
    (node,) = site.cluster.items("nodes")
    name, devices = node["metadata"]["name"], {EFA_RESOURCE: "4", "nvidia.com/gpu": "4"}
    status = json.dumps({"status": {"capacity": devices, "allocatable": devices}})
    site.cluster.kubectl("patch", "node", name, "--subresource=status", f"--patch={status}")
    site.cluster.kubectl("label", "node", name, "topology.kubernetes.io/zone=here", "--overwrite")
