"""What `kvloop check` asks of engines and routers: simulated ones here, behind an API server that only passes on."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from e2e.enginesim import EngineSim
from e2e.enginesim.config import Knobs
from e2e.router.sim import Fleet, engine_config, leases
from e2e.site import Body, resource
from kvloop.api.labels import ENGINE_HTTP, ROUTER_ADMIN
from kvloop.api.v1alpha1 import parse
from kvloop.cli.checks.exchange import BACK, EQUAL, FORTH, STREAMS
from kvloop.cli.checks.finding import Finding, Level
from kvloop.cli.checks.live import live
from kvloop.cli.reach import SCRIPT
from kvloop.kube.errors import ForbiddenError, KubeError, UnavailableError
from kvloop.kube.session import Session
from kvloop.kube.transport import Answer
from kvloop.plan.config import PlanConfig
from kvloop.plan.scope import Scope

Change = Callable[[str, str], str]
"""Makes another answer out of one: told the pod, and the answer's text."""


class Pods(Session):
    """The API server in front of a fleet's engines and router, as pods of the resource `chat`."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.urls = {("chat-router", 8000): fleet.router.url, ("chat-router", ROUTER_ADMIN): fleet.router.admin}
        self.bodies = [self._pod("chat-router", {"app.kubernetes.io/component": "router"})]
        self.change: Change = lambda _, text: text
        self.error: KubeError | None = None
        self.exec_error: KubeError | None = ForbiddenError('User "me" cannot create resource "pods/exec"', 403)
        self.sent: list[dict[str, str]] = []
        for role, engines in (("prefill", fleet.prefill), ("decode", fleet.decode)):
            for number, engine in enumerate(engines):
                self.add(f"chat-{role}-{number}", role, engine)

    def add(self, name: str, role: str, engine: EngineSim) -> None:
        """An engine as a pod."""
        self.urls[name, ENGINE_HTTP] = engine.url
        transfer = engine.config.transfer
        on = json.dumps({"bidirectional_kv_xfer": bool(transfer and transfer.bidirectional_kv_xfer)})
        self.bodies.append(self._pod(name, {"kvloop.io/role": role, "kvloop.io/revision": "r"}, on))

    def _pod(self, name: str, labels: dict[str, str], argument: str = "") -> Body:
        return {
            "metadata": {"name": name, "namespace": "team", "labels": {"kvloop.io/name": "chat", **labels}},
            "spec": {"containers": [{"name": "vllm", "args": [argument]}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "podIP": f"fd00::{len(self.urls)}"},
        }

    async def ask(
        self,
        namespace: str,  # noqa: ARG002 (there is one)
        pod: str,
        port: int,
        path: str,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        if self.error:
            raise self.error
        return await self._ask(pod, self.urls[pod, port] + path, body, headers or {})

    async def _ask(self, pod: str, url: str, body: Any, headers: Mapping[str, str]) -> Answer:
        self.sent.append(dict(headers))
        method = "GET" if body is None else "POST"
        async with self._fleet.router.session.request(method, url, json=body, headers=headers) as answer:
            return Answer(answer.status, self.change(pod, await answer.text()))

    async def run(self, namespace: str, pod: str, container: str, command: Sequence[str], line: str) -> str:
        """What the program in the router's pod does, by the addresses that pods have there."""
        if self.exec_error:
            raise self.exec_error
        assert (namespace, pod, container, command) == ("team", "chat-router", "router", ("python3", "-c", SCRIPT))
        asked = json.loads(line)
        url = urlsplit(asked["url"])
        name = next(each["metadata"]["name"] for each in self.bodies if each["status"]["podIP"] == url.hostname)
        body = json.loads(asked["body"]) if asked["body"] else None
        return json.dumps(await self._ask(name, self.urls[name, url.port or 0] + url.path, body, asked["headers"]))


async def check(pods: Pods, **spec: Any) -> dict[str, Finding]:
    """All findings by check; where one check has several, the last one."""
    model = {"name": "tiny", "source": {"path": "/m"}, "maxLength": 8192}
    body = resource("chat", "team", **{"model": model} | spec)
    scope = Scope.of(parse(body), PlanConfig(router_image="router:1"))
    return {found.check: found async for found in live(pods, scope, pods.bodies, lambda: None)}


