"""Answers that the router gives itself, in the shape that OpenAI's clients read."""

from typing import Any, Self

import orjson

from kvloop.router.dialects import MESSAGES, Dialect

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    413: "RequestTooLargeError",
    429: "RateLimitError",
    502: "BadGatewayError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


RETRY_AFTER_SECONDS = 5
"""What clients are told to wait for an engine; a probe or a watch brings one back within seconds."""


class RefusalError(Exception):
    """Ends a turn, before its first byte, with an answer of our own."""

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        """`message` says what to do and never names an engine; `retry_after` is in seconds."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after

    @classmethod
    def bad_request(cls, message: str) -> Self:
        return cls(400, message)

    def headers(self) -> dict[str, str]:
        headers = {"content-type": "application/json"}
        if self.retry_after is not None:
            headers["retry-after"] = str(self.retry_after)
        return headers

    def body(self, dialect: Dialect | None = None) -> bytes:
        return orjson.dumps(_shape(self.status, self.message, dialect))


def event(message: str, dialect: Dialect) -> bytes:
    """An error as the last event of a stream that cannot be finished."""
    data = b"data: " + orjson.dumps(_shape(502, message, dialect)) + b"\n\n"
    return data if dialect.path.endswith("completions") else b"event: error\n" + data


def _shape(status: int, message: str, dialect: Dialect | None) -> dict[str, Any]:
    if dialect is MESSAGES:
        return {"type": "error", "error": {"type": _ANTHROPIC_TYPES.get(status, "api_error"), "message": message}}
    kind = _TYPES.get(status, "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}
