"""Every flag and connector key that the operator emits, as vLLM's own parser and config classes read it."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import crs
from e2e.engine import install
from kvloop.api.flags import FLAGS, Where
from kvloop.api.v1alpha1.owned import OWNED_FLAGS, OWNED_SHORT
from kvloop.api.validate import validate
from kvloop.plan.env import POD_ADDRESS

pytestmark = pytest.mark.engine

GOLDENS = Path(__file__).parents[2] / "operator" / "tests" / "cases"
ENGINES = {
    f"{path.parents[1].name} {path.stem}": yaml.safe_load(path.read_text())
    for path in sorted(GOLDENS.glob("*/out/statefulset-*.yaml"))
}
ARGS_AT_ONCE = 32


def line(engine: dict[str, Any]) -> list[str]:
    """A planned engine's arguments, with what Kubernetes fills in."""
    (container,) = [c for c in engine["spec"]["template"]["spec"]["containers"] if c["name"] == "vllm"]
    assert container["command"] == ["vllm", "serve"]
    return [argument.replace(f"$({POD_ADDRESS})", "10.0.0.7") for argument in container["args"]]


def value(arguments: list[str], flag: str) -> str | None:
    return next((a.partition("=")[2] for a in arguments if a.startswith(f"--{flag}=")), None)


@cache
def vllm() -> dict[str, Any]:
    """What vLLM says of all lines at once: it takes long to start."""
    lines = {name: line(engine) for name, engine in ENGINES.items()}
    lines["a flag that is none"] = ["m", "--no-such-flag"]
    lines["a key that is none"] = ["m", '--kv-transfer-config={"kv_connector": "NixlConnector", "no_such_key": 1}']
    home = install.ensure()
    script = Path(__file__).with_name("vllm_cli.py")
    run = subprocess.run(
        [str(home / "bin" / "python"), str(script)],
        input=json.dumps(lines), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    answer: dict[str, Any] = json.loads(run.stdout)
    return answer


def test_each_valid_resource_has_both_engines_here() -> None:
    assert {name.split()[0] for name in ENGINES} >= {case.name for case in crs.valid()}
    assert len(ENGINES) == 2 * len(list(GOLDENS.glob("*/in.yaml")))


@pytest.mark.parametrize("name", ENGINES)
def test_vllm_understands_the_planned_line(name: str) -> None:
    arguments, read = line(ENGINES[name]), vllm()["lines"][name]
    assert "error" not in read, read["error"]
    assert read["model"] == arguments[0]
    for flag, field in (
        ("host", "host"), ("port", "port"), ("max-model-len", "max_model_len"), ("dtype", "dtype"),
        ("kv-cache-dtype", "kv_cache_dtype"), ("block-size", "block_size"), ("revision", "revision"),
        ("tensor-parallel-size", "tensor_parallel_size"), ("shutdown-timeout", "shutdown_timeout"),
    ):  # fmt: skip
        if (given := value(arguments, flag)) is not None:
            assert str(read[field]) == given, flag
    assert read["served_model_name"] == [value(arguments, "served-model-name")]
    assert read["enable_prefix_caching"] is ("--enable-prefix-caching" in arguments)
    assert read["load_format"] == (value(arguments, "load-format") or "auto")
    assert read["model_loader_extra_config"] == json.loads(value(arguments, "model-loader-extra-config") or "{}")


@pytest.mark.parametrize("name", ENGINES)
def test_vllm_understands_the_planned_connector(name: str) -> None:
    given = json.loads(value(line(ENGINES[name]), "kv-transfer-config") or "")
    read = vllm()["lines"][name]["transfer"]
    assert {key: read[key] for key in given} == given
    assert set(given["kv_connector_extra_config"]) <= set(vllm()["connector_options"])


def test_vllm_refuses_what_it_does_not_know() -> None:
    assert "unrecognized arguments: --no-such-flag" in vllm()["lines"]["a flag that is none"]["error"]
    assert "no_such_key" in vllm()["lines"]["a key that is none"]["error"]


def test_the_table_names_what_vllm_has() -> None:
    options = {spelling for option in vllm()["options"] for spelling in option}
    assert {f"--{flag.name}" for flag in FLAGS if flag.where is Where.ARGUMENT} <= options
    assert {flag.name for flag in FLAGS if flag.where is Where.EXTRA} <= set(vllm()["connector_options"])


def test_owned_flags_exist_in_vllm() -> None:
    options = {spelling for option in vllm()["options"] for spelling in option}
    assert {*(f"--{flag}" for flag in OWNED_FLAGS), *(f"-{flag}" for flag in OWNED_SHORT)} <= options


def test_owned_flags_are_refused_in_all_their_spellings_and_no_other_flag_is() -> None:
    owned = {*(f"--{flag}" for flag in OWNED_FLAGS), *(f"-{flag}" for flag in OWNED_SHORT)}
    wanted = {spelling for option in vllm()["options"] if owned & set(option) for spelling in option}
    everything = sorted(spelling for option in vllm()["options"] for spelling in option)
    assert refused(everything) == wanted


def refused(flags: list[str]) -> set[str]:
    """Those that a custom resource must not have among its arguments."""
    found = set()
    for start in range(0, len(flags), ARGS_AT_ONCE):
        body = crs.valid()[1].body
        body["spec"]["engine"]["args"] = some = flags[start : start + ARGS_AT_ONCE]
        found |= {flag for flag in some for error in validate(body) if f"owns {flag}:" in error}
    return found
