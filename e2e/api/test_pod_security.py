"""Which level of Pod Security each kind of pod needs: what the documentation says, judged by the API server."""

from typing import Any, Final

import pytest
import yaml
from typer.testing import CliRunner

from e2e.api.test_samples import ROOT
from e2e.cluster import Client, KubectlError
from kvloop.cli.main import app

pytestmark = pytest.mark.api

LEVELS: Final = ("restricted", "baseline", "privileged")
NEEDS: Final = {
    ("p5en", "p5en-router"): "restricted",
    ("valkey", "valkey-valkey"): "restricted",
    ("ucx", "ucx-prefill"): "baseline",
    ("ucx", "ucx-decode"): "baseline",
    ("p5en", "p5en-prefill"): "privileged",
    ("p5en", "p5en-decode"): "privileged",
    ("dra", "dra-prefill"): "privileged",
}


@pytest.fixture(scope="module")
def namespaces(api_cluster: Client) -> dict[str, str]:
    """A namespace of each level."""
    names = {level: f"pod-security-{level}" for level in LEVELS}
    for level, name in names.items():
        label = {"pod-security.kubernetes.io/enforce": level}
        api_cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": label}})
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        api_cluster.apply(account, name)  # a controller's work, of which there is none here
    return names


def pod(sample: str, workload: str) -> dict[str, Any]:
    """A pod as the workload's controller would make it."""
    path = ROOT / "manifests" / "samples" / f"{sample}.yaml"
    rendered = CliRunner().invoke(app, ["render", "--filename", str(path)]).stdout
    found = {
        body["metadata"]["name"]: body for body in yaml.safe_load_all(rendered) if "template" in body.get("spec", {})
    }
    template = found[workload]["spec"]["template"]
    template["spec"].pop("serviceAccountName", None)
    return {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": workload}}


@pytest.mark.parametrize(("sample", "workload"), NEEDS)
def test_least_level(api_cluster: Client, namespaces: dict[str, str], sample: str, workload: str) -> None:
    needed = LEVELS.index(NEEDS[sample, workload])
    body = yaml.safe_dump(pod(sample, workload))
    for number, level in enumerate(LEVELS):
        create = ("create", "--dry-run=server", f"--namespace={namespaces[level]}", "--filename=-")
        if number >= needed:
            api_cluster.kubectl(*create, input=body)
            continue
        with pytest.raises(KubectlError, match="violates PodSecurity") as refused:
            api_cluster.kubectl(*create, input=body)
        if (level, NEEDS[sample, workload]) == ("baseline", "privileged"):
            assert str(refused.value).count("must not include") == 1, "IPC_LOCK is all that it takes"
            assert "IPC_LOCK" in str(refused.value)
