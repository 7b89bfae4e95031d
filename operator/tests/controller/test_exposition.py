"""An engine's metrics, as a simulated vLLM gives them."""

import time

import pytest

from e2e.enginesim.config import Config, Knobs, Transfer
from e2e.enginesim.metrics import Metrics
from kvloop.controller import exposition

GUARD = """\
# HELP kvloop_engine_info kvloop's engine plugin.
kvloop_engine_info{active="1",block_size="16",boot_id="abc",role="kv_producer",vllm_version="0.32.0"} 1.0
kvloop_guard_handles_total{reason="ok"} 3.0
kvloop_guard_handles_total{reason="mismatch"} 1.0
kvloop_guard_offered_tokens_total 400.0
kvloop_guard_offered_tokens_created 1.7e9
"""


def test_what_is_needed_is_found_and_nothing_else() -> None:
    metrics = Metrics(Config(model="m", transfer=Transfer(), max_model_len=1024, knobs=Knobs(kv_tokens=2048)))
    metrics.prompt_by_source["external_kv_transfer"].inc(300)
    metrics.prompt_by_source["local_compute"].inc(50)
    metrics.xfer_time.observe(0.02)
    metrics.xfer_time.observe(0.2)
    metrics.xfer_bytes.observe(1e6)
    metrics.request_computed.observe(1)
    metrics.request_computed.observe(900)
    metrics.prefix_queries.inc(1000)
    metrics.prefix_hits.inc(100)
    metrics.expired.inc(2)
    metrics.kv_usage.set(0.25)
    metrics.running.set(3)
    found = exposition.parse(metrics.render().decode() + GUARD)
    numbers = {path: number for path, number in found.counters.items() if number}
    assert numbers["prompt_tokens", "external_kv_transfer"] == 300
    assert (numbers["transfers",], numbers["transfer_bytes",], numbers["expired",]) == (2, 1e6, 2)
    assert [numbers["transfer_buckets", le] for le in ("0.025", "0.2", "+Inf")] == [1, 2, 2]
    assert (numbers["requests",], numbers["computed_buckets", "20.0"]) == (2, 1)
    assert (numbers["queried_tokens",], numbers["hit_tokens",]) == (1000, 100)
    assert (numbers["handles", "mismatch"], numbers["offered_tokens",]) == (1, 400)
    assert found.gauges == {"used": 0.25, "running": 3}
    assert (found.guard, found.boot, found.capacity_tokens) == ("active", "abc", 2048)


def test_cores_are_added_up_and_their_gauges_are_a_mean() -> None:
    text = "".join(
        f'vllm:nixl_bytes_transferred_sum{{engine="{i}"}} 10\nvllm:kv_cache_usage_perc{{engine="{i}"}} 0.{i}\n'
        for i in (1, 5)
    )
    found = exposition.parse(text)
    assert found.counters["transfer_bytes",] == 20
    assert found.gauges["used"] == pytest.approx(0.3)


def test_an_engine_without_the_plugin() -> None:
    found = exposition.parse("vllm:num_requests_running 0\nvllm:nixl_bytes_transferred_sum NaN\n")
    assert (found.guard, found.boot, found.capacity_tokens, found.counters) == ("absent", "", 0, {})
    assert exposition.parse('kvloop_engine_info{active="0"} 1').guard == "inactive"


@pytest.mark.parametrize(
    "text",
    [
        "vllm:kv_cache_usage_perc{" + "a" * 1_000_000 + "} 1",
        'kvloop_engine_info{active="' + "\\\\" * 400_000,
        "vllm:kv_cache_usage_perc 1e308\n" * 2,
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="' + "9" * 5000 + '"} 1',
        "\n".join(f'kvloop_guard_handles_total{{reason="{i}"}} 1e300' for i in range(20_000)),
    ],
    ids=["a long label", "an open quote", "a huge gauge", "a huge cache", "many series"],
)
def test_a_hostile_engine_costs_little(text: str) -> None:
    """Whoever may create a resource chooses what its pods answer: one must not hold up or end the others' operator."""
    start = time.process_time()
    found = exposition.parse(text)
    assert time.process_time() - start < 2
    assert len(found.counters) <= exposition.MOST_SERIES
    assert all(number <= exposition.MOST for number in (*found.gauges.values(), *found.counters.values()))
    assert found.capacity_tokens <= exposition.MOST**2


def test_buckets_without_a_bound_are_passed_over() -> None:
    bounds = ("abc", "", "NaN", "0.5", "1e-05", "+Inf")
    text = "".join(f'vllm:nixl_xfer_time_seconds_bucket{{le="{bound}"}} 1\n' for bound in bounds)
    assert [le for _, le in exposition.parse(text).counters] == ["0.5", "1e-05", "+Inf"]
