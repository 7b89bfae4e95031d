"""The samples are what they say: a real API server admits them, and all that the operator would make of them."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from typer.testing import CliRunner

from e2e.cluster import Client
from kvloop.api.generate import CRD_PATH
from kvloop.api.labels import KIND, PLURAL
from kvloop.cli.main import app

pytestmark = pytest.mark.api

ROOT: Final = Path(__file__).parents[2]
SAMPLES: Final = sorted((ROOT / "manifests" / "samples").glob("*.yaml"))


@pytest.fixture(scope="module")
def cluster(api_cluster: Client) -> Client:
    api_cluster.kubectl("apply", "--server-side", "--force-conflicts", f"--filename={ROOT / CRD_PATH}")
    api_cluster.wait_established(f"{PLURAL}.kvloop.io")
    return api_cluster


def objects(sample: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(sample.read_text(encoding="utf-8")))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: str(path.stem))
def test_a_sample_and_its_children_are_admitted(cluster: Client, sample: Path) -> None:
    strict = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename")
    cluster.kubectl(*strict, str(sample))
    rendered = CliRunner().invoke(app, ["render", "--filename", str(sample)])
    assert rendered.exit_code == 0, rendered.output
    cluster.kubectl(*strict, "-", input=rendered.stdout)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: str(path.stem))
def test_a_sample_begins_with_what_it_is_for_and_has_its_files_name(sample: Path) -> None:
    assert sample.read_text(encoding="utf-8").startswith("# ")
    (body,) = (each for each in objects(sample) if each["kind"] == KIND)
    assert body["metadata"] == {"name": sample.stem}


def test_autoscalers_scale_what_there_is() -> None:
    body, *scalers = objects(ROOT / "manifests" / "samples" / "hpa.yaml")
    targets = {scaler["spec"]["scaleTargetRef"]["name"] for scaler in scalers}
    rendered = CliRunner().invoke(app, ["render", "--filename", str(ROOT / "manifests" / "samples" / "hpa.yaml")])
    engines = [each for each in yaml.safe_load_all(rendered.stdout) if each["kind"] == "StatefulSet"]
    assert targets == {each["metadata"]["name"] for each in engines}
    assert not [each for each in engines if "replicas" in each["spec"]]
    assert not {"replicas"} & (body["spec"]["prefill"].keys() | body["spec"]["decode"].keys())
