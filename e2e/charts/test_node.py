"""The chart on a real node: our images run as it says, serve, and leave engines serving when it goes."""

from collections.abc import Iterator
from typing import Final

import httpx
import pytest
import yaml

from e2e import images
from e2e.charts.generate import CHARTS, ROOT
from e2e.charts.helm import helm
from e2e.cluster import Client, eventually
from e2e.demo.__main__ import with_images
from kvloop.api.labels import PLURAL

pytestmark = pytest.mark.node

SAMPLE: Final = ROOT / "manifests" / "samples" / "demo.yaml"


@pytest.fixture(scope="module")
def refs(node_cluster: Client) -> dict[str, str]:
    """Our images on the node: references by short names."""
    built = images.build()
    for archive in {image.tar for image in built.values()}:
        node_cluster.load_image(archive)
    return {str(name): image.ref for name, image in built.items()}


@pytest.fixture
def system(node_cluster: Client, namespace: str, refs: dict[str, str]) -> Iterator[str]:
    """A namespace with restricted Pod Security, and in it the operator for another namespace."""
    system = f"{namespace}-system"
    definition = yaml.safe_load((ROOT / "manifests" / "namespace.yaml").read_text())
    definition["metadata"]["name"] = system
    node_cluster.apply(definition)
    own = ("--namespace", system, "--take-ownership")  # of the CRD, which other tests install without Helm
    helm("upgrade", "--install", *own, "kvloop-crds", CHARTS / "kvloop-crds", kubeconfig=node_cluster.kubeconfig)
    settings = {
        "image": dict(zip(("repository", "tag"), refs["operator"].rsplit(":", 1), strict=True)),
        "router": {"image": dict(zip(("repository", "tag"), refs["router"].rsplit(":", 1), strict=True))},
    }
    values = yaml.safe_dump(settings | {"watchNamespaces": [namespace], "metrics": {"service": {"enabled": True}}})
    (node_cluster.folder / "values.yaml").write_text(values)
    helm(
        "install", "kvloop", CHARTS / "kvloop", "--namespace", system, "--wait", "--timeout=120s",
        f"--values={node_cluster.folder / 'values.yaml'}", kubeconfig=node_cluster.kubeconfig,
    )  # fmt: skip
    yield system
    node_cluster.kubectl("delete", "namespace", system, "--wait=false")


def ask(url: str) -> str:
    question = {"model": "Qwen/Qwen3-32B", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    answer = (
        httpx.post(f"{url}/v1/chat/completions", json=question, trust_env=False, timeout=60).raise_for_status().json()
    )
    return str(answer["choices"][0]["message"]["content"])


def test_installed_it_serves_and_uninstalled_its_engines_still_do(
    node_cluster: Client, namespace: str, system: str, refs: dict[str, str]
) -> None:
    sample = yaml.safe_load(with_images(SAMPLE.read_text(), refs))
    for role in ("prefill", "decode"):
        sample["spec"][role]["replicas"] = 1
    node_cluster.apply(sample, namespace)
    node_cluster.wait(f"{PLURAL}/demo", "condition=Ready", namespace, timeout_s=180)
    url = f"http://{node_cluster.get('service', 'demo', namespace)['spec']['clusterIP']}:8000"
    first = ask(url)
    (pod,) = node_cluster.items("pods", f"--namespace={system}")
    metrics = httpx.get(f"http://{pod['status']['podIP']}:8080/metrics", trust_env=False, timeout=60).text
    assert 'kvloop_reconcile_total{result="ok"}' in metrics
    before = {pod["metadata"]["uid"] for pod in node_cluster.items("pods", f"--namespace={namespace}")}
    helm("uninstall", "kvloop", "--namespace", system, "--wait", kubeconfig=node_cluster.kubeconfig)
    helm("uninstall", "kvloop-crds", "--namespace", system, kubeconfig=node_cluster.kubeconfig)
    eventually(lambda: not node_cluster.items("pods", f"--namespace={system}"), timeout_s=60)
    assert node_cluster.get(PLURAL, "demo", namespace)["status"]["prefill"]["summary"] == "1/1"
    assert {pod["metadata"]["uid"] for pod in node_cluster.items("pods", f"--namespace={namespace}")} == before
    assert ask(url) == first
