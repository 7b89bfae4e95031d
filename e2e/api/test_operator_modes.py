"""How the operator starts: namespaced, without the CRD, deaf. No other operator runs meanwhile."""

import asyncio
import contextlib
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from e2e.cluster import Client, eventually
from e2e.control.harness import ACCOUNT, OperatorProcess, Site, install
from kvloop.api.labels import PLURAL

pytestmark = pytest.mark.api


@pytest.fixture(scope="module")
def kubeconfig(api_cluster: Client) -> Path:
    return install(api_cluster)


def test_served_namespaces_only(api_cluster: Client, kubeconfig: Path, tmp_path: Path, namespace: str) -> None:
    with OperatorProcess(kubeconfig, tmp_path / "operator.log", f"--namespace={namespace}") as process:
        elsewhere = Site(api_cluster, "default", process)
        elsewhere.create("elsewhere")
        with Site(api_cluster, namespace, process).served() as chat:
            assert chat.get("lease", ACCOUNT)["spec"]["holderIdentity"] == ACCOUNT
        assert not elsewhere.children("elsewhere")
        elsewhere.kubectl("delete", PLURAL, "elsewhere")


def test_without_the_crd_it_ends_and_says_so(api_cluster: Client, kubeconfig: Path, tmp_path: Path) -> None:
    api_cluster.kubectl("delete", "crd", f"{PLURAL}.kvloop.io")
    try:
        process = OperatorProcess(kubeconfig, tmp_path / "operator.log")
        process.start(wait=False)
        assert process.process.wait(60) == 1
        (line,) = process.lines("the operator ends")
        assert "CustomResourceDefinition" in line["message"]
    finally:
        install(api_cluster)


def test_when_the_crd_goes_it_ends_to_begin_anew(api_cluster: Client, kubeconfig: Path, tmp_path: Path) -> None:
    with OperatorProcess(kubeconfig, tmp_path / "operator.log") as process:
        api_cluster.kubectl("delete", "crd", f"{PLURAL}.kvloop.io")
        assert process.process.wait(60) == 1
        install(api_cluster)
        process.start()


class Valve:
    """A TCP proxy in front of the API server, through which nothing passes while it is shut."""

    def __init__(self, server: str) -> None:
        parts = urlsplit(server)
        self._upstream = (parts.hostname, parts.port)
        self._port: Future[int] = Future()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = self._port.result(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def open(self) -> None:
        """Let bytes pass."""
        self._loop.call_soon_threadsafe(self._open.set)

    def shut(self) -> None:
        """Keep them; connections stay open, as behind a dead load balancer."""
        self._loop.call_soon_threadsafe(self._open.clear)

    async def _serve(self) -> None:
        self._loop, self._stop, self._open = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self._open.set()
        async with await asyncio.start_server(self._connected, "127.0.0.1", 0) as server:
            self._port.set_result(server.sockets[0].getsockname()[1])
            await self._stop.wait()
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._upstream)
        self._writers |= {writer, there_writer}
        await asyncio.gather(self._pump(reader, there_writer), self._pump(there_reader, writer))

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(1 << 16):
                await self._open.wait()
                target.write(data)
                await target.drain()
        target.close()


@pytest.fixture
def valve(kubeconfig: Path) -> Iterator[Valve]:
    config = yaml.safe_load(kubeconfig.read_text())
    with Valve(config["clusters"][0]["cluster"]["server"]) as opened:
        yield opened


def test_a_deaf_operator_fails_its_liveness_probe_and_recovers(kubeconfig: Path, tmp_path: Path, valve: Valve) -> None:
    through = tmp_path / "kubeconfig"
    through.write_text(re.sub(r"(server: https://127\.0\.0\.1:)\d+", rf"\g<1>{valve.port}", kubeconfig.read_text()))
    with OperatorProcess(through, tmp_path / "operator.log", "--canary-seconds=1", "--request-seconds=2") as process:

        def health() -> int:
            return httpx.get(f"{process.url}/healthz", trust_env=False, timeout=60).status_code

        eventually(lambda: process.metric("kvloop_canary_age_seconds") < 2)
        assert health() == 200
        valve.shut()
        eventually(lambda: health() == 503)
        valve.open()
        eventually(lambda: health() == 200)
