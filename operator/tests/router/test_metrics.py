"""The metrics' names and labels, as Prometheus wants them."""

import re

import pytest
from prometheus_client.metrics_core import Metric

from kvloop.router.metrics import Metrics
from kvloop.router.outcome import Arm, Outcome

FULL = Outcome(
    dialect="chat",
    stream=True,
    status=200,
    follow_up=True,
    miss="used",
    decode_only="no_prefill",
    failed_transfer=True,
    retries=1,
    prefill_seconds=0.1,
    first_byte_seconds=0.2,
    last_byte_seconds=0.5,
    pieces=31,
    total_seconds=0.6,
)


@pytest.fixture
def families() -> dict[str, Metric]:
    metrics = Metrics()
    metrics.observe(FULL)
    metrics.observe(Outcome(dialect="chat", status=200, not_eligible="n"))
    metrics.observe_store("take", 0.001)
    return {family.name: family for family in metrics.registry.collect()}


def value(family: Metric, sample: str, **labels: str) -> float:
    (found,) = (s.value for s in family.samples if s.name.endswith(sample) and s.labels == labels)
    return found


def test_names_and_labels(families: dict[str, Metric]) -> None:
    for name, family in families.items():
        assert re.fullmatch(r"kvloop_router_[a-z_]+", name)
        assert family.documentation.endswith(".")
        if family.type == "histogram":
            assert name.endswith("_seconds")
        for sample in family.samples:
            assert set(sample.labels) <= {"dialect", "arm", "code", "reason", "kind", "call", "le"}


def test_a_turn_is_counted_everywhere(families: dict[str, Metric]) -> None:
    assert value(families["kvloop_router_turns"], "_total", dialect="chat", arm="recomputed", code="200") == 1
    assert value(families["kvloop_router_misses"], "_total", reason="used") == 1
    assert value(families["kvloop_router_not_eligible_turns"], "_total", reason="n") == 1
    assert value(families["kvloop_router_decode_only_turns"], "_total", reason="no_prefill") == 1
    assert value(families["kvloop_router_failed_transfers"], "_total") == 1
    assert value(families["kvloop_router_gap_seconds"], "_sum", arm="recomputed") == pytest.approx(0.01)
    assert value(families["kvloop_router_first_byte_seconds"], "_sum", arm="recomputed") == pytest.approx(0.2)


def test_every_arm_is_there_from_the_start(families: dict[str, Metric]) -> None:
    arms = {sample.labels["arm"] for sample in families["kvloop_router_first_byte_seconds"].samples}
    assert arms == set(Arm)
