"""`make demo ENGINE=vllm`: the same on two real vLLM engines, whose tiny model talks nonsense at its own speed."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
from rich.table import Table

from e2e.cluster import Cluster
from e2e.cluster.client import Client as Kubernetes
from e2e.cluster.client import eventually
from e2e.cluster.progress import step
from e2e.demo.__main__ import NAME, DemoError, compare, console, converse, engine_url, main, prepare
from e2e.engine import pods
from kvloop.api.labels import API_VERSION, KIND, PLURAL
from kvloop.cli.load import Turn, Workload

MODEL: Final = "tiny"
READY_S: Final = 900
WORKLOAD: Final = Workload(conversations=1, turns=5, clients=1, system_tokens=(2000,), user_tokens=60, reply_tokens=40)
_READ: Final = 'vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="external_kv_transfer"}'
_BYTES: Final = 'vllm:nixl_bytes_transferred_sum{engine="0",model_name="tiny"}'


@dataclass
class Reads:
    """What a prefill engine has read of decode's KV, after each turn."""

    url: str
    tokens: list[int]

    def note(self) -> None:
        self.tokens.append(int(self.sample(_READ)))

    def sample(self, name: str) -> float:
        """A sample of its /metrics, 0 if there is none."""
        lines = httpx.get(f"{self.url}/metrics", trust_env=False, timeout=60).raise_for_status().text.splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), 0.0)


def up() -> None:
    """From nothing to a conversation on real engines.

    Raises:
        DemoError: an answer was wrong, or KV did not come back.
    """
    cluster = Cluster(NAME)
    refs = prepare(cluster)
    with step("starting two vLLM engines on the CPU: a minute or two on quiet cores"):
        apply(cluster, pods.spec(refs["enginesim"], MODEL))
        cluster.wait(f"{PLURAL}/{NAME}", "condition=Ready", timeout_s=READY_S)
    reads = Reads(engine_url(cluster), [])
    url = f"http://{cluster.get('service', NAME)['spec']['clusterIP']}:8000"
    with step("one conversation of 5 turns", total=WORKLOAD.turns) as advance:

        def on_turn() -> None:
            reads.note()
            advance()

        turns = asyncio.run(converse(url, MODEL, on_turn, WORKLOAD))
    with step("computing each answer again, from nothing"):
        wrong = asyncio.run(compare(reads.url, {"spec": {"model": {"name": MODEL}}}, turns))
    report(cluster, reads, turns)
    if wrong:
        raise DemoError(f"{len(wrong)} answers differ from a cold computation: {wrong[0]}")
    if not all(after > before for before, after in zip(reads.tokens, reads.tokens[1:], strict=False)):
        raise DemoError(f"prefill did not read decode's KV in each follow-up: {reads.tokens}")
    console.print(f"\nAll {len(turns)} answers are those of a cold computation. `make demo-down` removes it all.")


def apply(cluster: Kubernetes, spec: dict[str, Any]) -> None:
    """Replace the demo's custom resource."""
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": NAME}, "spec": spec}
    cluster.delete(body)
    cluster.apply(body)


def report(cluster: Kubernetes, reads: Reads, turns: Sequence[Turn]) -> None:
    """What each turn's prefill read, and what a user of kubectl sees."""
    table = Table(title="Real vLLM, tiny random model, CPU: what prefill read of decode's KV cache")
    for header in ("Turn", "Prompt tokens", "Read from decode", "First token"):
        table.add_column(header, justify="right")
    before = 0
    for turn, after in zip(turns, reads.tokens, strict=True):
        table.add_row(
            str(turn.number + 1), f"{turn.prompt_tokens:,}", f"{after - before:,}", f"{turn.ttft_s * 1e3:,.0f} ms"
        )
        before = after
    console.print(table)
    eventually(lambda: reads.sample(_BYTES) > 0)  # told with the engine's next step
    console.print(f"{_READ} {reads.tokens[-1]}", markup=False, highlight=False)
    console.print(f"{_BYTES} {reads.sample(_BYTES):.0f}", markup=False, highlight=False)
    console.print("\n[bold]$ kubectl get di[/bold]")
    console.print(cluster.kubectl("get", "di").rstrip(), markup=False, highlight=False)


if __name__ == "__main__":
    main(up)
