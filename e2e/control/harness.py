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

from e2e import site
from e2e.cluster import Client, eventually
from e2e.site import Body
from kvloop.api.labels import PLURAL

ROOT: Final = Path(__file__).parents[2]
NAMESPACE: Final = "kvloop-system"
ACCOUNT: Final = "kvloop-operator"
USER: Final = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})


def install(cluster: Client) -> Path:
    """Install all of manifests/install.yaml but the Deployment; gives a kubeconfig with the operator's rights."""
    text = (ROOT / "manifests" / "install.yaml").read_text(encoding="utf-8")
    objects = [each for each in yaml.safe_load_all(text) if each["kind"] != "Deployment"]
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", input=yaml.safe_dump_all(objects))
    cluster.wait_established(f"{PLURAL}.kvloop.io")
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
        if error:
            print(f"the end of the operator's log:\n{self.log.read_text()[-8000:]}")

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
        for line in httpx.get(f"{self.url}/metrics", trust_env=False, timeout=60).text.splitlines():
            name, _, value = line.rpartition(" ")
            if name == sample:
                return float(value)
        return 0.0

    def cpu_seconds(self) -> float:
        """CPU time that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_memory_mb(self) -> float:
        """The most memory that it has had resident, in units of 10^6 bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
        return int(kib) * 1024 / 1e6


class Audit:
    """What the operator asked of the API server from now on, in one namespace or all, by the API server's own log."""

    def __init__(self, cluster: Client, namespace: str | None = None) -> None:
        self._log = cluster.audit_log
        self._namespace = namespace
        self._offset = self._log.stat().st_size
        self._requests: list[Body] = []

    def requests(self) -> list[Body]:
        """Every request, in order."""
        with self._log.open("rb") as log:
            log.seek(self._offset)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        events = (json.loads(line) for line in whole.splitlines())
        self._requests += [event for event in events if event["user"]["username"] == USER and self._concerns(event)]
        return self._requests

    def _concerns(self, event: Body) -> bool:
        return self._namespace in {None, event.get("objectRef", {}).get("namespace")}

    def writes(self) -> Counter[tuple[str, str]]:
        """Write requests by verb and resource, refused ones too. The heartbeat of the operator's own Lease is apart."""
        found: Counter[tuple[str, str]] = Counter()
        for event in self.requests():
            about = event.get("objectRef", {})
            resource = "/".join(filter(None, [about.get("resource"), about.get("subresource")]))
            if event["verb"] in WRITES and (resource, about.get("name")) != ("leases", ACCOUNT):
                found[event["verb"], resource] += 1
        return found


@dataclass(frozen=True)
class Site(site.Site):
    """A namespace of a test's own, and the operator that serves it."""

    operator: OperatorProcess

    def audit(self) -> "Audit":
        """What the operator asks from now on in this namespace: others may still be on their way out."""
        return Audit(self.cluster, self.namespace)

    @contextmanager
    def served(self, name: str = "chat", **spec: Any) -> Iterator[Self]:
        """With a custom resource about which the operator has nothing left to do for now."""
        audit = self.audit()
        self.create(name, **spec)
        eventually(lambda: self.condition("Ready", name))
        settled(audit)
        yield self
        self.kubectl("delete", PLURAL, name, "--wait=false", "--ignore-not-found")


QUIET_S: Final = 2.0
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
