"""Spans over OTLP, where the standard environment variables ask for them; without them only what the client sent."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from e2e.router.fake import FakeEngine
from e2e.router.harness import Router, config, user
from kvloop.router import tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


class Receiver:
    """Takes OTLP over HTTP; `spans` by name, `service` as they name it."""

    spans: dict[str, Span]
    service: str

    def __init__(self) -> None:
        self.spans = {}

    async def take(self, request: web.Request) -> web.Response:
        message = ExportTraceServiceRequest.FromString(await request.read())
        for resource in message.resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.service = names["service.name"]
            for scope in resource.scope_spans:
                self.spans.update({span.name: span for span in scope.spans})
        return web.Response()


@pytest_asyncio.fixture
async def receiver(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Receiver]:
    seen = Receiver()
    app = web.Application()
    app.router.add_post("/v1/traces", seen.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{runner.addresses[0][1]}")
    yield seen
    await runner.cleanup()


async def turn(prefill: FakeEngine, decode: FakeEngine, headers: dict[str, str]) -> None:
    """One turn through a router that ends after it, so that its spans are out."""
    async with Router(config([prefill.url], [decode.url])) as router:
        await router.chat(user("something secret"), headers=headers)


async def test_a_turn_and_its_legs_are_spans_of_the_clients_trace(receiver: Receiver) -> None:
    async with FakeEngine("prefill") as prefill, FakeEngine("decode") as decode:
        await turn(prefill, decode, CLIENT)
        sent = {engine.role: engine.seen[0].headers["traceparent"].split("-") for engine in (prefill, decode)}
    whole = receiver.spans["POST /v1/chat/completions"]
    assert receiver.service == "kvloop-router"
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE, PARENT)
    told = {each.key: each.value for each in whole.attributes}
    assert told["http.response.status_code"].int_value == 200
    assert told["kvloop.arm"].string_value == "first"
    for role, (_, trace, span, _) in sent.items():
        leg = receiver.spans[role]
        assert (trace, span) == (TRACE, leg.span_id.hex())
        assert leg.parent_span_id == whole.span_id
        assert whole.start_time_unix_nano <= leg.start_time_unix_nano <= leg.end_time_unix_nano
    assert "secret" not in str(receiver.spans)


async def test_a_failed_turn_is_an_error(receiver: Receiver) -> None:
    async with FakeEngine("prefill") as prefill, Router(config([prefill.url], ["http://127.0.0.1:9"])) as router:
        status, _ = await router.post({"messages": [user("hi")]})
    assert status >= 500
    assert receiver.spans["POST /v1/chat/completions"].status.code == 2


async def test_no_receiver_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    async with FakeEngine("prefill") as prefill, FakeEngine("decode") as decode:
        await turn(prefill, decode, CLIENT)
        assert {engine.seen[0].headers["traceparent"] for engine in (prefill, decode)} == {CLIENT["traceparent"]}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_what_turns_it_off(environment: dict[str, str]) -> None:
    assert tracing.from_environment(environment) is None


async def test_a_receiver_that_is_down_costs_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9/v1/traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    async with FakeEngine("prefill") as prefill, FakeEngine("decode") as decode:
        await turn(prefill, decode, {})
        assert decode.seen[0].headers["traceparent"]
