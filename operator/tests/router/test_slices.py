"""EndpointSlices to engines."""

from typing import Any

from kvloop.api.labels import Role
from kvloop.router.endpoints.slices import understand
from kvloop.router.pool import Endpoint


def piece(*endpoints: dict[str, Any], role: str = "prefill", kind: str = "IPv4", **changes: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "s", "labels": {"kvloop.io/role": role, "kvloop.io/revision": "r1"}},
        "addressType": kind,
        "ports": [{"name": "side-channel", "port": 5600}, {"name": "http", "port": 8000}],
        "endpoints": list(endpoints),
        **changes,
    }


def endpoint(address: str, uid: str = "u1", **conditions: bool) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions, "targetRef": {"kind": "Pod", "uid": uid}}


def test_addresses_roles_and_revisions() -> None:
    found = understand([piece(endpoint("10.0.0.1", ready=True)), piece(endpoint("10.0.0.2"), role="decode")], "http")
    assert found == [
        Endpoint(Role.PREFILL, "10.0.0.1:8000", "r1", "u1"),
        Endpoint(Role.DECODE, "10.0.0.2:8000", "r1", "u1"),
    ]


def test_ipv6_is_bracketed() -> None:
    (found,) = understand([piece(endpoint("fd00::7"), kind="IPv6")], "http")
    assert found.address == "[fd00::7]:8000"


def test_conditions() -> None:
    (found,) = understand([piece(endpoint("10.0.0.1", ready=False, serving=True, terminating=True))], "http")
    assert (found.ready, found.terminating) == (False, True)
    (found,) = understand([piece({"addresses": ["10.0.0.1"]})], "http")
    assert (found.ready, found.terminating) == (True, False)


def test_a_pod_in_two_slices_is_one_engine() -> None:
    old, new = piece(endpoint("10.0.0.1", ready=False)), piece(endpoint("10.0.0.1", ready=True))
    for slices in ([old, new], [new, old]):
        (found,) = understand(slices, "http")
        assert found.ready


def test_what_is_no_engine_is_left_out() -> None:
    assert understand([piece(endpoint("10.0.0.1"), role="router")], "http") == []
    assert understand([piece(endpoint("10.0.0.1"), ports=None), piece(endpoints=None)], "http") == []
    assert understand([piece(endpoint("10.0.0.1"))], "grpc") == []
