"""Engines and routers that die, and rollouts under load: nobody gets an error or a wrong answer for it."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import pytest

from e2e.cluster import eventually
from e2e.node.harness import (
    WEIGHTS,
    Load,
    NodeSite,
    Platform,
    Talk,
    is_ready,
    kill,
    opened,
    restarts,
    revisions,
    wrong,
)
from e2e.site import Body
from kvloop.api.labels import PLURAL

pytestmark = pytest.mark.node

NEW_WEIGHTS = "/models/sim-2"
ROLLOUT_S = 180


@pytest.fixture(scope="module")
def pairs(platform: Platform) -> Iterator[NodeSite]:
    """Two prefill and two decode engines, of the speed of a published test bed."""
    with opened(platform) as site:
        role = {"replicas": 2, "gpus": 0}
        engine = site.engine(ENGINESIM_SPEED_MODEL="qwen3-32b", ENGINESIM_TIME_SCALE="1")
        site.create(engine=engine, prefill=role | {"prefixCaching": False}, decode=role)
        site.wait_ready()
        yield site


async def say(site: NodeSite, talk: Talk) -> Body:
    """Another turn; gives the router's line about it."""
    before = len(site.log())
    await talk.say()
    return eventually(lambda: site.log()[before:])[0]


async def test_a_killed_decode_engine_costs_a_recomputation(pairs: NodeSite) -> None:
    async with pairs.client() as client:
        talks = [Talk(client, topic) for topic in ("volcanoes", "geysers", "glaciers")]
        holders = [(await say(pairs, talk))["decode"] for talk in talks]
        (holder, _), *_ = Counter(holders).most_common()  # two engines, so that one holds two conversations at least
        hasty, patient = [talk for talk, at in zip(talks, holders, strict=True) if at == holder][:2]
        boot = boots(pairs)[holder]
        kill(pairs.pod_at(holder))

        at_once = await say(pairs, hasty)
        assert at_once["arm"] == "recomputed"
        eventually(lambda: boots(pairs).get(holder, boot) != boot and restarts(pairs.pod_at(holder)) == 1, 60)
        eventually(lambda: is_ready(pairs.pod_at(holder)), 60)

        later = await say(pairs, patient)
        assert (later["arm"], later["miss"]) == ("recomputed", "engine_restarted")
        assert [(await say(pairs, talk))["arm"] for talk in (hasty, patient)] == ["reused", "reused"]
        assert not await wrong([*hasty.turns, *patient.turns])


def boots(site: NodeSite) -> dict[str, str]:
    """Boot ids of the healthy engines by address."""
    return {engine.address: engine.boot_id for engine in site.reuse().engines if engine.healthy and engine.boot_id}


async def test_a_new_router_knows_nothing_and_serves(pairs: NodeSite) -> None:
    async with pairs.client() as client:
        talk = Talk(client, "harbours")
        for _ in range(2):
            await talk.say()
        (old,) = pairs.pods("router")
        pairs.kubectl("delete", "pod", old["metadata"]["name"], "--force", "--grace-period=0")
        url = pairs.url() + "/v1/models"
        eventually(lambda: [is_ready(pod) for pod in pairs.pods("router")] == [True], 60)
        eventually(lambda: answers(url))
        arms = [(await say(pairs, talk))["arm"] for _ in range(2)]
        assert arms == ["first", "reused"]
        assert not await wrong(talk.turns)


def answers(url: str) -> bool:
    """Whether a router stands behind the ClusterIP: kube-proxy learns of it a moment after we do."""
    try:
        return bool(httpx.get(url, trust_env=False, timeout=5).is_success)
    except httpx.TransportError:
        return False


@dataclass
class Rollout:
    """What was seen of a rollout: readiness for the newest generation, and whose address is of which revision."""

    site: NodeSite
    ready: list[tuple[bool, bool]] = field(default_factory=list)
    """Whether Ready was True, and whether all engines were ready and of one revision."""
    revision: dict[str, str] = field(default_factory=dict)

    def look(self) -> bool:
        """Look once; whether it is over."""
        body = self.site.get(PLURAL, "chat")
        engines = [*self.site.pods("prefill"), *self.site.pods("decode")]
        for pod in engines:
            if address := pod["status"].get("podIP"):
                (of,) = revisions([pod])
                assert self.revision.setdefault(f"{address}:8000", of) == of
        condition = next(each for each in body["status"]["conditions"] if each["type"] == "Ready")
        current = condition["observedGeneration"] == body["metadata"]["generation"]
        done = bool(current and condition["status"] == "True")
        self.ready.append((done, all(map(is_ready, engines)) and len(revisions(engines)) == 1))
        return done


async def test_a_rollout_under_load_fails_no_request_and_answers_none_wrongly(pairs: NodeSite) -> None:
    """Row 2 too: the new revision has other weights, and whoever mixed the two would answer as neither does."""
    rollout = Rollout(pairs)
    assert rollout.look()
    async with pairs.client() as client, Load(client) as load:
        await load.more(20)
        pairs.patch({"model": {"source": {"path": NEW_WEIGHTS}}})
        wait = ("wait", f"{PLURAL}/chat", "--for=condition=Ready", f"--timeout={ROLLOUT_S}s")
        waiting = asyncio.create_task(asyncio.to_thread(pairs.kubectl, *wait, timeout_s=ROLLOUT_S))
        while not waiting.done():
            await asyncio.to_thread(rollout.look)
        await waiting
        engines = [*pairs.pods("prefill"), *pairs.pods("decode")]
        assert len(engines) == 4
        assert all(map(is_ready, engines))
        assert revisions(engines) == {pairs.status()["rollout"]["revision"]}
        await load.more(30)
    assert [all_new for done, all_new in rollout.ready[1:] if done] == [True] * rollout.ready[1:].count((True, True))
    assert rollout.ready[1][0] is False

    log = [line for line in pairs.log() if line["status"] == 200]
    crossed = [line for line in log if rollout.revision[line["prefill"]] != rollout.revision[line["decode"]]]
    assert not crossed
    assert pairs.reuse().counters.failed_transfers == 0
    assert [line["arm"] for line in log[-20:]].count("reused") > 14, (
        "one turn in eight is the first of its conversation"
    )
    other = await wrong(load.turns, WEIGHTS)
    assert 0 < len(other) < len(load.turns)
    assert not await wrong([difference.turn for difference in other], NEW_WEIGHTS)
