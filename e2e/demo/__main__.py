"""`make demo`: a real Kubernetes, the operator, and conversations whose KV returns to prefill, or does not."""

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from rich.console import Console

from e2e import images
from e2e.cluster import Cluster, ClusterError
from e2e.cluster.client import Client as Kubernetes
from e2e.cluster.client import eventually
from e2e.cluster.progress import step
from e2e.demo import cold
from e2e.demo.table import ttft_table
from kvloop.cli.load import Client, LoadError, Turn, Workload

ROOT: Final = Path(__file__).parents[2]
INSTALL: Final = ROOT / "manifests" / "install.yaml"
SAMPLE: Final = ROOT / "manifests" / "samples" / "demo.yaml"
NAME: Final = "demo"
WORKLOAD: Final = Workload(clients=4)
GOAL_PERCENT: Final = 80
"""Least reuse of follow-up tokens with which the demo counts as a success."""

console = Console(soft_wrap=True)


class DemoError(RuntimeError):
    """The demo did not show what it should."""


def up() -> None:
    """From nothing to a measured conversation."""
    cluster = Cluster(NAME)
    refs = prepare(cluster)
    sample = yaml.safe_load(with_images(SAMPLE.read_text(), refs))
    one_way = run(cluster, sample, bidirectional=False)
    both_ways = run(cluster, sample, bidirectional=True)
    with step("computing each answer again, from nothing"):
        wrong = asyncio.run(compare(engine_url(cluster), sample, [*one_way, *both_ways]))
    report(cluster, sample, one_way, both_ways)
    judge(cluster, len(one_way) + len(both_ways), wrong)


def prepare(cluster: Cluster) -> dict[str, str]:
    """Start Kubernetes and the operator in it; returns the images' references by their short names."""
    with step("starting Kubernetes: API server, scheduler, kubelet, containerd"):
        cluster.up()
    refs = load_images(cluster)
    with step("installing the operator"):
        cluster.apply(impatient(yaml.safe_load_all(with_images(INSTALL.read_text(), refs))))
        cluster.kubectl("rollout", "status", "deployment/kvloop-operator", "--namespace=kvloop-system")
    return refs


def load_images(cluster: Kubernetes) -> dict[str, str]:
    """Build the images and bring them to the node; returns the references by their short names."""
    built = images.build()
    for archive in {image.tar for image in built.values()}:
        with step("loading the images into containerd"):
            cluster.load_image(archive)
    return {str(name): image.ref for name, image in built.items()}


def with_images(manifest: str, refs: dict[str, str]) -> str:
    """The manifest with our images as they were just built, so that a changed source is what runs."""
    for name, ref in refs.items():
        manifest = manifest.replace(f"kvloop/{name}:0.1.0", ref)
    return manifest


