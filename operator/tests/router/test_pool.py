"""Engines across changes of their endpoints."""

from dataclasses import replace

from kvloop.api.labels import Role
from kvloop.router.pool import Endpoint, EngineInfo, Pool

D = Endpoint(Role.DECODE, "10.0.0.1:8000", "r1", uid="pod-1")


def test_an_engine_keeps_its_state_while_its_conditions_change() -> None:
    pool = Pool()
    (engine,) = pool.update([D])
    pool.begin(engine)
    assert pool.update([replace(D, terminating=True)]) == []
    assert pool.all() == [engine]
    assert engine.endpoint.terminating
    assert engine.in_flight == 1


def test_another_pod_at_the_same_address_is_another_engine() -> None:
    pool = Pool()
    (old,) = pool.update([D])
    old.info = EngineInfo(True, "boot")
    (new,) = pool.update([replace(D, uid="pod-2")])
    assert new is not old
    assert new.info == EngineInfo()


def test_an_engine_that_left_is_unknown() -> None:
    pool = Pool()
    pool.update([D])
    pool.update([])
    assert pool.get(Role.DECODE, D.address) is None


def test_roles_may_share_an_address() -> None:
    pool = Pool()
    pool.update([D, replace(D, role=Role.PREFILL)])
    assert [len(pool.of(role)) for role in Role] == [1, 1]


def test_nothing_is_known_of_an_engine_that_cannot_be_reached() -> None:
    pool = Pool()
    (engine,) = pool.update([D])
    engine.info = EngineInfo(True, "boot")
    pool.unreachable(engine)
    assert not engine.usable
    assert engine.info == EngineInfo()