def levels(found: Mapping[str, Finding]) -> dict[str, Level]:
    return {name: each.level for name, each in found.items()}


ALL_WELL = dict.fromkeys(("Guard", STREAMS, BACK, FORTH, EQUAL, "Router"), Level.OK)


async def test_all_is_well_and_nothing_is_left_behind() -> None:
    async with Fleet(prefills=2, decodes=1) as fleet:
        found = await check(Pods(fleet))
        assert levels(found) == ALL_WELL
        assert "all 3 engines, plugin 0.1.0 in vLLM 0.32.0" in found["Guard"].detail
        assert found[BACK].detail == "with 2 of 2 pairs of engines"
        assert "tokens of reused KV" in found["Router"].detail
        assert not any(leases(engine) for engine in fleet.decode)


async def test_a_model_that_thinks() -> None:
    async with Fleet(reasoning=True) as fleet:
        assert levels(await check(Pods(fleet))) == ALL_WELL


async def test_what_prefill_has_in_its_own_cache_does_not_hide_a_transfer() -> None:
    async with Fleet() as fleet:
        caching = fleet.engine(engine_config("kv_producer", "fail"))
        await fleet.begin(caching)
        fleet.prefill = [caching]
        assert levels(await check(Pods(fleet))) == ALL_WELL


async def test_a_model_whose_words_come_back_changed() -> None:
    """Then the second turn shares the first one's prompt only, which prefill has itself."""
    async with Fleet() as fleet:
        drifting = Knobs(drift_percent=100)
        prefill = fleet.engine(replace(engine_config("kv_producer", "fail"), knobs=drifting))
        decode = fleet.engine(replace(engine_config("kv_consumer", "recompute"), knobs=drifting))
        for engine in (prefill, decode):
            await fleet.begin(engine)
        fleet.prefill, fleet.decode = [prefill], [decode]
        found = await check(Pods(fleet))
        assert (found[BACK].level, "come back changed" in found[BACK].detail) == (Level.WARN, True)


async def test_an_engine_without_the_guard() -> None:
    async with Fleet() as fleet:
        bare = EngineSim(fleet.decode[0].config, clock=fleet.clock, plugin=None)
        await fleet.begin(bare)
        pods = Pods(fleet)
        pods.add("chat-decode-9", "decode", bare)
        found = await check(pods)
        assert (found["Guard"].level, "chat-decode-9" in found["Guard"].detail) == (Level.FAIL, True)
        assert found[BACK].detail == "with 1 of 1 pairs of engines", "it is sent no handle"


async def test_engines_that_cannot_exchange_kv() -> None:
    """They refuse each other at the handshake: other types of data."""
    async with Fleet() as fleet:
        other = fleet.engine(replace(engine_config("kv_consumer", "recompute"), dtype="float16"))
        await fleet.begin(other)
        fleet.decode = [other]
        found = await check(Pods(fleet))
        assert (found[FORTH].level, "has read nothing" in found[FORTH].detail) == (Level.FAIL, True)
        assert BACK not in found, "nothing is known of what comes later"


async def test_engines_that_were_not_told_to_send_kv_back_get_no_handle() -> None:
    """One would hang on it for ever."""
    async with Fleet() as fleet:
        config = engine_config("kv_producer", "fail")
        assert config.transfer
        one_way = fleet.engine(replace(config, transfer=replace(config.transfer, bidirectional_kv_xfer=False)))
        await fleet.begin(one_way)
        fleet.prefill = [one_way]
        found = await check(Pods(fleet))
        assert (found["KV transfer"].level, BACK in found) == (Level.FAIL, False)
        assert (
            "transfer.bidirectional"
            in (await check(Pods(fleet), transfer={"bidirectional": False, "fabric": "UCX"}))["KV transfer"].detail
        )


def without_handles(_: str, text: str) -> str:
    return "\n".join(line for line in text.split("\n") if "kv_transfer_params" not in line) if "data:" in text else text


def with_other_words(pod: str, text: str) -> str:
    """Of the router, and of decode where it has KV of others."""
    wrong = pod == "chat-router" or "kv_transfer_params" in text
    return re.sub(r'("content": ?")[^"]+"', r'\1other"', text) if wrong and "data:" in text else text


