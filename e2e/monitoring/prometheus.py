"""A real Prometheus for a while, and promtool: both built from Go modules, as the cluster is."""

import json
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

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
    """Answers queries from what it has scraped; made by `running`."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def query(self, expression: str, at: float) -> list[Series]:
        """Series at a moment, in seconds since the epoch."""
        return self._ask("query", {"query": expression, "time": at})

    def query_range(self, expression: str, begin: float, end: float, step_s: float) -> list[Series]:
        """Series over a time."""
        return self._ask("query_range", {"query": expression, "start": begin, "end": end, "step": step_s})

    def _ask(self, what: str, parameters: Mapping[str, Any]) -> list[Series]:
        answer = self._http.get(f"/api/v1/{what}", params=parameters).json()
        if answer["status"] != "success":
            raise QueryError(f"{answer['error']}: {parameters['query']}")
        found: list[Series] = answer["data"]["result"]
        return found


@contextmanager
def running(folder: Path, targets: Sequence[Target], interval_s: float) -> Iterator[Prometheus]:
    """A Prometheus that reads these targets so often, and keeps all in an empty folder."""
    config, log = folder / "prometheus.json", folder / "prometheus.log"
    config.write_text(json.dumps(_config(targets, interval_s)))  # JSON is YAML
    address = f"127.0.0.1:{_free_port()}"
    flags = [
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with log.open("w") as output, subprocess.Popen([ensure(PROGRAMS)["prometheus"], *flags], stderr=output) as process:
        try:
            with httpx.Client(base_url=f"http://{address}", trust_env=False) as http:
                eventually(lambda: process.poll() is not None or _is_ready(http))
                if process.poll() is not None:
                    raise RuntimeError(f"Prometheus ended at once: {log.read_text()}")
                yield Prometheus(http)
        finally:
            process.terminate()


def _is_ready(http: httpx.Client) -> bool:
    try:
        return http.get("/-/ready").is_success
    except httpx.TransportError:
        return False


def _config(targets: Sequence[Target], interval_s: float) -> dict[str, Any]:
    jobs = []
    for number, target in enumerate(targets):
        url = httpx.URL(target.url)
        found = {"targets": [url.netloc.decode()], "labels": dict(target.labels)}
        jobs.append({"job_name": str(number), "honor_labels": True, "static_configs": [found]})
    return {"global": {"scrape_interval": f"{round(interval_s * 1000)}ms"}, "scrape_configs": jobs}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
