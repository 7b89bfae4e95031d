"""The router's configuration file and the summary of reuse."""

from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from kvloop.api import contract
from kvloop.api.contract import ContractError, ReuseSummary, RouterConfig, parse

STATIC = {"static": {"prefill": [{"url": "http://10.0.0.7:8000"}], "decode": [{"url": "http://[fd00::7]:8000"}]}}
LEAST = {"endpoints": STATIC}


def test_endpoints_are_enough() -> None:
    config = parse(LEAST)
    assert config.transfer.decoder_kv_blocks_ttl_seconds == 480
    assert config.listen.port == 8000


def test_it_survives_the_wire() -> None:
    full = parse({**LEAST, "store": {"valkey": {"url": "redis://v:6379/0"}}, "tenantHeader": "X-Tenant"})
    assert parse(full.to_wire()) == full
    assert full.to_wire()["transfer"]["decoderKVBlocksTTLSeconds"] == 480


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"endpoints": {}}, "endpoints: set exactly one of endpoints.static and endpoints.endpointSlices"),
        (
            {"endpoints": {**STATIC, "endpointSlices": {"namespace": "a", "name": "b"}}},
            "endpoints: set exactly one of endpoints.static and endpoints.endpointSlices",
        ),
        ({"endpoints": {"static": {"decode": [{"url": "10.0.0.1:8000"}]}}}, "endpoints.static.decode[0].url: "),
        ({"endpoints": {"static": {"decode": [{"url": "http://a/path"}]}}}, "endpoints.static.decode[0].url: "),
        ({"endpoints": {"static": {}}}, "endpoints.static.decode: is required"),
        ({"store": {"memory": {}, "valkey": {"url": "redis://v"}}}, "store: set at most one of store.memory and"),
        ({"transfer": {"decoderKVBlocksTTLSeconds": 14}}, "transfer.decoderKVBlocksTTLSeconds: "),
        ({"holdoutPercent": 101}, "holdoutPercent: Input should be less than or equal to 100 (got 101)"),
        ({"whenNoPrefil": "Fail"}, "whenNoPrefil: unknown key"),
        ({"when_no_prefill": "Fail", "whenNoPrefill": "Never"}, "whenNoPrefill: "),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError) as error:
        parse({**LEAST, **change}, "router.yaml")
    assert str(error.value).startswith("router.yaml is not valid:")
    assert message in str(error.value)


@pytest.mark.parametrize("data", [None, [], "x", 3])
def test_the_file_must_be_a_mapping(data: Any) -> None:
    with pytest.raises(ContractError, match="must be a mapping"):
        parse(data)


def models() -> list[type[BaseModel]]:
    found = [thing for thing in vars(contract).values() if isinstance(thing, type) and issubclass(thing, BaseModel)]
    return [model for model in found if model.__module__.startswith(contract.__name__)]


@pytest.mark.parametrize("model", models(), ids=lambda model: model.__name__)
def test_every_field_is_described_in_camel_case(model: type[BaseModel]) -> None:
    assert model.__doc__
    for name, field in model.model_fields.items():
        assert field.description, name
        assert field.alias is not None
        assert "_" not in field.alias
        if name.endswith("_seconds"):
            assert "second" in field.description, name


def test_an_older_operator_reads_a_newer_summary() -> None:
    summary = {
        "version": 1,
        "since": 1.5,
        "windowSeconds": 600,
        "counters": {"turns": 3, "misses": {"expired": 1}, "newCounter": 4},
        "window": {},
        "firstToken": {"reused": {"count": 1, "p50Ms": 2.5, "p95Ms": 3}},
        "engines": [{"address": "a:1", "role": "prefill", "revision": "r", "healthy": True, "new": 1}],
    }
    read = ReuseSummary.model_validate(summary)
    assert read.counters.turns == 3
    assert read.first_token.reused.p50_ms == 2.5
    assert not read.engines[0].guard_active


def test_the_configuration_cannot_be_changed_in_place() -> None:
    config: RouterConfig = parse(LEAST)
    with pytest.raises(ValueError, match="frozen"):
        config.holdout_percent = 5  # type: ignore[misc]  # that is the point


def keys(model: type[BaseModel], path: str = "") -> list[str]:
    """Every leaf of the file, as a dotted path; entries of lists are not followed."""
    found = []
    for field in model.model_fields.values():
        here = f"{path}{field.alias}"
        inner = [t for t in get_args(field.annotation) or (field.annotation,) if isinstance(t, type)]
        models = [t for t in inner if issubclass(t, BaseModel)] if not str(field.annotation).startswith("list") else []
        found += keys(models[0], f"{here}.") if models else [here]
    return found


@pytest.mark.parametrize("key", keys(RouterConfig))
def test_every_key_is_in_the_documentation(key: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "router.md").read_text()
    assert f"`{key}`" in text or (key.startswith("endpoints.endpointSlices.") and f"`{key.rpartition('.')[2]}`" in text)