def impatient(objects: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The same objects with an operator that looks and tells every few seconds, not every minute: somebody watches."""
    for each in objects:
        if each["kind"] == "Deployment":
            each["spec"]["template"]["spec"]["containers"][0]["args"] += ["--scrape-seconds=5", "--status-seconds=5"]
        yield each


def run(cluster: Kubernetes, sample: dict[str, Any], *, bidirectional: bool) -> list[Turn]:
    """Apply the sample afresh, and hold all conversations through its router."""
    cluster.kubectl("delete", "di", NAME, "--ignore-not-found", "--cascade=foreground")
    sample["spec"]["transfer"]["bidirectional"] = bidirectional
    with step(f"applying manifests/samples/demo.yaml with bidirectional: {str(bidirectional).lower()}"):
        cluster.apply(sample)
        cluster.wait(f"disaggregatedinference/{NAME}", "condition=Ready", timeout_s=180)
    url = f"http://{cluster.get('service', NAME)['spec']['clusterIP']}:8000"
    title = "10 conversations of 10 turns, KV " + ("back to prefill" if bidirectional else "computed again")
    with step(title, total=WORKLOAD.conversations * WORKLOAD.turns) as advance:
        return asyncio.run(converse(url, sample["spec"]["model"]["name"], advance))


async def converse(url: str, model: str, advance: Callable[[], None], workload: Workload = WORKLOAD) -> list[Turn]:
    """All turns of a workload."""
    async with Client(url, model) as client:
        return await client.run(workload, on_turn=advance)


def engine_url(cluster: Kubernetes) -> str:
    """A prefill engine, asked directly for the answers of a cold computation."""
    pod = cluster.items("pods", f"--selector=kvloop.io/name={NAME},kvloop.io/role=prefill")[0]
    return f"http://{pod['status']['podIP']}:8000"


async def compare(url: str, sample: dict[str, Any], turns: Sequence[Turn]) -> list[cold.Difference]:
    """Answers that differ from those of a cold computation."""
    async with Client(url, sample["spec"]["model"]["name"]) as engine:
        return await cold.differences(engine, turns)


def report(cluster: Kubernetes, sample: dict[str, Any], one_way: Sequence[Turn], both_ways: Sequence[Turn]) -> None:
    """The table, then what a user of kubectl sees."""
    scale = next(float(e["value"]) for e in sample["spec"]["engine"]["env"] if e["name"] == "ENGINESIM_TIME_SCALE")
    console.print(ttft_table(one_way, both_ways, scale))
    with step("waiting for the status to tell of all turns"):
        eventually(lambda: reuse(cluster).get("turns", 0) >= len(both_ways), timeout_s=120, interval_s=1)
    for arguments in (("get", "di"), ("describe", "di", NAME)):
        console.print(f"\n[bold]$ kubectl {' '.join(arguments)}[/bold]")
        console.print(cluster.kubectl(*arguments).rstrip(), markup=False, highlight=False)


def reuse(cluster: Kubernetes) -> dict[str, Any]:
    """`status.reuse`; empty while there is none."""
    found: dict[str, Any] = cluster.get("disaggregatedinference", NAME).get("status", {}).get("reuse", {})
    return found


def judge(cluster: Kubernetes, turns: int, wrong: Sequence[cold.Difference]) -> None:
    """Say how it went and where to look next.

    Raises:
        DemoError: an answer was wrong, or too little came back.
    """
    percent = int(reuse(cluster)["hitPercent"].rstrip("%"))
    console.print(f"\nAnswers that differ from a cold computation: [bold]{len(wrong)}[/bold] of {turns}")
    console.print(f"Prompt tokens of follow-ups whose KV came back from decode: [bold]{percent}%[/bold]")
    for difference in wrong[:5]:
        console.print(str(difference), markup=False)
    if wrong:
        raise DemoError(f"{len(wrong)} answers are wrong")
    if percent < GOAL_PERCENT:
        raise DemoError(f"only {percent}% came back, less than {GOAL_PERCENT}%")
    console.print(
        f"\nThe cluster goes on running. Where to look next:\n"
        f"  export KUBECONFIG={cluster.kubeconfig}\n"
        f"  kubectl get di,statefulsets,pods\n"
        f"  kubectl explain di.spec.transfer\n"
        f"  kubectl logs deployment/{NAME}-router       # one line a turn, without content\n"
        f"  kubectl edit di {NAME}                      # a change rolls prefill and decode together\n"
        f"  make demo-down                             # removes it all"
    )


def down() -> None:
    """Remove it all."""
    with step("removing the demo's cluster, and all in it"):
        Cluster(NAME).down()


def main(show: Callable[[], None] = up) -> None:
    """Exit status: 0 if reuse and answers are as promised, 1 if not or if a step failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["up", "down"], help="up shows the demo, down removes all that it made")
    command = parser.parse_args().command
    try:
        show() if command == "up" else down()
    except (DemoError, ClusterError, LoadError, images.ImageError, AssertionError, subprocess.SubprocessError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
