"""The spans of turns and legs. They hold no content, no id of a conversation and no handle."""

from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kvloop import __version__
from kvloop.router.outcome import Outcome

_UNNAMED = "unknown_service"


class Tracing:
    """Makes the spans of turns, and exports them as the environment says."""

    def __init__(self) -> None:
        resource = Resource.create()
        if str(resource.attributes[SERVICE_NAME]).startswith(_UNNAMED):
            resource = resource.merge(Resource({SERVICE_NAME: "kvloop-router"}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self.tracer = self._provider.get_tracer("kvloop.router", __version__)
        self.propagator = TraceContextTextMapPropagator()

    def begin(self, path: str, headers: Mapping[str, str]) -> "TurnTrace":
        """Begin a turn, in the client's trace if it sent one."""
        return TurnTrace(self, path, headers)

    def close(self) -> None:
        """Send what is still to be sent; blocks for some seconds if the receiver does not answer."""
        self._provider.shutdown()


class TurnTrace:
    """The span of a turn, and those of its legs, of which the next one ends the last."""

    def __init__(self, tracing: Tracing, path: str, headers: Mapping[str, str]) -> None:
        self._tracing = tracing
        context = tracing.propagator.extract(headers)
        attributes = {"http.request.method": "POST", "url.path": path}
        self._turn = tracing.tracer.start_span(f"POST {path}", context, SpanKind.SERVER, attributes)
        self._leg: Span | None = None

    def leg(self, role: str, address: str) -> dict[str, str]:
        """Begin a leg; gives the headers that put the engine's own spans below it."""
        self._end_leg()
        host, _, port = address.rpartition(":")
        attributes: dict[str, str | int] = {"server.address": host, "server.port": int(port)}
        parent = set_span_in_context(self._turn)
        self._leg = self._tracing.tracer.start_span(role, parent, SpanKind.CLIENT, attributes)
        headers: dict[str, str] = {}
        self._tracing.propagator.inject(headers, set_span_in_context(self._leg))
        return headers

    def end(self, outcome: Outcome) -> None:
        """End the turn, with what became of it."""
        self._end_leg()
        self._turn.set_attributes(
            {
                "http.response.status_code": outcome.status,
                "kvloop.arm": outcome.arm.value,
                "kvloop.miss": outcome.miss,
                "kvloop.not_eligible": outcome.not_eligible,
                "kvloop.prompt_tokens": outcome.prompt_tokens,
                "kvloop.reused_tokens": outcome.reused_tokens,
                "kvloop.retries": outcome.retries,
            }
        )
        if outcome.status >= 500:
            self._turn.set_status(StatusCode.ERROR)
        self._turn.end()

    def _end_leg(self) -> None:
        if self._leg is not None:
            self._leg.end()
            self._leg = None
