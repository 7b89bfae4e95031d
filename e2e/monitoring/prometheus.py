"""A real Prometheus for a while, and promtool: both built from Go modules, as the cluster is."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx

from e2e.cluster.binaries import ensure
from e2e.cluster.client import eventually

PROGRAMS: Final = ("prometheus", "promtool")

Series = dict[str, Any]
"""`metric`, its labels; and `value`, or `values` over a time: pairs of seconds and a number as text."""


class QueryError(RuntimeError):
    """Prometheus did not accept a query; the message has its words."""


@dataclass(frozen=True)
class Target:
    """What is scraped: an address, and the labels that its series get."""

    url: str
    labels: Mapping[str, str]


def promtool(*arguments: str | Path, text: str = "") -> str:
    """Run promtool; gives its output. Raises `CalledProcessError` where it complains."""
    command = [ensure(PROGRAMS)["promtool"], *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


class Prometheus:
    """``with Prometheus(folder, targets) as prometheus``: scrapes them, and answers queries."""

    def __init__(self, folder: Path, targets: Sequence[Target], interval_s: float) -> None:
        self._folder = folder
        self._targets = targets
        self._interval_s = interval_s

    def __enter__(self) -> Self:
        config = self._folder / "prometheus.json"
        config.write_text(json.dumps(self._config()))  # JSON is YAML
        address = f"127.0.0.1:{_free_port()}"
        flags = {
            "config.file": config,
            "storage.tsdb.path": self._folder / "data",
            "web.listen-address": address,
            "log.level": "warn",
        }
        program = ensure(PROGRAMS)["prometheus"]
        with (self._folder / "prometheus.log").open("w") as log:
            self._process = subprocess.Popen([program, *(f"--{k}={v}" for k, v in flags.items())], stderr=log)
        self._http = httpx.Client(base_url=f"http://{address}", trust_env=False)
        eventually(self._is_ready, timeout_s=30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=30)

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        """Series at a moment, in seconds since the epoch; now where it is left out."""
        return self._ask("query", {"query": expression, "time": at or time.time()})

    def query_range(self, expression: str, begin: float, end: float, step_s: float) -> list[Series]:
        """Series over a time."""
        return self._ask("query_range", {"query": expression, "start": begin, "end": end, "step": step_s})

    def _ask(self, what: str, parameters: Mapping[str, Any]) -> list[Series]:
        answer = self._http.get(f"/api/v1/{what}", params=parameters).json()
        if answer["status"] != "success":
            raise QueryError(f"{answer['error']}: {parameters['query']}")
        found: list[Series] = answer["data"]["result"]
        return found

    def _is_ready(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError((self._folder / "prometheus.log").read_text())
        try:
            return self._http.get("/-/ready").is_success
        except httpx.TransportError:
            return False

    def _config(self) -> dict[str, Any]:
        jobs = [
            {
                "job_name": str(number),
                "scheme": url.scheme,
                "honor_labels": True,
                "static_configs": [{"targets": [url.netloc.decode()], "labels": dict(target.labels)}],
            }
            for number, target in enumerate(self._targets)
            for url in [httpx.URL(target.url)]
        ]
        return {"global": {"scrape_interval": f"{round(self._interval_s * 1000)}ms"}, "scrape_configs": jobs}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
