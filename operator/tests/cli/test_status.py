"""`kvloop status`: the status as people read it, and one line where there is none."""

import io
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvloop.api.labels import KIND
from kvloop.cli import tables
from kvloop.cli.target import explain
from kvloop.kube.errors import ForbiddenError, KubeError, NotFoundError, UnavailableError

from .doubles import Body, Cluster, connect, resource, run

CREATED = datetime.fromisoformat("2030-01-02T03:04:05Z").timestamp()
STATUS: Body = {
    "observedGeneration": 1,
    "conditions": [
        {
            "type": "Ready",
            "status": "False",
            "reason": "RollingOut",
            "lastTransitionTime": "2030-01-02T03:04:05Z",
            "message": "prefill 1 of 2 updated",
        },
        {"type": "KVTransferVerified", "status": "True", "reason": "Verified"},
    ],
    "url": "http://chat.team.svc.cluster.local:8000",
    "prefill": {"desired": 2, "ready": 1, "updated": 1, "summary": "1/2"},
    "decode": {"desired": 2, "ready": 2, "updated": 2, "summary": "2/2"},
    "router": {"desired": 1, "ready": 1, "summary": "1/1"},
    "resolved": {"vllmVersion": "0.32.0", "gpusPerPod": {"prefill": 4, "decode": 8}, "efaDevicesPerPod": {}},
    "reuse": {
        "turns": 12300,
        "hitPercent": "87%",
        "transferredBytes": 123_400_000_000,
        "misses": [{"reason": "expired", "count": 3}],
        "firstToken": {
            "reused": {"turns": 80, "p50Milliseconds": 110},
            "holdout": {"turns": 9, "p50Milliseconds": 1400},
        },
    },
    "advice": {"thresholdTokens": {"value": 512, "reason": "below it computing is faster"}},
}


def shown(what: Any) -> list[str]:
    """Lines, each with single spaces."""
    out = io.StringIO()
    Console(width=200, file=out).print(what)
    return [" ".join(line.split()) for line in out.getvalue().splitlines() if line.strip()]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster(resource(status=STATUS), resource("other", "elsewhere"))
    connect(monkeypatch, cluster)
    return cluster


def test_one_line_a_resource() -> None:
    assert shown(tables.overview([resource(status=STATUS), resource("new")], CREATED + 7300)) == [
        "Namespace Name Ready Reason Prefill Decode Router KV transfer Reuse Age",
        "team chat False RollingOut 1/2 2/2 1/1 Verified 87% 2h",
        "team new Unknown Unseen 2h",
    ]


def test_detail_has_all_that_the_status_has() -> None:
    lines = shown(tables.detail(resource(status=STATUS), CREATED + 60))
    assert lines == [
        "team/chat age 1m http://chat.team.svc.cluster.local:8000",
        "Condition Is Reason For Message",
        "Ready False RollingOut 1m prefill 1 of 2 updated",
        "KVTransferVerified True Verified unknown",
        "Desired Ready Updated",
        "Prefill 2 1 1",
        "Decode 2 2 2",
        "Router 1 1",
        "Resolved",
        "vLLM version 0.32.0",
        "GPUs per pod prefill 4, decode 8",
        "Reuse",
        "Turns 12,300",
        "Hit percent 87%",
        "Transferred bytes 123 GB",
        "Misses",
        "Count",
        "expired 3",
        "First token",
        "Turns P50 milliseconds",
        "Reused 80 110",
        "Holdout 9 1,400",
        "Advice",
        "Value Reason",
        "Threshold tokens 512 below it computing is faster",
    ]


def test_an_edit_that_nobody_has_seen_is_told() -> None:
    assert any("not seen the newest edit" in line for line in shown(tables.detail(resource(), CREATED)))
    assert not any("not seen" in line for line in shown(tables.detail(resource(status=STATUS), CREATED)))


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("decoderKVBlocksTTLSeconds", "Decoder KV blocks TTL seconds"),
        ("p95Milliseconds", "P95 milliseconds"),
        ("vllmVersion", "vLLM version"),
    ],
)
def test_names_of_fields_as_words(field: str, words: str) -> None:
    assert tables.words(field) == words