def with_handles(pod: str, text: str) -> str:
    event = 'data: {"choices": [], "kv_transfer_params": {"remote_host": "10.0.0.1"}}\n\n'
    return event + text if pod == "chat-router" and "data:" in text else text


@pytest.mark.parametrize(
    ("change", "failed", "says"),
    [
        (without_handles, STREAMS, "chat-decode-0 streams no handle"),
        (with_other_words, EQUAL, "answers otherwise"),
        (with_other_words, "Router", "answered otherwise than a cold engine"),
        (with_handles, "Router", "lets kv_transfer_params through"),
    ],
)
async def test_what_goes_wrong_is_found(change: Change, failed: str, says: str) -> None:
    async with Fleet() as fleet:
        pods = Pods(fleet)
        pods.change = change
        found = await check(pods)
        assert (found[failed].level, says in found[failed].detail) == (Level.FAIL, True), found
        assert found[failed].remedy


async def test_a_router_that_does_not_reuse() -> None:
    async with Fleet(holdoutPercent=100) as fleet:
        found = await check(Pods(fleet))
        assert (found["Router"].level, "held out" in found["Router"].detail) == (Level.OK, True)
    async with Fleet(transfer={"bidirectional": False}) as fleet:
        found = await check(Pods(fleet))
        assert (found["Router"].level, found["Router"].detail) == (
            Level.FAIL,
            "the second turn reused nothing: disabled",
        )


async def test_keys_of_the_router(monkeypatch: pytest.MonkeyPatch) -> None:
    """They go in the header that the API server leaves alone."""
    monkeypatch.delenv("KVLOOP_API_KEY", raising=False)
    wants = {"router": {"apiKeysSecretRef": {"name": "keys"}}}
    async with Fleet() as fleet:
        pods = Pods(fleet)
        assert (await check(pods, **wants))["Router"].level is Level.WARN
        assert not any(pods.sent)
        monkeypatch.setenv("KVLOOP_API_KEY", "k")
        assert (await check(pods, **wants))["Router"].level is Level.OK
        assert {headers.get("X-Api-Key") for headers in pods.sent} == {"k", None}


KEPT_OUT = UnavailableError("error trying to reach service: dial tcp: i/o timeout", 503)


async def test_where_the_api_server_is_kept_out_a_router_asks() -> None:
    async with Fleet() as fleet:
        pods = Pods(fleet)
        pods.error, pods.exec_error = KEPT_OUT, None
        assert levels(await check(pods)) == ALL_WELL


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (KEPT_OUT, {"Engines"}),
        (ForbiddenError('User "me" cannot get resource "pods/proxy"', 403), {"Engines"}),
    ],
)
async def test_pods_that_may_not_be_asked_are_no_failure(error: KubeError, names: set[str]) -> None:
    async with Fleet() as fleet:
        pods = Pods(fleet)
        pods.error = error
        found = await check(pods)
        assert levels(found) == dict.fromkeys([*names, "Router"], Level.WARN)


async def test_pods_that_do_not_answer_are_no_failure() -> None:
    async with Fleet() as fleet:
        pods = Pods(fleet)
        pods.error, pods.exec_error = KEPT_OUT, UnavailableError("a command in chat-router failed: exit code 1")
        names = ("Engine chat-prefill-0", "Engine chat-decode-0", "Router")
        assert levels(await check(pods)) == dict.fromkeys(names, Level.WARN)


@pytest.mark.parametrize(("threshold", "length"), [(4096, 8192), (64, 1024)])
async def test_what_is_beyond_a_short_check(threshold: int, length: int) -> None:
    model = {"name": "tiny", "source": {"path": "/m"}, "maxLength": length}
    async with Fleet() as fleet:
        transfer = {"kvRecomputeThresholdTokens": threshold, "fabric": "UCX"}
        found = await check(Pods(fleet), transfer=transfer, model=model)
        assert (found["KV transfer"].level, BACK in found) == (Level.WARN, False)


async def test_no_router_is_ready() -> None:
    async with Fleet() as fleet:
        pods = Pods(fleet)
        pods.bodies[0]["status"] = {}
        assert (await check(pods))["Router"].level is Level.FAIL
