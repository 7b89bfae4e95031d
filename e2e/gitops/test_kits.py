"""The kits for Argo CD and Flux fit together and to this repository.

Both were applied with strict validation to an API server with the CRDs of Argo CD 3.6.1 and Flux's kustomize-controller
1.10.1 and helm-controller; here is what those cannot see.
"""

from typing import Any, Final

import cel
import pytest
import yaml

from e2e.charts.generate import CHARTS, ROOT
from e2e.gitops.readers import FLUX
from e2e.gitops.test_argocd import state

KITS: Final = ROOT / "manifests"
Body = dict[str, Any]


def objects(folder: str, kind: str) -> dict[str, Body]:
    found = (body for path in sorted((KITS / folder).glob("*.yaml")) for body in yaml.safe_load_all(path.read_text()))
    return {body["metadata"]["name"]: body["spec"] for body in found if body["kind"] == kind}


def test_argo_cd_installs_the_crd_before_the_operator_before_resources() -> None:
    text = (KITS / "argocd" / "applications.yaml").read_text()
    waves = {
        body["metadata"]["name"]: int(body["metadata"].get("annotations", {}).get("argocd.argoproj.io/sync-wave", 0))
        for body in yaml.safe_load_all(text)
    }
    assert sorted(waves, key=waves.__getitem__) == ["kvloop-crds", "kvloop", "inference"]
    for name, spec in objects("argocd", "Application").items():
        assert "ServerSideApply=true" in spec["syncPolicy"]["syncOptions"], name
        assert "ignoreDifferences" not in spec


def test_flux_installs_the_crd_before_the_operator() -> None:
    assert objects("flux", "HelmRelease")["kvloop"]["dependsOn"] == [{"name": "kvloop-crds"}]


def test_every_source_and_chart_is_there() -> None:
    paths = {spec["source"]["path"] for spec in objects("argocd", "Application").values()} - {"production"}
    paths |= {spec["chart"]["spec"]["chart"] for spec in objects("flux", "HelmRelease").values()}
    assert paths == {f"charts/{path.name}" for path in CHARTS.iterdir()}
    sources = objects("flux", "GitRepository").keys()
    for spec in objects("flux", "Kustomization").values():
        assert spec["sourceRef"]["name"] in sources
    for spec in objects("flux", "HelmRelease").values():
        assert spec["chart"]["spec"]["sourceRef"]["name"] in sources


def test_both_install_the_same_release_of_this_version() -> None:
    version = yaml.safe_load((CHARTS / "kvloop" / "Chart.yaml").read_text())["version"]
    applications = objects("argocd", "Application")
    assert {applications[name]["source"]["targetRevision"] for name in ("kvloop-crds", "kvloop")} == {f"v{version}"}
    assert objects("flux", "GitRepository")["kvloop"]["ref"] == {"tag": f"v{version}"}


def test_flux_waits_longer_than_the_progress_deadline() -> None:
    deadline = state("ready")["spec"]["rollout"]["progressDeadlineSeconds"]
    for spec in objects("flux", "Kustomization").values():
        assert spec["wait"]
        assert 60 * int(spec["timeout"].removesuffix("m")) > deadline


@pytest.mark.parametrize("name", FLUX)
def test_flux_health_expressions(name: str) -> None:
    """`Available` while paused; otherwise as kstatus, but that a resource scaled to 0 serves nobody."""
    (check,) = objects("flux", "Kustomization")["inference-staging"]["healthCheckExprs"]
    context = cel.Context()
    for part, value in state(name).items():
        context.add_variable(part, value)
    verdicts = {key for key in ("failed", "current") if cel.evaluate(check[key], context)}
    assert verdicts == {"ready": {"current"}, "paused": {"current"}, "stalled": {"failed"}}.get(name, set())
