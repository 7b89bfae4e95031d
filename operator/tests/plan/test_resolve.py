"""What the spec leaves open."""

from collections.abc import Callable
from typing import Any

import pytest

from kvloop.api.labels import Role
from kvloop.plan.resolve import NEWEST, vllm_version
from kvloop.plan.scope import Scope


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.32.0", "0.32.0"),
        ("registry.example:5000/vllm:0.30.0", "0.30.0"),
        ("public.ecr.aws/deep-learning-containers/vllm:0.27.1-gpu-py312-cu130-ubuntu22.04-ec2", "0.27.1"),
        ("registry.example/vllm:server-cuda-v0.28", "0.28"),
        ("vllm/vllm-openai:v0.21.0@sha256:00", "0.21.0"),
    ],
)
def test_version_is_read_from_the_tag(image: str, version: str) -> None:
    minor = int(version.split(".")[1])
    assert vllm_version(None, image) == ((0, minor), version)


@pytest.mark.parametrize(
    "image",
    [
        "vllm/vllm-openai",
        "vllm/vllm-openai:latest",
        "registry.example:5000/vllm",
        "registry.example/vllm@sha256:0.21",
        "registry.example/vllm:gpu-cu130-ubuntu22.04",
        "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.5.0-efa",
    ],
)
def test_the_newest_is_assumed_and_said_where_no_tag_tells(image: str) -> None:
    version, text = vllm_version(None, image)
    assert version == NEWEST
    assert "assumed" in text


def test_a_stated_version_wins() -> None:
    assert vllm_version("0.21.1rc1", "vllm/vllm-openai:v0.32.0") == ((0, 21), "0.21.1rc1")
    assert vllm_version("1.2", "x") == ((1, 2), "1.2")


def efa(instance_type: str | None, gpus: int, devices: int | None = None, tp: int = 1) -> dict[str, Any]:
    return {
        "transfer": {"fabric": "EFA", "efa": {"devicesPerPod": devices}},
        "placement": {"instanceType": instance_type},
        "prefill": {"gpus": gpus, "tensorParallelSize": tp},
    }


@pytest.mark.parametrize(
    ("spec", "devices"),
    [
        (efa("p5en.48xlarge", 1), 2),
        (efa("p5en.48xlarge", 4), 8),
        (efa("p5.48xlarge", 8), 32),
        (efa("p4d.24xlarge", 1), 1),
        (efa("p4d.24xlarge", 4), 2),
        (efa("p5en.48xlarge", 4, devices=3), 3),
        (efa(None, 4), 1),
        (efa("of.tomorrow", 4), 1),
    ],
)
def test_efa_devices_are_the_gpus_share_of_the_node(
    spec: dict[str, Any], devices: int, scope: Callable[..., Scope]
) -> None:
    assert scope(spec).resolved.efa[Role.PREFILL] == devices


def test_no_efa_devices_without_efa(scope: Callable[..., Scope]) -> None:
    assert scope({"placement": {"instanceType": "p5.48xlarge"}}).resolved.efa == {Role.PREFILL: 0, Role.DECODE: 0}


def test_gpus_follow_tensor_parallelism_unless_stated(scope: Callable[..., Scope]) -> None:
    spec = {"prefill": {"tensorParallelSize": 2}, "decode": {"tensorParallelSize": 2, "gpus": 0}}
    assert scope(spec).resolved.gpus == {Role.PREFILL: 2, Role.DECODE: 0}


def test_status_says_what_was_resolved(scope: Callable[..., Scope]) -> None:
    status = scope(efa("p5en.48xlarge", 2)).resolved.to_status()
    assert status.vllm_version == "0.32.0"
    assert status.efa_devices_per_pod == {"prefill": 4, "decode": 2}
    assert status.gpus_per_pod == {"prefill": 2, "decode": 1}
    assert status.router_image == "registry.example/kvloop-router:1"
    assert scope({"router": {"image": "r:2"}}).resolved.to_status().router_image == "r:2"
