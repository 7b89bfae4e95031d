"""What an engine's metrics tell."""

import pytest

from kvloop.router.pool import EngineInfo
from kvloop.router.probe import understand

HELP = "# HELP kvloop_engine_info kvloop's engine plugin.\n# TYPE kvloop_engine_info gauge\n"
GUARD = 'kvloop_engine_info{plugin_version="0.1",role="kv_producer",active="1",boot_id="b-1"} 1.0\n'
CACHE = 'vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="1000",x="a\\"b,}"} 1.0\n'


def test_guard_boot_and_size() -> None:
    info = EngineInfo(probed=True, guard_active=True, boot_id="b-1", capacity_tokens=32000)
    assert understand(HELP + GUARD + CACHE) == info
    assert understand(CACHE + GUARD) == info


@pytest.mark.parametrize("metrics", ["", HELP, "vllm:x 1\n", 'kvloop_engine_info{active="0"} 1\n'])
def test_without_the_plugin(metrics: str) -> None:
    assert understand(metrics) == EngineInfo(probed=True)


def test_an_inactive_guard_still_tells_its_boot() -> None:
    assert understand(GUARD.replace('active="1"', 'active="0"')) == EngineInfo(probed=True, boot_id="b-1")


def test_a_size_that_is_not_known_yet() -> None:
    assert understand('vllm:cache_config_info{num_gpu_blocks="None",block_size="16"} 1\n').capacity_tokens == 0
