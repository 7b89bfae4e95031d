"""Whole passes, with the real planner and an API server in memory."""

import asyncio
from typing import Any

import pytest

from kvloop.api.contract import ReuseCounters
from kvloop.api.labels import API_VERSION, KIND
from kvloop.api.v1alpha1 import DisaggregatedInference, parse
from kvloop.controller.apply import Applier
from kvloop.controller.blueprints import Blueprints
from kvloop.controller.cache import Cache, Key
from kvloop.controller.events import Poster
from kvloop.controller.metrics import Metrics
from kvloop.controller.nodes import Nodes
from kvloop.controller.queue import Backoff, WorkQueue
from kvloop.controller.reconcile import Reconciler
from kvloop.controller.scrape import Scraper
from kvloop.controller.warnings import Warnings
from kvloop.kube.errors import ForbiddenError, InvalidError, UnavailableError
from kvloop.plan.config import PlanConfig
from kvloop.plan.desired import Blueprint, blueprint
from kvloop.plan.measured import Measured

from .doubles import KEY, OWNER, Body, Clock, MemoryKube, node, pod

SPEC = {
    "model": {"name": "sim", "source": {"path": "/models/sim"}, "maxLength": 8192},
    "engine": {"image": "enginesim:1", "version": "0.32.0"},
    "prefill": {"replicas": 1, "gpus": 0},
    "decode": {"replicas": 1, "gpus": 0},
    "transfer": {"fabric": "UCX"},
    "placement": {"sameZone": "None"},
}


class Bench:
    """A reconciler, and what it does to an API server in memory."""

    def __init__(self, kube: MemoryKube, clock: Clock) -> None:
        self.kube = kube
        self.cache = Cache()
        self.metrics = Metrics(self.cache)
        self.queue: WorkQueue[Key] = WorkQueue(Backoff(1, 60), 0, self.metrics)
        self.reconciler = Reconciler(
            kube=kube,
            cache=self.cache,
            queue=self.queue,
            applier=Applier(kube, self.cache, clock),
            poster=Poster(kube, clock),
            scraper=Scraper(self.cache, self._fetch, self.queue.add, self.metrics.scraped, 600),
            warnings=Warnings(kube, self.cache, clock),
            nodes=Nodes(kube, readable=True, clock=clock),
            metrics=self.metrics,
            config=PlanConfig(router_image="router:1", plugin_files={"kvloop/__init__.py": ""}),
            clock=clock,
        )

    async def _fetch(self, url: str) -> bytes:
        raise OSError(url)

    def see(self, generation: int = 1, spec: dict[str, Any] | None = None, **meta: Any) -> None:
        """Let the custom resource be as given."""
        self.kube.version += 1
        before = self.kube.objects.get((KIND, KEY.name), {"status": {"observedGeneration": -1}})
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": KEY.name,
                "namespace": KEY.namespace,
                "uid": OWNER,
                "generation": generation,
                "resourceVersion": str(self.kube.version),
                **meta,
            },
            "spec": SPEC | (spec or {}),
            "status": before["status"],
        }
        self.kube.objects[KIND, KEY.name] = body
        self.cache.see(body)

    async def writes(self) -> list[str]:
        """Make a pass; gives the kinds that were written."""
        self.kube.writes()
        await self.reconciler(KEY)
        return [kind if verb == "apply" else f"{verb} {kind}" for verb, kind, _ in self.kube.writes()]

    async def next_pass(self) -> float:
        """In how many seconds the key comes again."""
        when, _ = self.queue._timers[KEY]
        return when - asyncio.get_running_loop().time()

    @property
    def status(self) -> Body:
        found: Body = self.kube.objects[KIND, KEY.name]["status"]
        return found

    def condition(self, name: str) -> Body:
        return next(each for each in self.status["conditions"] if each["type"] == name)

    def passes(self, result: str) -> float:
        return self.metrics.registry.get_sample_value("kvloop_reconcile_total", {"result": result}) or 0


@pytest.fixture
def bench(kube: MemoryKube, clock: Clock) -> Bench:
    return Bench(kube, clock)


