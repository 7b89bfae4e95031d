"""The operator as a process of its own, outside the cluster and with no more rights than its ServiceAccount has."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx
import yaml

from e2e.cluster import Client, eventually
from kvloop.api.labels import API_VERSION, KIND, PLURAL

ROOT: Final = Path(__file__).parents[2]
NAMESPACE: Final = "kvloop-system"
ACCOUNT: Final = "kvloop-operator"
USER: Final = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})
CHILDREN: Final = (
    "serviceaccounts",
    "roles",
    "rolebindings",
    "configmaps",
    "services",
    "networkpolicies",
    "poddisruptionbudgets",
    "statefulsets",
    "deployments",
)

Body = dict[str, Any]


def install(cluster: Client) -> Path:
    """Install all of manifests/install.yaml but the Deployment; gives a kubeconfig with the operator's rights."""
    text = (ROOT / "manifests" / "install.yaml").read_text(encoding="utf-8")
    objects = [each for each in yaml.safe_load_all(text) if each["kind"] != "Deployment"]
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", input=yaml.safe_dump_all(objects))
    cluster.kubectl("wait", f"crd/{PLURAL}.kvloop.io", "--for=condition=Established", "--timeout=30s")
    return cluster.service_account_kubeconfig(ACCOUNT, NAMESPACE)


class OperatorProcess:
    """`kvloop-operator`; a context manager that starts it, waits until it serves, and ends it."""

    def __init__(
        self, kubeconfig: Path, log: Path, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        self._arguments = ("--metrics-port=0", "--liveness-port=0", *arguments)
        self._environment = os.environ | {"KUBECONFIG": str(kubeconfig)} | dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self, *, wait: bool = True) -> None:
        """Start it, and wait until it works on resources."""
        offset = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(Path(sys.executable).with_name("kvloop-operator")), *self._arguments],
                stdout=output,
                stderr=output,
                env=self._environment,
            )
        if wait:
            eventually(lambda: self.lines("serving", offset)[1:], timeout_s=60)

    def ensure(self) -> None:
        """Start it again, if a test left it ended."""
        if self.process.poll() is not None:
            self.start()

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process, "not started"
        return self._process

    def terminate(self, timeout_s: float = 30) -> int:
        """SIGTERM; gives the exit code."""
        self.process.terminate()
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Hold the process still."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def lines(self, begin: str = "", offset: int = 0) -> list[Body]:
        """Log lines whose message begins so."""
        text = self.log.read_bytes()[offset:].decode()
        found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return [line for line in found if str(line["message"]).startswith(begin)]

    @property
    def url(self) -> str:
        """Where it serves /metrics and /healthz."""
        port = re.findall(r"\d+", self.lines("serving /metrics")[-1]["message"])[0]
        return f"http://127.0.0.1:{port}"

    def metric(self, sample: str) -> float:
        """Value of a sample, as `name{label="value"}` of /metrics; 0 if there is none."""
        for line in httpx.get(f"{self.url}/metrics", trust_env=False).text.splitlines():
            name, _, value = line.rpartition(" ")
            if name == sample:
                return float(value)
        return 0.0

    def cpu_seconds(self) -> float:
        """CPU time that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Audit:
    """What the operator asked of the API server from now on, by the API server's own log."""

    def __init__(self, cluster: Client, user: str = USER) -> None:
        self._log = cluster.audit_log
        self._user = user
        self._offset = self._log.stat().st_size

    def requests(self) -> list[Body]:
        """Every request, in order."""
        with self._log.open("rb") as log:
            log.seek(self._offset)
            text = log.read()
        events = [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]
        return [event for event in events if event["user"]["username"] == self._user]

    def writes(self) -> Counter[tuple[str, str]]:
        """Write requests by verb and resource, refused ones too. The heartbeat of the operator's own Lease is apart."""
        found: Counter[tuple[str, str]] = Counter()
        for event in self.requests():
            about = event.get("objectRef", {})
            resource = "/".join(filter(None, [about.get("resource"), about.get("subresource")]))
            if event["verb"] in WRITES and (resource, about.get("name")) != ("leases", ACCOUNT):
                found[event["verb"], resource] += 1
        return found


