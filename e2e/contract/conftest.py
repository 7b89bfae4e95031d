from __future__ import annotations

import random
import ssl
from typing import TYPE_CHECKING

import httpx
import pytest
import pytest_asyncio

from e2e.contract.client import Client
from e2e.contract.engines import MODEL, VOCABULARY, Engines, Setup, SimulatedEngines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KINDS = ["sim"]
_TLS = ssl.create_default_context()  # one for all: making it takes longer than most tests


@pytest.fixture
def setup() -> Setup:
    """Overridden by parametrising ``setup`` where a test needs other engines."""
    return Setup()


@pytest_asyncio.fixture(params=KINDS)
async def engines(setup: Setup) -> AsyncIterator[Engines]:
    started = SimulatedEngines(setup)
    try:
        await started.start()
        yield started
    finally:
        await started.stop()


@pytest_asyncio.fixture
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with httpx.AsyncClient(timeout=30, verify=_TLS) as http:
        yield Client(http, MODEL, random.Random(request.node.nodeid), VOCABULARY)  # noqa: S311 - test data
