"""Pods that the API server does not reach are asked by a program in a router's pod."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from kvloop.cli import reach
from kvloop.cli.reach import SCRIPT, Reach
from kvloop.kube.errors import UnavailableError
from kvloop.kube.transport import Answer

from .doubles import Body, Cluster


class Echo(BaseHTTPRequestHandler):
    """Answers with what it was asked; 404 below /none."""

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        told = {"method": self.command, "body": self.rfile.read(length).decode(), "key": self.headers.get("x-api-key")}
        text = json.dumps(told).encode()
        self.send_response(404 if self.path.startswith("/none") else 200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the signature is http.server's)
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "body", "status", "method"),
    [("/metrics", None, 200, "GET"), ("/v1", "{}", 200, "POST"), ("/none", None, 404, "GET")],
)
def test_the_program_asks_and_tells(url: str, path: str, body: str | None, status: int, method: str) -> None:
    line = json.dumps({"url": url + path, "headers": {"X-Api-Key": "k"}, "body": body})
    done = subprocess.run([sys.executable, "-c", SCRIPT], input=line + "\n", capture_output=True, text=True, check=True)  # noqa: S603 (ours)
    code, text = json.loads(done.stdout)
    assert (code, json.loads(text)) == (status, {"method": method, "body": body or "", "key": "k"})


def pod(name: str) -> Body:
    return {"metadata": {"name": name, "namespace": "team", "labels": {}}, "status": {"podIP": "10.0.0.1"}}


class Pods(Cluster):
    """Reaches pods itself or not; counts how often it tried."""

    def __init__(self, *, reaches: bool) -> None:
        super().__init__()
        self.reaches, self.tries, self.runs = reaches, 0, 0

    async def ask(self, *_: Any, **__: Any) -> Answer:
        self.tries += 1
        if not self.reaches:
            raise UnavailableError("error trying to reach service")
        return Answer(200, "direct")

    async def run(self, *_: Any) -> str:
        self.runs += 1
        return json.dumps([200, "through"])


async def test_the_way_that_works_is_kept() -> None:
    pods = Pods(reaches=True)
    way = Reach(pods, pod("router"))
    assert [(await way.ask(pod("a"), 1, "/")).text for _ in range(2)] == ["direct", "direct"]
    pods = Pods(reaches=False)
    way = Reach(pods, pod("router"))
    assert [(await way.ask(pod("a"), 1, "/")).text for _ in range(3)] == ["through"] * 3
    assert (pods.tries, pods.runs) == (1, 3)


async def test_without_a_router_there_is_no_other_way() -> None:
    way = Reach(Pods(reaches=False), None)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="trying to reach"):
            await way.ask(pod("a"), 1, "/")


async def test_an_engine_that_stops_answering_is_told_as_that() -> None:
    pods = Pods(reaches=True)
    way = Reach(pods, pod("router"))
    await way.ask(pod("a"), 1, "/")
    pods.reaches = False
    with pytest.raises(UnavailableError):
        await way.ask(pod("a"), 1, "/")
    assert not pods.runs


async def test_silence_is_not_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Pods):
        async def ask(self, *_: Any, **__: Any) -> Answer:
            await asyncio.Event().wait()
            raise AssertionError

    monkeypatch.setattr(reach, "FIRST_SECONDS", 0.01)
    assert (await Reach(Silent(reaches=False), pod("router")).ask(pod("a"), 1, "/")).text == "through"
    with pytest.raises(UnavailableError, match="a does not answer the API server"):
        await Reach(Silent(reaches=False), None).ask(pod("a"), 1, "/")