def test_of_the_namespace_of_another_or_of_all(cluster: Cluster) -> None:
    def names(*options: str) -> list[str]:
        return [each["name"] for each in json.loads(run("status", "-o", "json", *options).stdout)]

    assert names() == ["chat"]
    assert names("-n", "elsewhere") == ["other"]
    assert names("-A") == ["other", "chat"]
    assert names("-n", "empty") == []
    assert run("status", "-n", "empty").stdout == "No resources found.\n"
    assert run("status", "chat", "-A").exit_code == 2


def test_where_no_terminal_is_names_stay_whole(cluster: Cluster) -> None:
    name = "a-resource-with-the-longest-name-there-is"
    cluster.add(resource(name, "a-namespace-with-the-longest-name-that-kubernetes-allows", status=STATUS))
    assert name in run("status", "-A").stdout.split()


def test_half_a_condition_is_shown_as_far_as_it_goes() -> None:
    half = {"status": {"conditions": [{"type": "Foreign"}, {"status": "True"}]}}
    assert "Foreign Unknown unknown" in shown(tables.detail(resource() | half, CREATED))
    assert "Unseen" in " ".join(shown(tables.overview([resource() | half], CREATED)))


def test_a_message_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others' words have brackets and colons, which mean something to the library that prints tables."""
    message = "must match '[a-z0-9]([-a-z0-9]*)': exec [/bin/sh] :warning: failed"
    ready = {"type": "Ready", "status": "False", "reason": "InvalidPodTemplate", "message": message}
    connect(monkeypatch, Cluster(resource(status={"conditions": [ready]})))
    assert message in run("status", "chat").stdout


def test_json_is_the_status_as_it_is(cluster: Cluster) -> None:
    assert json.loads(run("status", "chat", "-o", "json").stdout) == {
        "namespace": "team",
        "name": "chat",
        "generation": 1,
        "status": STATUS,
    }


def test_watching_goes_on_until_it_cannot(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost connection is waited out; JSON comes a line a change."""
    steps = iter(["same", "lost", "changed", "gone"])

    async def pause(_: float) -> None:
        step = next(steps)
        cluster.errors.clear()
        if step == "lost":
            cluster.errors[KIND] = UnavailableError("reset")
        if step == "changed":
            cluster.add(resource(status=STATUS | {"url": "http://new"}))
        if step == "gone":
            cluster.objects.clear()

    monkeypatch.setattr("kvloop.cli.status.asyncio.sleep", pause)
    result = run("status", "chat", "-o", "json", "--watch")
    lines = [json.loads(line)["status"]["url"] for line in result.stdout.splitlines()]
    assert lines == [STATUS["url"], "http://new"]
    assert result.exit_code == 2
    assert "no DisaggregatedInference chat" in result.stderr


def test_watching_a_table(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def pause(_: float) -> None:
        cluster.objects.clear()

    monkeypatch.setattr("kvloop.cli.status.asyncio.sleep", pause)
    result = run("status", "chat", "--watch")
    assert "RollingOut" in result.stdout
    assert result.exit_code == 2


def test_a_resource_that_is_not_there_is_told_with_those_that_are(cluster: Cluster) -> None:
    result = run("status", "caht")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: no DisaggregatedInference caht in the namespace team: there are chat\n"
    assert "--all-namespaces" in run("status", "x", "-n", "empty").stderr


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (UnavailableError("no usable kubeconfig: none"), "set KUBECONFIG"),
        (UnavailableError("GET /x: refused"), "is the cluster up"),
        (UnavailableError("Unauthorized", 401), "log in again"),
        (NotFoundError("404 page not found", 404), "kvloop crd | kubectl apply"),
        (NotFoundError("the server could not find the requested resource", 404), "kvloop crd | kubectl apply"),
        (ForbiddenError('User "me" cannot list resource "x"', 403), "ask for that right"),
        (KubeError("odd\nsecond line", 418), "odd"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(error: KubeError, says: str) -> None:
    text = explain(error, "" if "kubeconfig" in error.message else "https://cluster")
    assert says in text
    assert "\n" not in text


def test_a_missing_kubeconfig_is_told_in_one_line(tmp_path: Path) -> None:
    code = f"from kvloop.cli.main import app; app(['status', '--kubeconfig', {str(tmp_path / 'none')!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603 (ours)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: no usable kubeconfig: ")


def test_no_cluster_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, UnavailableError("no usable kubeconfig: none there"))
    result = run("status")
    assert result.exit_code == 2
    assert (
        result.stderr == "error: no usable kubeconfig: none there: set KUBECONFIG, or give --kubeconfig and --context\n"
    )
