"""Environment of an engine."""

from collections.abc import Callable
from typing import Any

import pytest

from kvloop.api.labels import Role
from kvloop.plan import env
from kvloop.plan.scope import Scope

Scoped = Callable[..., Scope]


def variables(scope: Scope, role: Role = Role.PREFILL) -> dict[str, dict[str, Any]]:
    listed = env.environment(scope, role)
    named = {variable["name"]: variable for variable in listed}
    assert len(named) == len(listed)
    return named


def test_the_side_channel_is_on_the_pods_address(scope: Scoped) -> None:
    found = variables(scope())
    assert found["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert found["VLLM_NIXL_SIDE_CHANNEL_PORT"]["value"] == "5600"


@pytest.mark.parametrize("role", list(Role))
def test_the_token_reaches_both_roles_by_reference(role: Role, scope: Scoped) -> None:
    ref = {"name": "hf", "key": "token"}
    source = {"path": None, "huggingFace": {"repository": "o/m", "tokenSecretRef": ref}}
    token = variables(scope({"model": {"source": source}}), role)["HF_TOKEN"]
    assert token == {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": ref}}


def test_no_token_without_a_secret(scope: Scoped) -> None:
    assert "HF_TOKEN" not in variables(scope())
    assert "HF_TOKEN" not in variables(scope({"model": {"source": {"path": None, "huggingFace": {"repository": "m"}}}}))


def test_the_roles_variables_win_over_the_shared_ones(scope: Scoped) -> None:
    spec = {
        "engine": {"env": [{"name": "A", "value": "shared"}, {"name": "XDG_CACHE_HOME", "value": "/mine"}]},
        "prefill": {"env": [{"name": "A", "value": "own"}, {"name": "B", "valueFrom": {"fieldRef": {}}}]},
    }
    found = variables(scope(spec))
    assert found["A"] == {"name": "A", "value": "own"}
    assert found["B"] == {"name": "B", "valueFrom": {"fieldRef": {}}}
    assert found["XDG_CACHE_HOME"]["value"] == "/mine"
    assert variables(scope(spec), Role.DECODE)["A"]["value"] == "shared"


def test_the_operators_variables_stay_even_in_a_resource_stored_under_older_rules(scope: Scoped) -> None:
    spec = {"prefill": {"env": [{"name": "PYTHONPATH", "value": "/elsewhere"}]}}
    assert variables(scope(spec))["PYTHONPATH"]["value"] == env.PLUGIN_FOLDER


def fabric(instance_type: str | None, rdma: bool | None = None) -> dict[str, Any]:
    return {
        "transfer": {"fabric": "EFA", "efa": {"deviceRDMA": rdma}},
        "placement": {"instanceType": instance_type},
    }


@pytest.mark.parametrize(
    ("spec", "rdma"),
    [
        (fabric("p5en.48xlarge"), "1"),
        (fabric("p5.4xlarge"), None),
        (fabric("g6e.8xlarge"), None),
        (fabric(None), None),
        (fabric(None, rdma=True), "1"),
        (fabric("p5en.48xlarge", rdma=False), "0"),
    ],
)
def test_device_rdma_is_demanded_only_where_it_is_known_to_be(
    spec: dict[str, Any], rdma: str | None, scope: Scoped
) -> None:
    expected = {"FI_PROVIDER": "efa", "FI_EFA_ENABLE_SHM_TRANSFER": "0"}
    if rdma is not None:
        expected["FI_EFA_USE_DEVICE_RDMA"] = rdma
    assert env.fabric_variables(scope(spec)) == expected


def test_no_libfabric_without_efa(scope: Scoped) -> None:
    assert not [name for name in variables(scope()) if name.startswith("FI_")]
