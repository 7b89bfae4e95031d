"""Which headers cross the router: lists of what may, so that ids, ranks and addresses stay on their side."""

from collections.abc import Mapping

# Trace context (W3C), content negotiation, and the versions that Anthropic's clients send.
_TO_ENGINE = ("traceparent", "tracestate", "baggage", "anthropic-version", "anthropic-beta", "accept", "user-agent")
_TO_CLIENT = ("content-type", "retry-after", "cache-control", "www-authenticate")


def to_engine(headers: Mapping[str, str], leg_id: str, *, credentials: bool) -> dict[str, str]:
    """Headers of a leg. `credentials`: the client's Authorization is meant for the engines."""
    out = {name: headers[name] for name in _TO_ENGINE if name in headers}
    out["content-type"] = headers.get("content-type", "application/json")
    out["x-request-id"] = leg_id
    if credentials and "authorization" in headers:
        out["authorization"] = headers["authorization"]
    return out


def to_client(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers of an engine's answer that are the client's business."""
    return {name: headers[name] for name in _TO_CLIENT if name in headers}