def resource(name: str, namespace: str, **spec: Any) -> Body:
    """A custom resource with simulated engines: no accelerators, two of each role; `spec` replaces whole fields."""
    role = {"replicas": 2, "gpus": 0}
    base: Body = {
        "model": {"name": "sim", "source": {"path": "/models/sim"}, "maxLength": 8192},
        "engine": {"image": "enginesim:1", "version": "0.32.0"},
        "prefill": role,
        "decode": role,
        "transfer": {"fabric": "UCX"},
        "placement": {"sameZone": "None"},
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": base | spec,
    }


@dataclass(frozen=True)
class Site:
    """A namespace of a test's own in a cluster, and the operator that serves it."""

    cluster: Client
    operator: OperatorProcess
    namespace: str

    def create(self, name: str = "chat", **spec: Any) -> Body:
        """Create a custom resource (see `resource`); gives it."""
        self.cluster.apply(resource(name, self.namespace, **spec), self.namespace)
        return self.get(PLURAL, name)

    def patch(self, spec: Body, name: str = "chat") -> None:
        """Merge into the spec of a custom resource; None removes a field."""
        self.edit(PLURAL, name, {"spec": spec})

    def edit(self, kind: str, name: str, change: Body, *options: str) -> None:
        """A merge patch by somebody else."""
        self.kubectl("patch", kind, name, "--type=merge", f"--patch={json.dumps(change)}", *options)

    def get(self, kind: str, name: str) -> Body:
        """One object."""
        return self.cluster.get(kind, name, self.namespace)

    def items(self, kind: str, *options: str) -> list[Body]:
        """Objects of a kind."""
        return self.cluster.items(kind, f"--namespace={self.namespace}", *options)

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl in the namespace."""
        return self.cluster.kubectl(*arguments, f"--namespace={self.namespace}")

    def audit(self) -> "Audit":
        """What the operator asks from now on."""
        return Audit(self.cluster)

    def status(self, name: str = "chat") -> Body:
        """Status of a custom resource."""
        found: Body = self.get(PLURAL, name).get("status", {})
        return found

    def condition(self, kind: str, name: str = "chat") -> Body:
        """A condition of a custom resource; empty if it has none of that type."""
        return next((each for each in self.status(name).get("conditions", []) if each["type"] == kind), {})

    def wait_for(self, kind: str, status: str, reason: str = "", name: str = "chat", timeout_s: float = 60) -> Body:
        """Wait until a condition has that status, and that reason, for the newest generation; gives it."""

        def check() -> Body:
            body = self.get(PLURAL, name)
            found = next((each for each in body["status"].get("conditions", []) if each["type"] == kind), None)
            assert found, body["status"]
            assert found["status"] == status, body["status"]
            assert reason in {"", found["reason"]}, found
            assert found["observedGeneration"] == body["metadata"]["generation"], found
            return dict(found)

        return eventually(check, timeout_s)

    def children(self, name: str = "chat") -> dict[tuple[str, str], Body]:
        """All children of a custom resource, by kind and name."""
        items = self.items(",".join(CHILDREN), f"--selector=kvloop.io/name={name}", "--show-managed-fields")
        return {(item["kind"], item["metadata"]["name"]): item for item in items}

    @contextmanager
    def served(self, name: str = "chat", **spec: Any) -> Iterator[Self]:
        """With a custom resource about which the operator has nothing left to do for now."""
        audit = self.audit()
        self.create(name, **spec)
        eventually(lambda: self.condition("Ready", name))
        settled(audit)
        yield self
        self.kubectl("delete", PLURAL, name, "--wait=false", "--ignore-not-found")


QUIET_S: Final = 1.5
"""Without a write for this long, the operator has finished: many times what it waits for events to settle."""


def settled(audit: Audit, quiet_s: float = QUIET_S, timeout_s: float = 60) -> None:
    """Wait until the operator has written nothing for a while."""
    deadline = time.monotonic() + timeout_s
    seen, since = -1, time.monotonic()
    while time.monotonic() < deadline:
        count = audit.writes().total()
        if count != seen:
            seen, since = count, time.monotonic()
        elif time.monotonic() - since >= quiet_s:
            return
        time.sleep(0.2)
    raise AssertionError(f"the operator still writes after {timeout_s:.0f} s: {audit.writes()}")
