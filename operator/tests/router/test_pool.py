"""Engines across changes of their endpoints."""

import asyncio
from dataclasses import replace

import pytest

from kvloop.api.contract import CircuitBreaker
from kvloop.api.labels import Role
from kvloop.router.pool import Endpoint, Engine, EngineInfo, Pool

D = Endpoint(Role.DECODE, "10.0.0.1:8000", "r1", uid="pod-1")


def test_an_engine_keeps_its_state_while_its_conditions_change() -> None:
    pool = Pool(lambda: 0.0, CircuitBreaker())
    (engine,) = pool.update([D])
    pool.begin(engine)
    assert pool.update([replace(D, terminating=True)]) == []
    assert pool.all() == [engine]
    assert engine.endpoint.terminating
    assert engine.in_flight == 1


def test_an_engine_that_becomes_ready_may_work_at_once_and_is_probed() -> None:
    pool = Pool(lambda: 0.0, CircuitBreaker())
    (engine,) = pool.update([replace(D, ready=False)])
    pool.suspect(engine, reachable=False)
    assert pool.update([D]) == [engine]
    assert pool.usable(Role.DECODE) == [engine]
    pool.suspect(engine, reachable=False)
    assert pool.update([D]) == []
    assert pool.usable(Role.DECODE) == []


def test_another_pod_at_the_same_address_is_another_engine() -> None:
    pool = Pool(lambda: 0.0, CircuitBreaker())
    (old,) = pool.update([D])
    old.info = EngineInfo(guard_active=True, boot_id="boot")
    (new,) = pool.update([replace(D, uid="pod-2")])
    assert new is not old
    assert new.info == EngineInfo()


def test_an_engine_that_left_is_unknown() -> None:
    pool = Pool(lambda: 0.0, CircuitBreaker())
    pool.update([D])
    pool.update([])
    assert pool.get(Role.DECODE, D.address) is None


def test_roles_may_share_an_address() -> None:
    pool = Pool(lambda: 0.0, CircuitBreaker())
    pool.update([D, replace(D, role=Role.PREFILL)])
    assert [len(pool.usable(role)) for role in Role] == [1, 1]


@pytest.mark.parametrize("changed", [replace(D, ready=False), replace(D, terminating=True)])
def test_who_is_not_ready_or_leaves_gets_no_work(changed: Endpoint) -> None:
    pool = Pool(lambda: 0.0, CircuitBreaker())
    pool.update([changed])
    assert pool.usable(Role.DECODE) == []


@pytest.mark.parametrize("reachable", [False, True])
def test_nothing_is_known_of_an_engine_that_cuts_connections(reachable: bool) -> None:
    pool = Pool(lambda: 0.0, CircuitBreaker())
    (engine,) = pool.update([D])
    suspects: list[Engine] = []
    pool.on_suspect = suspects.append
    engine.info = EngineInfo(guard_active=True, boot_id="boot")
    pool.suspect(engine, reachable=reachable)
    assert engine.usable is reachable
    assert engine.info == EngineInfo()
    assert suspects == [engine]
    pool.suspect_address(D.address)
    assert suspects == [engine, engine]


async def test_idle_is_when_every_turn_has_ended() -> None:
    pool = Pool(lambda: 0.0, CircuitBreaker())
    (engine,) = pool.update([D])
    pool.begin(engine)
    waiting = asyncio.ensure_future(pool.idle())
    await asyncio.sleep(0)
    assert not waiting.done()
    pool.end(engine)
    await asyncio.wait_for(waiting, 5)
