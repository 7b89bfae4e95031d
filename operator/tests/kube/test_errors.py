"""Answers of a real API server (Kubernetes 1.35), and the errors that they become."""

from typing import Any

import pytest

from kvloop.kube.errors import (
    ConflictError,
    ExpiredError,
    ForbiddenError,
    InvalidError,
    KubeError,
    NotFoundError,
    ServerError,
    UnavailableError,
    from_status,
)

UNDECLARED = (
    "failed to create typed patch object (default/chat-prefill; apps/v1, Kind=StatefulSet):"
    " .spec.template.spec.contaners: field not declared in schema"
)
NOT_UPDATABLE = (
    "Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template' are forbidden"
)


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (400, "the name of the object (a) does not match the name on the URL (b)", InvalidError),
        (401, "Unauthorized", UnavailableError),
        (403, "exceeded quota", ForbiddenError),
        (404, 'configmaps "a" not found', NotFoundError),
        (409, "the object has been modified", ConflictError),
        (410, "The provided continue parameter is too old", ExpiredError),
        (413, "Request entity too large", InvalidError),
        (422, "is invalid", InvalidError),
        (429, "Too many requests", UnavailableError),
        (500, "failed calling webhook", ServerError),
        (500, UNDECLARED, InvalidError),
        (502, "Bad Gateway", UnavailableError),
        (503, "the server is currently unable to handle the request", UnavailableError),
        (504, "Timeout", UnavailableError),
        (599, "", ServerError),
    ],
)
def test_the_type_tells_what_can_be_done(code: int, message: str, kind: type[KubeError]) -> None:
    error = from_status(code, {"message": message})
    assert type(error) is kind
    assert error.code == code
    assert str(error)


def test_a_server_error_of_server_side_apply_names_the_field_that_is_the_senders_fault() -> None:
    error = from_status(500, {"message": UNDECLARED})
    assert isinstance(error, InvalidError)
    assert error.path == "spec.template.spec.contaners"
    assert error.message == ".spec.template.spec.contaners: field not declared in schema"
    assert not error.immutable


@pytest.mark.parametrize(
    ("causes", "path", "immutable"),
    [
        ([], "", False),
        ([{"message": "Required value", "field": "spec.a"}], "spec.a", False),
        (
            [
                {"message": "`selector` does not match template `labels`", "field": "spec.template.metadata.labels"},
                {"message": NOT_UPDATABLE, "field": "spec"},
            ],
            "spec",
            True,
        ),
        ([{"message": "Invalid value: ...: field is immutable", "field": "spec.selector"}], "spec.selector", True),
        ([{"message": "may not change once set", "field": "spec.clusterIPs[0]"}], "spec.clusterIPs[0]", True),
    ],
)
def test_an_immutable_field_comes_before_its_consequences(
    causes: list[dict[str, Any]], path: str, immutable: bool
) -> None:
    error = from_status(422, {"message": "is invalid", "details": {"causes": causes}})
    assert isinstance(error, InvalidError)
    assert (error.path, error.immutable) == (path, immutable)


@pytest.mark.parametrize(
    ("message", "by_admission"),
    [
        ('services is forbidden: User "system:serviceaccount:a:b" cannot patch resource "services" in ...', False),
        ('pods "p" is forbidden: exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0', True),
        ('admission webhook "w" denied the request: no', True),
    ],
)
def test_lack_of_rights_is_told_from_refusal_by_a_policy(message: str, by_admission: bool) -> None:
    error = from_status(403, {"message": message})
    assert isinstance(error, ForbiddenError)
    assert error.by_admission is by_admission


def test_the_wait_that_the_server_asks_for_is_kept() -> None:
    error = from_status(429, {"message": "slow down"}, retry_after=7)
    assert isinstance(error, UnavailableError)
    assert error.retry_after == 7
