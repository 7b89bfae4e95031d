"""Custom resources in, children out: `operator/tests/cases/<case>/{in.yaml,out/*.yaml}`.

To write the outputs anew: `pytest operator/tests/plan/test_goldens.py --update-goldens`; then read the diff.
"""

import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it publishes no types
import pytest
import yaml

from e2e.enginesim.cli import config_of, parser
from kvloop.api.labels import APP_COMPONENT, APP_NAME, MANAGED_BY, NAME
from kvloop.api.v1alpha1 import parse
from kvloop.api.validate import validate
from kvloop.cli.output import Format, file_name, to_yaml
from kvloop.plan.config import PlanConfig
from kvloop.plan.desired import plan
from kvloop.plan.env import POD_ADDRESS

CASES = Path(__file__).parents[1] / "cases"
NAMES = sorted(path.parent.name for path in CASES.glob("*/in.yaml"))
UID = "00000000-0000-0000-0000-000000000000"
OLDEST, NEWEST = "1.31", "1.37"
"""Kubernetes: the oldest that is supported, and the newest whose schemas the validator has."""
SINCE = {"ResourceClaimTemplate": "1.34"}
"""Kinds whose API version is younger than OLDEST; resources ask for them explicitly."""
FOREIGN = {"PodMonitor"}
"""Kinds of other projects, for which upstream Kubernetes has no schema."""


def resource(case: str) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load((CASES / case / "in.yaml").read_text(encoding="utf-8"))
    return body


def planned(case: str, config: PlanConfig) -> dict[str, dict[str, Any]]:
    """Children by file name, in which the word `revision` stands for the revision, so that names stay in place."""
    body = resource(case)
    body["metadata"]["uid"] = UID
    desired = plan(parse(body), None, config)
    return {file_name(child, Format.YAML).replace(desired.revision, "revision"): child for child in desired.children}


@pytest.mark.parametrize("case", NAMES)
def test_children_are_as_recorded(case: str, config: PlanConfig, request: pytest.FixtureRequest) -> None:
    texts = {name: to_yaml(child) for name, child in planned(case, config).items()}
    folder = CASES / case / "out"
    if request.config.getoption("--update-goldens", default=False):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    recorded = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert texts == recorded


@pytest.mark.parametrize("case", NAMES)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_children_fit_the_upstream_schemas(case: str, version: str, config: PlanConfig) -> None:
    for child in planned(case, config).values():
        if child["kind"] not in FOREIGN:
            kubernetes_validate.validate(child, max(version, SINCE.get(child["kind"], version)), strict=True)


@pytest.mark.parametrize("case", NAMES)
def test_the_simulated_engine_starts_with_these_arguments(case: str, config: PlanConfig) -> None:
    """It reads them as vLLM does; vLLM itself reads them in the tier `engine`."""
    engines = [child for child in planned(case, config).values() if child["kind"] == "StatefulSet"]
    for engine in engines:
        [container] = [c for c in engine["spec"]["template"]["spec"]["containers"] if c["name"] == "vllm"]
        arguments = [argument.replace(f"$({POD_ADDRESS})", "10.0.0.7") for argument in container["args"]]
        started = config_of(parser().parse_args([*container["command"][1:], *arguments]), {POD_ADDRESS: "10.0.0.7"})
        assert (started.host, started.port, started.side_channel_host) == ("10.0.0.7", 8000, "10.0.0.7")
        assert started.transfer is not None
        assert started.transfer.engine_id is None
        wanted = resource(case)["spec"].get("transfer", {})
        assert started.transfer.bidirectional_kv_xfer is wanted.get("bidirectional", True)
        assert started.transfer.decoder_kv_blocks_ttl == wanted.get("decoderKVBlocksTTLSeconds", 480)
    assert len(engines) == 2


@pytest.mark.parametrize("case", NAMES)
def test_every_child_tells_whose_it_is(case: str, config: PlanConfig) -> None:
    name = resource(case)["metadata"]["name"]
    for child in planned(case, config).values():
        labels = child["metadata"]["labels"]
        assert (labels[APP_NAME], labels[MANAGED_BY], labels[NAME]) == ("kvloop", "kvloop", name)
        assert labels[APP_COMPONENT]
        assert "app.kubernetes.io/instance" not in labels
        [owner] = child["metadata"]["ownerReferences"]
        assert (owner["name"], owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (
            name,
            UID,
            True,
            True,
        )


@pytest.mark.parametrize("case", NAMES)
def test_every_case_would_be_admitted(case: str) -> None:
    assert validate(resource(case)) == []


def test_every_valid_resource_is_a_case() -> None:
    valid = {body["metadata"]["name"]: body for body in yaml.safe_load_all((CASES / "crs" / "valid.yaml").read_text())}
    assert {name: resource(name) for name in valid} == valid
