"""OpenTelemetry spans, one a turn and one a leg, where the standard environment variables name a receiver.

Without them nothing of OpenTelemetry is loaded, and the client's trace context is forwarded as it came.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kvloop.router.tracing.spans import Tracing

_RECEIVERS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def from_environment(environment: Mapping[str, str] = os.environ) -> "Tracing | None":
    """Tracing that exports over OTLP/HTTP, or None where no receiver is named or OTEL_SDK_DISABLED is true."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp" or not any(map(environment.get, _RECEIVERS)):
        return None
    from kvloop.router.tracing.spans import Tracing  # noqa: PLC0415 (it loads OpenTelemetry, which most do without)

    return Tracing()
