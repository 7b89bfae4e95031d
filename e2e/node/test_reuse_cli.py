"""`kvloop` as its users run it, against what a cluster really is. The resources are those of test_reuse.py."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from e2e.node.harness import MODEL, SECRET, NodeSite
from e2e.site import Body
from kvloop.api.labels import ENGINE_HTTP, PLURAL, REVISION
from kvloop.cli.main import app
from kvloop.cli.reach import Reach
from kvloop.kube.session import Session

pytestmark = pytest.mark.node

Kvloop = Callable[..., Result]


@pytest.fixture
def kvloop(fleet: NodeSite) -> Kvloop:
    """Run a command in the namespace of the fleet."""

    def command(name: str, *arguments: object) -> Result:
        where = ["--kubeconfig", str(fleet.cluster.kubeconfig), "--namespace", fleet.namespace]
        return CliRunner().invoke(app, [name, *map(str, arguments), *where], catch_exceptions=False)

    return command


def test_status_tells_what_kubectl_tells(fleet: NodeSite, kvloop: Kvloop) -> None:
    text = kvloop("status").stdout
    assert {"chat", "one-way", "unguarded", "decode-only", "strict"} <= set(text.split())
    told = json.loads(kvloop("status", "chat", "--output", "json").stdout)
    live = fleet.get(PLURAL, "chat")
    assert told["generation"] == live["metadata"]["generation"]
    assert told["status"]["prefill"] == live["status"]["prefill"]
    assert "KVTransferVerified" in kvloop("status", "chat").stdout
    missing = kvloop("status", "none")
    assert (missing.exit_code, "there are chat, decode-only" in missing.stderr) == (2, True)


def levels(result: Result) -> dict[str, str]:
    return {each["check"]: each["level"] for each in json.loads(result.stdout)["checks"]}


def test_check_asks_engines_and_routers_themselves(kvloop: Kvloop) -> None:
    well = kvloop("check", "chat", "--output", "json")
    found = levels(well)
    assert well.exit_code == 0, well.output
    live = (
        "Guard",
        "Handles in streams",
        "KV from prefill to decode",
        "KV from decode to prefill",
        "Answers with reused KV",
    )
    assert [found[name] for name in ("Kubernetes", "CRD", "Operator", "Resource", "Nodes", *live, "Router")] == [
        "ok"
    ] * 11
    ill = kvloop("check", "unguarded", "--output", "json")
    assert (ill.exit_code, levels(ill)["Guard"]) == (1, "fail")
    assert levels(kvloop("check", "one-way", "--output", "json"))["KV transfer"] == "warn"


async def test_a_router_asks_where_the_api_server_is_kept_out(fleet: NodeSite) -> None:
    (engine,), (router,) = fleet.pods("prefill"), fleet.pods("router")
    async with await Session.open(str(fleet.cluster.kubeconfig)) as session:
        reach = Reach(session, router, direct=False)
        assert "kvloop_engine_info" in (await reach.ask(engine, ENGINE_HTTP, "/metrics")).text
        body = {"model": MODEL, "prompt": "Say " * 2000, "max_tokens": 2}
        answer = await reach.ask(engine, ENGINE_HTTP, "/v1/completions", body=body)
        assert len(json.loads(answer.text)["choices"]) == 1
        assert (await reach.ask(engine, ENGINE_HTTP, "/none")).status == 404


def test_check_judges_a_file_with_the_api_server(fleet: NodeSite, kvloop: Kvloop, tmp_path: Path) -> None:
    path = written(tmp_path, fleet.get(PLURAL, "chat"), "other", image="nowhere.example/vllm:0.32.0")
    result = kvloop("check", "--filename", path, "--output", "json")
    assert (result.exit_code, levels(result)["Admission"]) == (0, "ok")
    assert "Guard" not in levels(result)


def test_diff_tells_what_an_edit_changes_and_nothing_else(fleet: NodeSite, kvloop: Kvloop, tmp_path: Path) -> None:
    body = fleet.get(PLURAL, "chat")
    same = kvloop("diff", "--filename", written(tmp_path, body, "chat"))
    assert (same.exit_code, same.stderr) == (0, ""), same.output
    longer = kvloop("diff", "--filename", written(tmp_path, body, "chat", args=["--seed=7"]), "--output", "json")
    (found,) = json.loads(longer.stdout)
    assert longer.exit_code == 1
    assert sorted(found["restarts"]) == ["chat-decode-0", "chat-prefill-0"]
    changed = [each for each in found["children"] if each["action"] == "change"]
    assert sorted(each["name"] for each in changed) == ["chat-decode", "chat-prefill"]
    for child in changed:
        lines = [line[1:].strip() for line in child["diff"].splitlines()[2:] if line[0] in "+-"]
        assert [line.partition(":")[0] for line in lines] == [REVISION, REVISION, "- --seed=7"], child["diff"]
    assert len(found["rollout"]) >= 1
    assert fleet.get(PLURAL, "chat")["metadata"]["generation"] == body["metadata"]["generation"]


def written(folder: Path, body: Body, name: str, **engine: Any) -> Path:
    """The resource as a file of its user's, with another name and other fields of the engine."""
    spec = body["spec"] | {"engine": body["spec"]["engine"] | engine}
    path = folder / f"{name}.yaml"
    path.write_text(
        yaml.safe_dump({key: body[key] for key in ("apiVersion", "kind")} | {"metadata": {"name": name}, "spec": spec})
    )
    return path


def test_bench_compares_with_no_reuse(fleet: NodeSite, tmp_path: Path) -> None:
    before = fleet.reuse("chat").counters
    arguments = ["bench", "--url", fleet.url("chat"), "--against", "off", "--prefix", "600", "--conversations", "2"]
    result = CliRunner().invoke(
        app, [*arguments, "--turns", "3", "--out", str(tmp_path), "-o", "json"], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert {name: arm["turns"] for name, arm in told["arms"].items()} == {"off": 6, "on": 6}
    assert (tmp_path / "first-token-by-length.png").stat().st_size > 1000
    after = fleet.reuse("chat").counters
    assert after.reused_turns - before.reused_turns == 4
    assert after.misses.get("ended", 0) - before.misses.get("ended", 0) == 4


def test_bundle_holds_what_helps_and_nothing_secret(fleet: NodeSite, kvloop: Kvloop, tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    result = kvloop("bundle", "unguarded", "--out", path)
    assert result.exit_code == 0, result.output
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path / "out", filter="data")
    texts = {file: file.read_text() for file in (tmp_path / "out").rglob("*") if file.is_file()}
    assert {
        "resource.yaml",
        "events.yaml",
        "children/statefulset-unguarded-decode.yaml",
        "logs/unguarded-prefill-0.vllm.log",
        "metrics/unguarded-decode-0.txt",
        "nodes/node.yaml",
    } <= names
    assert any(name.startswith("reuse/unguarded-router-") for name in names)
    assert any(name.startswith("operator/") for name in names)
    assert not [file for file, text in texts.items() if SECRET in text]
    spec = fleet.get(PLURAL, "unguarded")["spec"]
    assert SECRET in json.dumps(spec), "or else this proves nothing"
