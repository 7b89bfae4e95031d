"""vLLM's command line."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from kvloop.api.labels import Role
from kvloop.plan import engine_args
from kvloop.plan.scope import Scope

Scoped = Callable[..., Scope]


def args(scope: Scope, role: Role = Role.PREFILL) -> list[str]:
    return engine_args.arguments(scope, role)


def value(arguments: list[str], flag: str) -> str:
    [found] = [argument.partition("=")[2] for argument in arguments if argument.startswith(f"--{flag}=")]
    return found


def connector(scope: Scope, role: Role) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(value(args(scope, role), "kv-transfer-config"))
    return config


def test_the_whole_line(scope: Scoped) -> None:
    spec = {
        "model": {"maxLength": 4096},
        "engine": {"blockSize": 32, "args": ["--max-num-seqs=64"]},
        "decode": {"args": ["--enforce-eager"], "prefixCaching": False, "tensorParallelSize": 2},
    }
    *line, transfer, shared, own = args(scope(spec), Role.DECODE)
    assert line == [
        "/models/m",
        "--host=$(VLLM_NIXL_SIDE_CHANNEL_HOST)",
        "--port=8000",
        "--served-model-name=m",
        "--max-model-len=4096",
        "--dtype=auto",
        "--kv-cache-dtype=auto",
        "--block-size=32",
        "--shutdown-timeout=120",
        "--tensor-parallel-size=2",
        "--no-enable-prefix-caching",
    ]
    assert transfer.startswith("--kv-transfer-config={")
    assert (shared, own) == ("--max-num-seqs=64", "--enforce-eager")


def test_what_the_spec_leaves_out_is_vllms_choice(scope: Scoped) -> None:
    line = args(scope())
    assert not [argument for argument in line if argument.startswith(("--block-size", "--max-model-len", "--revision"))]
    assert "--enable-prefix-caching" in line


BASE = {"backends": ["UCX"]}
V21 = BASE | {"bidirectional_kv_xfer": True, "kv_recompute_threshold": 64}
V22 = V21 | {"decoder_kv_blocks_ttl": 480, "kv_lease_duration": 30}


@pytest.mark.parametrize(
    ("version", "extra", "prefill", "decode"),
    [
        ("0.20.2", BASE, "kv_both", "kv_both"),
        ("0.21.0", V21, "kv_both", "kv_both"),
        ("0.22.0", V22, "kv_both", "kv_both"),
        ("0.23.1", V22, "kv_both", "kv_both"),
        ("0.24.0", V22, "kv_producer", "kv_consumer"),
        ("0.33.0", V22, "kv_producer", "kv_consumer"),
    ],
)
def test_each_version_gets_only_what_it_knows(
    version: str, extra: dict[str, Any], prefill: str, decode: str, scope: Scoped
) -> None:
    scoped = scope({"engine": {"version": version}})
    assert connector(scoped, Role.PREFILL)["kv_connector_extra_config"] == extra
    assert connector(scoped, Role.DECODE)["kv_connector_extra_config"] == extra
    assert connector(scoped, Role.PREFILL)["kv_role"] == prefill
    assert connector(scoped, Role.DECODE)["kv_role"] == decode


def test_the_connector_of_each_role(scope: Scoped) -> None:
    prefill, decode = (connector(scope(), role) for role in Role)
    assert prefill["kv_connector"] == decode["kv_connector"] == "NixlConnector"
    assert (prefill["kv_load_failure_policy"], decode["kv_load_failure_policy"]) == ("fail", "recompute")
    assert not {"engine_id", "kv_port", "kv_rank"} & (prefill.keys() | decode.keys())


def test_the_connector_is_spelt_the_same_each_time(scope: Scoped) -> None:
    text = value(args(scope()), "kv-transfer-config")
    assert text == json.dumps(json.loads(text), sort_keys=True)


@pytest.mark.parametrize(("gpus", "device"), [(None, "cuda"), (4, "cuda"), (0, "cpu")])
def test_kv_lies_where_the_engine_computes(gpus: int | None, device: str, scope: Scoped) -> None:
    assert connector(scope({"prefill": {"gpus": gpus}}), Role.PREFILL)["kv_buffer_device"] == device


def test_transfer_settings_reach_the_connector(scope: Scoped) -> None:
    transfer = {
        "fabric": "EFA",
        "bidirectional": False,
        "decoderKVBlocksTTLSeconds": 60,
        "kvRecomputeThresholdTokens": 0,
        "kvLeaseDurationSeconds": 300,
    }
    assert connector(scope({"transfer": transfer}), Role.DECODE)["kv_connector_extra_config"] == {
        "backends": ["LIBFABRIC"],
        "decoder_kv_blocks_ttl": 60,
        "kv_recompute_threshold": 0,
        "kv_lease_duration": 300,
    }


def source(**sources: Any) -> dict[str, Any]:
    return {"model": {"source": {"path": None, **sources}}}


def test_hugging_face(scope: Scoped) -> None:
    pinned = args(scope(source(huggingFace={"repository": "o/m", "revision": "abc"})))
    assert pinned[:2] == ["o/m", "--revision=abc"]
    assert args(scope(source(huggingFace={"repository": "o/m"})))[0] == "o/m"


def test_s3_streams_and_shares_the_work_among_gpus(scope: Scoped) -> None:
    spec = source(s3={"uri": "s3://b/m/"})
    assert args(scope(spec))[:2] == ["s3://b/m/", "--load-format=runai_streamer"]
    several = args(scope(spec | {"prefill": {"tensorParallelSize": 4}, "decode": {"tensorParallelSize": 4}}))
    assert json.loads(value(several, "model-loader-extra-config")) == {"distributed": True}
    on_cpu = args(scope(spec | {"prefill": {"tensorParallelSize": 4, "gpus": 0}}))
    assert not [argument for argument in on_cpu if argument.startswith("--model-loader-extra-config")]


@pytest.mark.parametrize(
    ("path", "model"),
    [("", "/var/lib/kvloop/model"), ("m", "/var/lib/kvloop/model/m"), ("/a/b/", "/var/lib/kvloop/model/a/b")],
)
def test_a_volume_is_one_folder_for_both_roles(path: str, model: str, scope: Scoped) -> None:
    scoped = scope(source(volume={"claimName": "weights", "path": path}))
    assert [args(scoped, role)[0] for role in Role] == [model, model]
