from __future__ import annotations

import random
import ssl
from typing import TYPE_CHECKING

import httpx
import pytest
import pytest_asyncio

from e2e.contract.client import Client
from e2e.contract.engines import VOCABULARY, Setup
from e2e.engine.fleet import Fleet, RealEngines
from e2e.engine.server import MODEL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

_TLS = ssl.create_default_context()  # one for all: making it takes longer than most tests


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    started = Fleet(tmp_path_factory.mktemp("engines"))
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture
def setup() -> Setup:
    """Overridden by parametrising ``setup`` where a test needs other engines."""
    return Setup()


@pytest_asyncio.fixture
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with httpx.AsyncClient(timeout=120, verify=_TLS) as http:
        yield Client(http, MODEL, random.Random(request.node.nodeid), VOCABULARY)  # noqa: S311 - test data


@pytest_asyncio.fixture
async def engines(fleet: Fleet, setup: Setup, client: Client) -> AsyncIterator[RealEngines]:
    """The engines of a test; afterwards nothing of it is left in them."""
    seen = RealEngines.of(fleet, setup)
    yield seen
    await seen.settle(client)
