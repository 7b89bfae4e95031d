"""``python -m e2e.bench operator``: many custom resources in a cluster with simulated nodes, and what they cost.

The operator is a process of its own with the rights of its ServiceAccount; the API server's audit log counts what it
asks. A phase ends once the operator has been quiet for some seconds; CPU time is the operator's own.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from e2e.cluster import Client, Cluster
from e2e.cluster.kwok import NodeShape
from e2e.cluster.system import leased
from e2e.control.harness import Audit, OperatorProcess, install
from e2e.site import Body, resource
from kvloop.api.labels import PLURAL

NAMESPACE: Final = "bench"
NODE: Final = NodeShape("m7i.48xlarge", {"cpu": "100000", "memory": "1000Ti", "pods": "100000"})
QUIET_S: Final = 5.0
QUIET_CPU: Final = 0.03
"""Of a core; above it the operator is still at work."""


@dataclass
class Phase:
    """What happened until the operator was quiet again; `children_s` is when all children were there, or as wanted."""

    name: str
    resources: int
    children_s: float | None = None
    ready_s: float | None = None
    quiet_s: float = 0.0
    cpu_s: float = 0.0
    writes: int = 0
    reads: int = 0

    @property
    def cpu_ms_per_resource(self) -> float:
        return 1000 * self.cpu_s / self.resources

    @property
    def cpu_ms_per_write(self) -> float | None:
        return 1000 * self.cpu_s / self.writes if self.writes else None


class Bench:
    """A cluster with the operator, and the custom resources in it."""

    def __init__(self, cluster: Client, operator: OperatorProcess, count: int) -> None:
        self.cluster, self.operator, self.count = cluster, operator, count

    def bodies(self, image: str) -> list[Body]:
        """The custom resources: one prefill and one decode engine, and a router, each."""
        role = {"replicas": 1, "gpus": 0}
        engine = {"image": image, "version": "0.32.0"}
        return [
            resource(f"chat-{number}", NAMESPACE, engine=engine, prefill=role, decode=role)
            for number in range(self.count)
        ]

    def apply(self, image: str) -> None:
        """Create or change all, as fast as kubectl can."""
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": self.bodies(image)})
        self.cluster.kubectl("apply", "--server-side", "--filename=-", input=items, timeout_s=600)

    def there(self, image: str) -> bool:
        """Whether every StatefulSet has that image."""
        path = "{range .items[*]}{.spec.template.spec.containers[0].image}{'\\n'}{end}"
        found = self._kubectl("get", "statefulsets", f"--output=jsonpath={path}").splitlines()
        return found.count(image) == 2 * self.count

    def ready(self) -> bool:
        """Whether every resource says that it is, of its newest generation."""
        path = (
            "{range .items[*]}{.metadata.generation}={.status.observedGeneration}"
            "{.status.conditions[?(@.type=='Ready')].status}{'\\n'}{end}"
        )
        states = self._kubectl("get", PLURAL, f"--output=jsonpath={path}").splitlines()
        return sum(g == f"{o}True" or f"{g}True" == o for g, o in (each.split("=") for each in states)) == self.count

    def _kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl(*arguments, f"--namespace={NAMESPACE}", timeout_s=300)

    @contextmanager
    def phase(self, name: str, done: dict[str, Callable[[], bool]] | None = None) -> Iterator[Phase]:
        """Measure what the block starts, until `done`, by field of the phase, and until the operator is quiet."""
        print(f"==> {name}", file=sys.stderr)
        phase, audit = Phase(name, self.count), Audit(self.cluster)
        begin, cpu = time.monotonic(), self.operator.cpu_seconds()
        yield phase
        if self.operator.cpu_seconds() < cpu:
            cpu = 0.0  # another process by now
        for field, check in (done or {}).items():
            while not check():
                time.sleep(1)
            setattr(phase, field, time.monotonic() - begin)
        last, at_last, writes, since = time.monotonic(), self.operator.cpu_seconds(), -1, time.monotonic()
        while time.monotonic() - last < QUIET_S:
            time.sleep(0.5)
            now, used, total = time.monotonic(), self.operator.cpu_seconds(), audit.writes().total()
            if total != writes or used - at_last > QUIET_CPU * max(now - since, 1):
                last, at_last, writes, since = now, used, total, now
        phase.quiet_s, phase.cpu_s = last - begin, at_last - cpu
        phase.writes = writes
        phase.reads = sum(each["verb"] in {"get", "list"} for each in audit.requests())


def measure(cluster: Client, log: Path, count: int, idle_s: float) -> tuple[list[Phase], dict[str, float]]:
    """All phases, and figures that are of none."""
    kubeconfig = install(cluster)
    cluster.add_fake_nodes(1, prefix="bench", shape=NODE)
    cluster.kubectl("create", "namespace", NAMESPACE)
    phases, figures = [], {}
    with OperatorProcess(kubeconfig, log) as operator:
        bench = Bench(cluster, operator, count)
        figures["start_cpu_s"] = operator.cpu_seconds()
        with bench.phase("create", {"children_s": lambda: bench.there("sim:1"), "ready_s": bench.ready}) as phase:
            bench.apply("sim:1")
        phases.append(phase)
        with bench.phase("change", {"children_s": lambda: bench.there("sim:2"), "ready_s": bench.ready}) as phase:
            bench.apply("sim:2")
        phases.append(phase)
        figures["peak_mb"] = operator.peak_memory_mb()
        begin, audit = operator.cpu_seconds(), Audit(cluster)
        time.sleep(idle_s)  # the time itself is what is asked for
        figures["idle_cpu_percent"] = 100 * (operator.cpu_seconds() - begin) / idle_s
        figures["idle_writes"] = audit.writes().total()
        with bench.phase("restart") as phase:
            operator.kill()
            operator.start()
        phases.append(phase)
        figures["peak_mb_after_restart"] = operator.peak_memory_mb()
    return phases, figures


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench operator", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="custom resources (default 1000)")
    parser.add_argument("--idle", type=float, default=60, help="seconds of rest to measure (default 60)")
    parser.add_argument("--log", type=Path, default=Path("operator-bench.log"), help="of the operator")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    args = parser.parse_args(arguments)
    with leased("bench-") as name, Cluster(name, "control") as cluster:
        phases, figures = measure(cluster, args.log, args.count, args.idle)
    _print(phases, figures, args.count)
    if args.json:
        args.json.write_text(json.dumps({"phases": [asdict(phase) for phase in phases], **figures}, indent=1))


def _print(phases: Sequence[Phase], figures: dict[str, float], count: int) -> None:
    load, cores = os.getloadavg()[0], os.cpu_count()
    table = Table(title=f"Operator: {count:,} custom resources with simulated pods, {cores} cores, load {load:.1f}")
    columns = ("children s", "ready s", "quiet s", "CPU s", "CPU ms/CR", "writes", "writes/CR", "CPU ms/write", "reads")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    for phase in phases:
        values: list[float | None] = [
            *(phase.children_s, phase.ready_s, phase.quiet_s, phase.cpu_s, phase.cpu_ms_per_resource),
            *(phase.writes, phase.writes / phase.resources, phase.cpu_ms_per_write, phase.reads),
        ]
        table.add_row(phase.name, *("" if value is None else f"{value:.4g}" for value in values))
    console = Console(width=120)  # a file's would be 80, too narrow for the columns
    console.print(table)
    for name, value in figures.items():
        console.print(f"{name.replace('_', ' ')}: {value:.3g}")
