"""What a revision depends on, and on what it does not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvloop.plan.config import PlanConfig
from kvloop.plan.revision import revision

HF = {"repository": "o/m", "revision": "a"}


def hugging_face(**changes: Any) -> dict[str, Any]:
    return {"model": {"source": {"path": None, "huggingFace": HF | changes}}}


@pytest.mark.parametrize(
    "change",
    [
        {"engine": {"image": "registry.example/vllm:0.32.1"}},
        {"engine": {"version": "0.31.0"}},
        {"engine": {"dtype": "bfloat16"}},
        {"engine": {"kvCacheDtype": "fp8"}},
        {"engine": {"blockSize": 32}},
        {"engine": {"args": ["--enforce-eager"]}},
        {"engine": {"env": [{"name": "VLLM_ATTENTION_BACKEND", "value": "FLASHINFER"}]}},
        {"model": {"name": "n"}},
        {"model": {"source": {"path": "/models/n"}}},
        {"transfer": {"fabric": "EFA"}},
        {"transfer": {"bidirectional": False}},
        {"transfer": {"decoderKVBlocksTTLSeconds": 60}},
        {"transfer": {"kvRecomputeThresholdTokens": 128}},
        {"transfer": {"kvLeaseDurationSeconds": 60}},
        {"decode": {"tensorParallelSize": 2}},
        {"decode": {"args": ["--enforce-eager"]}},
        {"prefill": {"env": [{"name": "X", "value": "1"}]}},
        {"prefill": {"gpus": 0}},
        {
            "prefill": {
                "podTemplate": {"spec": {"containers": [{"name": "vllm", "env": [{"name": "X", "value": "1"}]}]}}
            }
        },
        hugging_face(),
    ],
    ids=str,
)
def test_what_engines_must_agree_on_makes_another_revision(
    change: dict[str, Any], make: Callable[..., Any], config: PlanConfig
) -> None:
    assert revision(make(change), config) != revision(make(), config)


def test_other_weights_make_another_revision(make: Callable[..., Any], config: PlanConfig) -> None:
    specs = (hugging_face(), hugging_face(revision="b"), hugging_face(repository="o/n"))
    assert len({revision(make(spec), config) for spec in specs}) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"prefill": {"replicas": 9}},
        {"decode": {"replicas": None}},
        {"prefill": {"prefixCaching": False}},
        {"prefill": {"resources": {"requests": {"cpu": 1}}}},
        {"prefill": {"maxUnavailable": 2}},
        {"prefill": {"podTemplate": {"metadata": {"labels": {"a": "b"}}}}},
        {"prefill": {"podTemplate": {"spec": {"containers": [{"name": "logs", "env": []}]}}}},
        {"prefill": {"podTemplate": {"spec": {"containers": "nonsense"}}}},
        {"engine": {"shutdownTimeoutSeconds": 5}},
        {"engine": {"serviceAccountName": "sa"}},
        {"placement": {"zone": "us-east-1a"}},
        {"router": {"holdoutPercent": 5}},
        {"rollout": {"paused": True}},
        {"monitoring": {"podMonitor": "Disabled"}},
    ],
    ids=str,
)
def test_what_engines_may_differ_in_does_not(
    change: dict[str, Any], make: Callable[..., Any], config: PlanConfig
) -> None:
    assert revision(make(change), config) == revision(make(), config)


def test_a_new_token_does_not(make: Callable[..., Any], config: PlanConfig) -> None:
    with_token = hugging_face(tokenSecretRef={"name": "hf", "key": "t"})
    assert revision(make(with_token), config) == revision(make(hugging_face()), config)


def test_the_plugins_version_counts_and_its_text_does_not(make: Callable[..., Any], config: PlanConfig) -> None:
    text = replace(config, plugin_files={**config.plugin_files, "kvloop/engine/plugin.py": "# other"})
    version = replace(config, plugin_files={"kvloop_engine-2.dist-info/METADATA": ""})
    assert revision(make(), text) == revision(make(), config)
    assert revision(make(), version) != revision(make(), config)


def test_it_is_ten_hex_digits(make: Callable[..., Any], config: PlanConfig) -> None:
    found = revision(make(), config)
    assert len(found) == 10
    assert int(found, 16) >= 0
