"""Fixtures of the controller's tests."""

import pytest

from .doubles import Clock, MemoryKube


@pytest.fixture
def kube() -> MemoryKube:
    return MemoryKube()


@pytest.fixture
def clock() -> Clock:
    return Clock()
