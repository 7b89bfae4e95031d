"""What an API request can end with, as types: the caller decides by type, never by a status code or a message."""

import re
from http import HTTPStatus
from typing import Any


class KubeError(Exception):
    """The API server refused or failed a request; `code` is the HTTP status, 0 without an answer."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class NotFoundError(KubeError):
    """There is no such object, or its kind is not installed."""


class ConflictError(KubeError):
    """The object exists where it must not, or is another one (uid) than the caller knew."""


class ForbiddenError(KubeError):
    """Refused, and the next try may succeed if somebody acts.

    `by_admission` is true for a quota, a policy or a webhook, false if the operator lacks the right to do it at all.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message, code)
        self.by_admission = not _UNAUTHORIZED.search(message)


class InvalidError(KubeError):
    """The object itself is wrong: the same request fails for ever. `path` names the field, if the server told it.

    `immutable` is true if the field cannot be changed once the object exists.
    """

    def __init__(self, message: str, code: int = 0, path: str = "", *, immutable: bool = False) -> None:
        super().__init__(message, code)
        self.path = path
        self.immutable = immutable


class ExpiredError(KubeError):
    """A list took longer than the server remembers; list again from the start."""


class ServerError(KubeError):
    """This request failed inside the server, such as in a webhook that is down; others may pass."""


class UnavailableError(KubeError):
    """No request would pass now: no connection, no credentials, or the server is overloaded.

    `retry_after` is how long the server asks to wait, in seconds.
    """

    def __init__(self, message: str, code: int = 0, retry_after: float = 0.0) -> None:
        super().__init__(message, code)
        self.retry_after = retry_after


_UNAUTHORIZED = re.compile(r'User ".*" cannot \w+ resource "')
_TYPED_PATCH = re.compile(
    r"failed to create typed (?:patch|live) object \([^)]*\): (?P<path>\.[^:\s]*): (?P<what>.*)", re.DOTALL
)
_OVERLOADED = {
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}
_IMMUTABLE = re.compile(r"updates to \w+ spec for fields other than|field is immutable|may not change once set")


def from_status(code: int, status: dict[str, Any], retry_after: float = 0.0) -> KubeError:
    """The error for an answer with HTTP status `code` and the decoded `Status` object in its body."""
    message = str(status.get("message") or f"HTTP {code}")
    if found := _TYPED_PATCH.search(message):
        # Server-side apply checks built-in kinds against their schema, and answers 500 for what is the sender's fault.
        return InvalidError(f"{found['path']}: {found['what']}", code, found["path"].removeprefix("."))
    if code in _OVERLOADED:
        return UnavailableError(message, code, retry_after)
    if code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return ServerError(message, code)
    simple: dict[int, type[KubeError]] = {
        HTTPStatus.FORBIDDEN: ForbiddenError,
        HTTPStatus.NOT_FOUND: NotFoundError,
        HTTPStatus.CONFLICT: ConflictError,
        HTTPStatus.GONE: ExpiredError,
    }
    if kind := simple.get(code):
        return kind(message, code)
    return _invalid(code, message, (status.get("details") or {}).get("causes") or [])


def _invalid(code: int, message: str, causes: list[dict[str, Any]]) -> InvalidError:
    """The first cause that cannot be a consequence of another: an immutable field before all others."""
    immutable = next((cause for cause in causes if _IMMUTABLE.search(cause.get("message", ""))), None)
    cause = immutable or next(iter(causes), {})
    return InvalidError(message, code, cause.get("field", ""), immutable=immutable is not None)