async def test_the_first_pass_makes_everything_and_the_second_nothing(bench: Bench) -> None:
    bench.see()
    first = await bench.writes()
    assert first.count("StatefulSet") == 2
    assert first.count("status DisaggregatedInference") == 1
    assert first.index("ServiceAccount") < first.index("StatefulSet") < first.index("Deployment")
    assert bench.status["observedGeneration"] == 1
    assert bench.condition("Reconciling")["status"] == "True"
    assert await bench.writes() == []
    assert bench.passes("ok") == 2


async def test_the_status_is_written_although_a_child_failed_and_the_pass_comes_again(bench: Bench) -> None:
    bench.see()
    bench.kube.errors["Service", "chat"] = ForbiddenError("exceeded quota", 403)
    assert "status DisaggregatedInference" in await bench.writes()
    assert "exceeded quota" in bench.condition("Ready")["message"]
    assert (bench.passes("retry"), bench.queue.retry(KEY) > 1.4) == (1, True)


async def test_an_api_server_that_is_away_is_tried_again(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.see()
    bench.kube.errors["ServiceAccount", "chat-router"] = UnavailableError("no connection")
    assert await bench.writes() == ["ServiceAccount"]
    assert bench.passes("retry") == 1
    assert "takes no requests" in caplog.text


async def test_an_error_of_ours_stays_with_its_resource(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.see()
    bench.kube.errors["ServiceAccount", "chat-router"] = RuntimeError("a bug")  # type: ignore[assignment]  # a bug
    await bench.reconciler(KEY)
    assert bench.passes("error") == 1
    assert "a bug" in caplog.text


async def test_while_it_is_deleted_nothing_is_made_or_deleted(bench: Bench) -> None:
    bench.see()
    await bench.reconciler(KEY)
    del bench.kube.objects["ConfigMap", "chat-router"]
    bench.see(deletionTimestamp="2030-01-01T00:00:00Z", deletionGracePeriodSeconds=0)
    assert set(await bench.writes()) <= {"status DisaggregatedInference", "create Event"}


async def test_a_resource_that_is_gone_leaves_nothing_behind(bench: Bench) -> None:
    bench.see()
    await bench.reconciler(KEY)
    bench.cache.forget(bench.kube.objects[KIND, KEY.name])
    assert await bench.writes() == []


async def test_an_object_that_cannot_be_read_is_left_alone(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.see(spec={"model": None})
    assert await bench.writes() == []
    assert "cannot be read" in caplog.text
    assert bench.passes("ok") == 1


async def test_a_status_that_cannot_be_read_is_made_anew_but_for_what_can(bench: Bench) -> None:
    """As another version of the operator, or somebody by hand, may have written it."""
    bench.see()
    await bench.writes()
    good = bench.status
    foreign = {"type": "Foreign", "status": "True"}
    ready, *others = good["conditions"]
    bad = {"reuse": {"hitPercent": "87.5 %"}, "conditions": [foreign, ready | {"status": "Maybe"}, *others]}
    bench.kube.objects[KIND, KEY.name]["status"] = good | bad
    bench.see()
    assert await bench.writes() == ["status DisaggregatedInference"]
    assert bench.status == good
    bench.kube.objects[KIND, KEY.name]["status"] = good | {"conditions": "none", "prefill": 3}
    bench.see()
    await bench.writes()
    assert bench.status == good


async def test_a_status_field_that_the_crd_lacks_is_left_out(bench: Bench) -> None:
    bench.see()
    apply_status, refused = bench.kube.apply_status, []

    async def older(body: Body) -> Body:
        if "lastProgressAt" in body["status"]["rollout"]:
            refused.append(body)
            path = "status.rollout.lastProgressAt"
            raise InvalidError(f".{path}: field not declared in schema", 500, path)
        return await apply_status(body)

    bench.kube.apply_status = older  # type: ignore[method-assign]  # as with the CRD of a former release
    await bench.reconciler(KEY)
    assert bench.status["observedGeneration"] == 1
    assert await bench.writes() == []
    assert len(refused) == 1
    assert set(bench.reconciler.left_out) == {KEY}, "others' are tried"
    bench.cache.forget(bench.kube.objects[KIND, KEY.name])
    await bench.reconciler(KEY)
    assert not bench.reconciler.left_out


async def test_a_status_that_is_refused_for_another_reason_is_an_error(bench: Bench) -> None:
    bench.see()
    bench.kube.errors[KIND, KEY.name] = InvalidError("too long", 422)
    await bench.reconciler(KEY)
    assert bench.passes("error") == 1


async def test_events_tell_of_transitions(bench: Bench) -> None:
    bench.see()
    assert "create Event" in await bench.writes()
    assert await bench.writes() == []


async def in_the_way(bench: Bench) -> None:
    """A pod of a former edit that never starts."""
    bench.see()
    await bench.reconciler(KEY)
    stuck = {"name": "vllm", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}
    body = pod("chat-prefill-0", phase="Pending", containerStatuses=[stuck])
    body["metadata"]["annotations"] = {"kvloop.io/template-hash": "of-a-former-edit"}
    body["metadata"]["labels"] |= {"kvloop.io/revision": "former", "controller-revision-hash": "former"}
    bench.kube.objects["Pod", "chat-prefill-0"] = body
    bench.cache.see(body)
    workload = bench.kube.objects["StatefulSet", "chat-prefill"]
    bench.cache.see(workload | {"status": {"replicas": 1, "currentRevision": "other", "observedGeneration": 1}})


async def test_pods_in_the_way_of_a_rollout_are_deleted_once(bench: Bench) -> None:
    await in_the_way(bench)
    assert (await bench.writes()).count("delete Pod") == 1
    assert (await bench.writes()).count("delete Pod") == 0


async def test_a_pod_that_may_not_be_deleted_is_told_and_tried_again(bench: Bench) -> None:
    await in_the_way(bench)
    bench.kube.errors["Pod", "chat-prefill-0"] = ForbiddenError('admission webhook "x" denied the request: freeze', 403)
    assert "status DisaggregatedInference" in await bench.writes()
    assert bench.condition("Stalled")["reason"] == "AdmissionRefused"
    assert "Pod chat-prefill-0" in bench.condition("Ready")["message"]
    assert (bench.passes("retry"), bench.passes("error")) == (1, 0)
    bench.kube.errors.clear()
    assert "delete Pod" in await bench.writes()


async def test_events_that_cannot_be_read_hold_nothing_up(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(namespace: str, uid: str) -> list[Body]:
        raise ForbiddenError('User "x" cannot list resource "events"', 403)

    bench.kube.warnings = refuse  # type: ignore[method-assign]  # as without the right to
    bench.see()
    bench.cache.see(pod("p", phase="Pending", conditions=[{"type": "PodScheduled", "status": "True"}]))
    assert "StatefulSet" in await bench.writes()
    assert (bench.passes("ok"), bench.passes("error")) == (1, 0)
    assert "cannot list" in caplog.text


async def test_a_child_that_lost_its_label_is_known_again_once_it_has_it_back(bench: Bench, clock: Clock) -> None:
    """To a watch with a selector that is an end, and then the same object anew."""
    bench.see()
    await bench.reconciler(KEY)
    service = bench.kube.objects["Service", "chat"]
    bench.kube.version += 1
    bench.cache.forget(service | {"metadata": service["metadata"] | {"resourceVersion": str(bench.kube.version)}})
    assert "Service" in await bench.writes()
    clock.now += 600
    assert "Service" not in await bench.writes()


def unscheduled(bench: Bench, words: str) -> set[Key]:
    """The scheduler has found no node for prefill's pod; gives whose pass that brings."""
    template = bench.kube.objects["StatefulSet", "chat-prefill"]["spec"]["template"]["metadata"]
    bench.kube.version += 1
    scheduled = {"type": "PodScheduled", "status": "False", "message": words}
    body = pod("chat-prefill-0", version=bench.kube.version, phase="Pending", conditions=[scheduled])
    body["metadata"] |= {"annotations": template["annotations"], "labels": template["labels"]}
    return bench.cache.see(body)


async def test_nodes_are_asked_when_an_engine_finds_none(bench: Bench) -> None:
    bench.see(spec={"prefill": {"replicas": 1, "gpus": 8}})
    bench.kube.objects["Node", "a"] = node("a", gpu="4")
    await bench.reconciler(KEY)
    assert ("list", "Node", "") not in bench.kube.calls
    assert unscheduled(bench, "0/1 nodes are available: 1 Insufficient x.") == {KEY}
    await bench.reconciler(KEY)
    assert bench.condition("Ready")["reason"] == "InsufficientCapacity"
    assert "no node has more than 4" in bench.condition("Ready")["message"]
    assert bench.kube.calls.count(("list", "Node", "")) == 1


async def test_nodes_that_come_and_go_elsewhere_make_no_write(bench: Bench) -> None:
    """In a large cluster the scheduler counts anew with each of them."""
    bench.see(spec={"prefill": {"replicas": 1, "gpus": 8}})
    bench.kube.objects["Node", "a"] = node("a", gpu="4")
    await bench.reconciler(KEY)
    words = "0/{} nodes are available: {}. preemption: 0/{} nodes are available: {} No preemption victims found."
    unscheduled(bench, words.format(120, "117 node(s) had untolerated taint, 3 Insufficient nvidia.com/gpu", 120, 3))
    await bench.reconciler(KEY)
    told = bench.condition("Ready")["message"]
    bench.kube.calls.clear()
    for count in range(9, 12):
        reasons = f"{count} Insufficient nvidia.com/gpu, 117 node(s) had untolerated taint"
        assert unscheduled(bench, words.format(count + 117, reasons, count + 117, count)) == set()
        await bench.reconciler(KEY)
    assert bench.kube.calls == []
    assert "nodes are available: Insufficient nvidia.com/gpu, node(s) had untolerated taint" in told
    assert unscheduled(bench, words.format(118, "118 node(s) had untolerated taint", 118, 0)) == {KEY}


async def test_numbers_that_come_too_early_are_written_when_they_are_due(bench: Bench, clock: Clock) -> None:
    def measured(turns: int) -> Measured:
        counters = ReuseCounters(turns=turns, follow_ups=turns)
        return Measured(window=counters, beside=counters)

    bench.see()
    await bench.reconciler(KEY)
    clock.now += 61
    bench.reconciler.scraper._measured[KEY] = measured(100)
    assert "status DisaggregatedInference" in await bench.writes()
    bench.reconciler.scraper._measured[KEY] = measured(200)
    clock.now += 30
    assert await bench.writes() == []
    assert await bench.next_pass() <= 60
    clock.now += 31
    assert "status DisaggregatedInference" in await bench.writes()
    assert bench.status["reuse"]["turns"] == 200


async def test_a_resource_that_is_not_ready_is_looked_at_again_without_an_event(bench: Bench) -> None:
    bench.see()
    await bench.reconciler(KEY)
    assert 0 < await bench.next_pass() <= 60


def test_metrics_tell_each_resources_conditions(bench: Bench) -> None:
    bench.see()
    of = {"namespace": KEY.namespace, "name": KEY.name}
    labels = of | {"condition": "Ready", "status": "False", "reason": "Progressing"}
    assert bench.metrics.registry.get_sample_value("kvloop_resource_condition", labels) is None
    ready = {"type": "Ready", "status": "False", "reason": "Progressing"}
    body = bench.kube.objects[KIND, KEY.name] | {"status": {"conditions": [ready]}}
    bench.cache.see(body | {"metadata": body["metadata"] | {"resourceVersion": "999"}})
    assert bench.metrics.registry.get_sample_value("kvloop_resource_condition", labels) == 1


async def test_a_blueprint_is_made_once_for_each_edit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(cr: DisaggregatedInference, config: PlanConfig) -> Blueprint:
        made.append(cr.metadata.generation)
        return blueprint(cr, config)

    monkeypatch.setattr("kvloop.controller.blueprints.blueprint", counted)
    for generation in (1, 1, 2, 2):
        bench.see(generation)
        await bench.reconciler(KEY)
    assert made == [1, 2]


def test_a_blueprint_that_was_kept_is_the_same(bench: Bench) -> None:
    bench.see()
    entry = bench.cache.resource(KEY)
    assert entry
    cr, config = parse(entry.to_body()), bench.reconciler.config
    kept = Blueprints(config)
    assert kept.of(KEY, cr) == kept.of(KEY, cr) == blueprint(cr, config)
    assert any(child["kind"] == "ConfigMap" and "" in child["data"].values() for child in kept.of(KEY, cr).children)
    other = cr.model_copy(update={"metadata": cr.metadata.model_copy(update={"uid": "another"})})
    owners = {child["metadata"]["ownerReferences"][0]["uid"] for child in kept.of(KEY, other).children}
    assert owners == {"another"}
    kept.forget(KEY)
    assert kept._kept == {}
