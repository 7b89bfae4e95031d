"""Argo CD's health check and actions on recorded objects, in the form of Argo CD's own tests, and more strictly."""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from e2e.charts.generate import ROOT
from e2e.cluster.binaries import ensure
from e2e.gitops import argocd
from e2e.gitops.readers import FLUX, kstatus
from kvloop.api.validate import validate

HEALTH: Final = yaml.safe_load((argocd.FOLDER / "health_test.yaml").read_text())["tests"]
ACTION: Final = yaml.safe_load((argocd.ACTIONS / "action_test.yaml").read_text())
STATES: Final = sorted(path.stem for path in (argocd.FOLDER / "testdata").iterdir())
Body = dict[str, Any]


def load(path: Path) -> Body:
    body: Body = yaml.safe_load(path.read_text())
    return body


def state(name: str) -> Body:
    return load(argocd.FOLDER / "testdata" / f"{name}.yaml")


@pytest.mark.parametrize("case", HEALTH, ids=lambda case: str(case["inputPath"]))
def test_health(case: Body) -> None:
    assert argocd.health(load(argocd.FOLDER / case["inputPath"])) == argocd.Health(**case["healthStatus"])


def test_every_recorded_state_has_a_health_and_a_kstatus() -> None:
    assert sorted(Path(case["inputPath"]).stem for case in HEALTH) == STATES == sorted(FLUX)


@pytest.mark.parametrize("case", ACTION["discoveryTests"], ids=lambda case: str(case["inputPath"]))
def test_which_actions_are_offered(case: Body) -> None:
    wanted = {action["name"]: not action.get("disabled", False) for action in case["result"]}
    assert argocd.actions(load(argocd.ACTIONS / case["inputPath"])) == wanted


@pytest.mark.parametrize("case", ACTION["actionTests"], ids=lambda case: str(case["action"]))
def test_actions(case: Body) -> None:
    done = argocd.act(case["action"], load(argocd.ACTIONS / case["inputPath"]))
    assert done == load(argocd.ACTIONS / case["expectedOutputPath"])


def test_restart_changes_both_pod_templates_and_nothing_else() -> None:
    before = state("ready")
    before["spec"]["decode"]["podTemplate"] = {"metadata": {"annotations": {"team": "search"}}, "spec": {"volumes": []}}
    after = argocd.act("restart", before)
    moments = set()
    for role in ("prefill", "decode"):
        annotations = after["spec"][role]["podTemplate"]["metadata"]["annotations"]
        moments.add(annotations.pop("kubectl.kubernetes.io/restartedAt"))
    assert after["spec"]["prefill"].pop("podTemplate") == {"metadata": {"annotations": {}}}
    assert after == before
    (moment,) = moments
    assert yaml.safe_load(moment).tzinfo, "a time as kubectl writes it"


@pytest.mark.parametrize("action", ["pause", "restart"])
def test_actions_lead_to_valid_objects(action: str) -> None:
    assert validate(argocd.act(action, state("ready"))) == []


@pytest.mark.parametrize("script", ["return io", "return string", "return require('os').execute", "return os"])
def test_scripts_run_with_no_more_libraries_than_argo_cd_gives_them(script: str) -> None:
    assert argocd.run(script, {}) is None


def test_a_script_without_its_condition_fails_rather_than_pass() -> None:
    body = state("ready")
    body["status"]["conditions"] = body["status"]["conditions"][1:]
    with pytest.raises(argocd.LuaError, match="index"):
        argocd.health(body)


def test_the_config_map_holds_all_scripts() -> None:
    data = yaml.safe_load((ROOT / argocd.CONFIG_MAP).read_text())["data"]
    assert data["resource.customizations.health.kvloop.io_DisaggregatedInference"] == (
        (argocd.FOLDER / "health.lua").read_text()
    )
    actions = yaml.safe_load(data["resource.customizations.actions.kvloop.io_DisaggregatedInference"])
    assert {each["name"] for each in actions["definitions"]} == argocd.actions(state("ready")).keys()


def test_flux_own_code_reads_every_state_as_our_rules_do() -> None:
    """kstatus, compiled from Flux's module."""
    objects = "".join(json.dumps(state(name), default=str) for name in STATES)
    program = ensure(["kstatus"])["kstatus"]
    said = subprocess.run([program], input=objects, capture_output=True, text=True, check=True).stdout.split()
    assert dict(zip(STATES, said, strict=True)) == FLUX
    assert {name: kstatus(state(name)) for name in STATES} == FLUX
