"""`kvloop bench`: turns are counted and compared rightly, whatever the endpoint does."""

import csv
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kvloop.cli import measure
from kvloop.cli.load import Turn

from .doubles import run

PNG = b"\x89PNG"


class Endpoint(ThreadingHTTPServer):
    """Streams a short reply to every chat; a token is a word. Keeps what it was asked."""

    def __init__(self, *, tokenizer: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.tokenizer = tokenizer
        self.models: list[str] = ["m"]
        self.fails_from = 1000
        """Chats with so many messages are refused."""
        self.chats: list[tuple[dict[str, Any], dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_GET(self) -> None:
        self._answer(200, {"data": [{"id": name} for name in self.server.models]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/tokenize":
            self._answer(*(200, {"count": len(body["prompt"].split())}) if self.server.tokenizer else (404, {}))
            return
        self.server.chats.append((body, {name.lower(): value for name, value in self.headers.items()}))
        usage = {"prompt_tokens": sum(len(each["content"].split()) for each in body["messages"])}
        if len(body["messages"]) >= self.server.fails_from:
            self._answer(503, {"error": "no engine"})
        elif not body.get("stream"):
            self._answer(200, {"choices": [{"message": {"content": "a"}}], "usage": usage})
        else:
            events = [{"choices": [{"delta": {"content": "a b c"}}]}, {"choices": [], "usage": usage}]
            text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
            self._send(200, text.encode(), "text/event-stream")

    def _answer(self, status: int, body: Any) -> None:
        self._send(status, json.dumps(body).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the signature is http.server's)
        pass


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


SMALL = ("--prefix", 100, "--prefix", 300, "--conversations", 2, "--turns", 3, "--user-tokens", 10)


def test_off_is_the_same_endpoint_told_to_keep_nothing(endpoint: Endpoint, tmp_path: Path) -> None:
    result = run("bench", "--url", endpoint.url, "--against", "off", *SMALL, "--out", tmp_path / "out", "-o", "json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["model"] == "m"
    assert {name: (arm["turns"], arm["failedConversations"]) for name, arm in told["arms"].items()} == {
        "off": (6, 0),
        "on": (6, 0),
    }
    assert [row["systemTokens"] for row in told["followUps"]] == [100, 300]
    assert all(times["turns"] == 2 for row in told["followUps"] for times in row["arms"].values())
    assert [row["promptTokens"] for row in told["followUps"]] == pytest.approx([130, 330], abs=10)
    ends = [headers.get("x-conversation-end") for _, headers in endpoint.chats]
    assert (ends.count("true"), ends.count(None)) == (6, 6)
    systems = {body["messages"][0]["content"] for body, _ in endpoint.chats}
    assert len(systems) == 4, "no arm's texts are in a cache for another's"

    out = tmp_path / "out"
    assert json.loads((out / "summary.json").read_text()) == told
    lines = list(csv.DictReader((out / "turns.csv").read_text().splitlines()))
    assert len(lines) == 12
    assert {line["arm"] for line in lines} == {"off", "on"}
    for name in ("first-token-by-length.png", "first-token-by-turn.png"):
        assert (out / name).read_bytes().startswith(PNG)


def test_two_endpoints(endpoint: Endpoint) -> None:
    other = endpoint.url.replace("127.0.0.1", "localhost")
    result = run("bench", "--url", endpoint.url, "--against", other, *SMALL)
    assert result.exit_code == 0, result.output
    assert "Faster" in result.stdout
    assert not any("x-conversation-end" in headers for _, headers in endpoint.chats)
    same = run("bench", "--url", endpoint.url, "--against", endpoint.url)
    assert (same.exit_code, "--against off" in same.stderr) == (2, True)


def test_one_endpoint_alone_and_the_same_texts_again(endpoint: Endpoint) -> None:
    for _ in range(2):
        result = run("bench", "--url", endpoint.url, *SMALL, "--seed", "s")
        assert "Faster" not in result.stdout
    bodies = [json.dumps(body) for body, _ in endpoint.chats]
    assert sorted(bodies[:6]) == sorted(bodies[6:])
    run("bench", "--url", endpoint.url, *SMALL)
    assert not set(bodies) & {json.dumps(body) for body, _ in endpoint.chats[12:]}


def test_the_key_comes_from_the_environment(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "k")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    run("bench", "--url", endpoint.url, *SMALL, "--api-key-env", "MY_KEY")
    assert {headers.get("authorization") for _, headers in endpoint.chats} == {"Bearer k"}
    endpoint.chats.clear()
    run("bench", "--url", endpoint.url, *SMALL)
    assert {headers.get("authorization") for _, headers in endpoint.chats} == {None}


def test_an_endpoint_without_a_tokenizer(endpoint: Endpoint) -> None:
    endpoint.tokenizer = False
    told = json.loads(run("bench", "--url", endpoint.url, *SMALL, "-o", "json").stdout)
    assert [row["promptTokens"] for row in told["followUps"]] == pytest.approx([130, 330], abs=10)


def test_failed_turns_end_their_conversation_and_the_command_with_1(endpoint: Endpoint) -> None:
    endpoint.fails_from = 4
    result = run("bench", "--url", endpoint.url, *SMALL, "-o", "json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["arms"]["all"] | {"firstTurns": 0, "conversationSeconds": 0, "url": ""} == {
        "url": "",
        "turns": 2,
        "failedConversations": 2,
        "firstTurns": 0,
        "conversationSeconds": 0,
    }
    assert told["followUps"] == []
    assert "2 conversations ended early; the first: /v1/chat/completions answered 503" in result.stderr


def test_an_unusable_endpoint_ends_with_2(endpoint: Endpoint, tmp_path: Path) -> None:
    nobody = run("bench", "--url", "http://127.0.0.1:1")
    assert (nobody.exit_code, "does not answer" in nobody.stderr) == (2, True)
    endpoint.models = []
    assert "give --model" in run("bench", "--url", endpoint.url).stderr
    (tmp_path / "file").write_text("")
    told = run("bench", "--url", endpoint.url, *SMALL, "--model", "m", "--out", tmp_path / "file")
    assert (told.exit_code, "cannot write" in told.stderr) == (2, True)


def turn(number: int, system: int, ttft_s: float, conversation: int = 0) -> Turn:
    return Turn(conversation, number, system, system + 10 * number, ttft_s, {"secret": "text"}, "text", 2 * ttft_s)


def test_follow_ups_of_equal_length_are_compared() -> None:
    arms = {
        "off": [turn(0, 100, 9), *(turn(1, 100, each) for each in (1, 2, 3)), turn(1, 900, 1)],
        "on": [turn(0, 100, 9), turn(1, 100, 0.5), turn(2, 100, 0.5)],
    }
    (row,) = measure.rows(arms)
    assert (row.system_tokens, row.prompt_tokens, row.faster) == (100, 110, 4)
    assert row.arms["off"] == measure.Times(3, 2000, 2900)
    assert measure.rows({"all": arms["off"]})[0].faster is None
    assert measure.rows({}) == []


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (50, 2.5), (95, 3.85), (100, 4)])
def test_percentiles(percent: float, value: float) -> None:
    assert measure.percentile([4, 1, 3, 2], percent) == pytest.approx(value)
    assert measure.percentile([7], percent) == 7


def test_csv_has_no_content() -> None:
    assert measure.as_csv({"on": [turn(1, 100, 0.25, 3)]}) == (
        "arm,conversation,turn,system_tokens,prompt_tokens,first_token_ms,total_ms\non,3,1,100,110,250.0,500.0\n"
    )
