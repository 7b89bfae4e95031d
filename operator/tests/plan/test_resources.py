"""Requests and limits of an engine."""

from collections.abc import Callable
from typing import Any

from kvloop.api.labels import Role
from kvloop.plan import resources
from kvloop.plan.scope import Scope

Scoped = Callable[..., Scope]


def of(scope: Scope) -> dict[str, Any]:
    return resources.of(scope, Role.PREFILL)


def on(instance_type: str, **prefill: Any) -> dict[str, Any]:
    return {
        "placement": {"instanceType": instance_type},
        "prefill": prefill,
        "decode": {"tensorParallelSize": prefill.get("tensorParallelSize", 1)},
    }


def test_accelerators_are_requested_and_limited(scope: Scoped) -> None:
    spec = {"prefill": {"tensorParallelSize": 2, "gpuResource": "amd.com/gpu"}}
    assert of(scope(spec)) == {"requests": {"amd.com/gpu": 2}, "limits": {"amd.com/gpu": 2}}


def test_an_engine_on_the_cpu_asks_for_what_the_user_says(scope: Scoped) -> None:
    wanted = {"requests": {"cpu": "4"}, "limits": {"memory": "8Gi"}}
    assert of(scope({"prefill": {"gpus": 0, "resources": wanted}})) == wanted
    assert of(scope({"prefill": {"gpus": 0}})) == {}


def test_half_of_the_gpus_share_of_the_node_is_requested(scope: Scoped) -> None:
    assert of(scope(on("p5en.48xlarge", tensorParallelSize=4)))["requests"] == {
        "cpu": 48,
        "memory": f"{1937332 // 4}Mi",
        "nvidia.com/gpu": 4,
    }


def test_what_the_user_requests_or_limits_is_not_guessed(scope: Scoped) -> None:
    spec = on("p5en.48xlarge", resources={"requests": {"cpu": 3}, "limits": {"memory": "64Gi"}})
    assert of(scope(spec)) == {
        "requests": {"cpu": 3, "nvidia.com/gpu": 1},
        "limits": {"memory": "64Gi", "nvidia.com/gpu": 1},
    }


def test_nothing_is_guessed_for_an_unknown_type(scope: Scoped) -> None:
    assert of(scope(on("of.tomorrow")))["requests"] == {"nvidia.com/gpu": 1}


def test_huge_pages_are_limited_too_and_have_a_request_beside_them(scope: Scoped) -> None:
    wanted = {"transfer": {"fabric": "EFA", "efa": {"hugepages2Mi": "5120Mi"}}}
    expected = {"nvidia.com/gpu": 1, "vpc.amazonaws.com/efa": 1, "hugepages-2Mi": "5120Mi"}
    assert of(scope(wanted)) == {"requests": {"cpu": 1, **expected}, "limits": expected}
    assert of(scope({"transfer": {"efa": {"hugepages2Mi": "5120Mi"}}}))["limits"] == {"nvidia.com/gpu": 1}


def test_claims_of_the_user_stay_beside_ours(scope: Scoped) -> None:
    spec = {
        "transfer": {"fabric": "EFA", "efa": {"mechanism": "DynamicResourceAllocation"}},
        "prefill": {"resources": {"claims": [{"name": "other"}]}},
    }
    assert of(scope(spec)) == {"claims": [{"name": "other"}, {"name": "devices"}]}
