"""`kvloop diff`: what an edit does to children and pods, in words and as a diff."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvloop.cli.changes import Action, Changes, changes
from kvloop.cli.collect import observed
from kvloop.kube.errors import ForbiddenError, NotFoundError

from .doubles import CONFIG, Body, Cluster, connect, operator, resource, run, started

TWO: Body = {"replicas": 2, "gpus": 0}
LIVE = resource(prefill=TWO, decode=TWO)


def edited(**spec: Any) -> Body:
    """The live resource, with other fields."""
    return LIVE | {"spec": LIVE["spec"] | spec}


def compared(wanted: Body, objects: list[Body] | None = None) -> Changes:
    live, *others = objects or started(LIVE)
    pods = [each for each in others if each["kind"] == "Pod"]
    children = [each for each in others if each["kind"] != "Pod"]
    return changes(wanted, live, children, observed(children, pods, 0), CONFIG)


def actions(found: Changes) -> dict[str, Action]:
    return {f"{each.kind}/{each.name}": each.action for each in found.children}


def test_nothing_changes() -> None:
    assert compared(LIVE) == Changes("team", "chat")


def test_a_new_flag_restarts_both_sides_step_by_step() -> None:
    found = compared(edited(model=LIVE["spec"]["model"] | {"maxLength": 4096}))
    assert found.spec == ["spec.model.maxLength: absent -> 4096"]
    assert actions(found) == {f"StatefulSet/chat-{role}": Action.CHANGE for role in ("prefill", "decode")}
    for child in found.children:
        assert "byDefault" not in child.diff
        lines = [line for line in child.diff.splitlines() if line[0] in "+-"][2:]
        assert lines == ["+        - --max-model-len=4096"]
    assert found.restarts == ["chat-prefill-0", "chat-prefill-1", "chat-decode-0", "chat-decode-1"]
    assert found.words[0] == "prefill: restarts 2 of 2 pods: chat-prefill-0, chat-prefill-1"
    assert any("computed anew" in line for line in found.words)
    assert not any("new revision" in line for line in found.words), "the longest sequence may differ"
    assert len(found.rollout) > 1
    assert "replacing prefill-1" in found.rollout[0]


def test_a_new_image_is_a_new_revision_with_its_own_services() -> None:
    found = compared(edited(engine={"image": "enginesim:2", "version": "0.33.0"}))
    assert any("new revision" in line for line in found.words)
    created = [name for name, action in actions(found).items() if action is Action.CREATE]
    assert len(created) == 2
    assert all(name.startswith("Service/chat-") for name in created)
    assert Action.DELETE not in actions(found).values(), "the old revision's pods are still there"


def test_paused_holds() -> None:
    found = compared(edited(engine={"image": "enginesim:2", "version": "0.33.0"}, rollout={"paused": True}))
    assert found.rollout == ["held: spec.rollout.paused is true"]


def test_settings_of_the_router_restart_nothing() -> None:
    found = compared(edited(router={"holdoutPercent": 5}))
    assert found.words == ["router: reads its new settings without a restart, within a minute or so"]
    assert (found.restarts, found.rollout) == ([], [])
    (child,) = found.children
    assert "-    holdoutPercent: 0\n+    holdoutPercent: 5\n" in child.diff


def test_another_router_image_replaces_its_pods() -> None:
    found = compared(edited(router={"image": "router:2"}))
    assert found.words == ["router: replaces its pods one after another; running streams finish first"]


def test_size_alone_restarts_nothing() -> None:
    found = compared(edited(decode={"replicas": 3, "gpus": 0}))
    assert found.words == ["decode: 2 -> 3 pods"]
    assert found.restarts == []
    found = compared(edited(decode={"replicas": 0, "gpus": 0}))
    assert found.words[0] == "decode: 2 -> 0 pods"
    assert actions(found)["PodDisruptionBudget/chat-decode"] is Action.DELETE


def test_a_resource_of_another_version_of_the_crd_is_compared_by_the_record_of_ownership() -> None:
    live, *others = started(LIVE)
    found = compared(edited(router={"holdoutPercent": 5}), [live | {"spec": LIVE["spec"] | {"new": 1}}, *others])
    assert found.spec == ["spec.new: 1 -> absent", "spec.router.holdoutPercent: 0 -> 5"]
    assert actions(found) == {"ConfigMap/chat-router": Action.CHANGE}


def test_a_first_apply_creates_everything() -> None:
    found = changes(LIVE, None, [], observed([], [], 0), CONFIG)
    assert set(actions(found).values()) == {Action.CREATE}
    assert "prefill: no -> 2 pods" in found.words
    assert found.spec == []


def test_what_another_hand_changed_is_shown_as_put_back() -> None:
    objects = started(LIVE)
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "router:hacked"
    deployment["metadata"]["annotations"] = {}
    (child,) = compared(LIVE, objects).children
    assert "-        image: router:hacked\n" in child.diff


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster(*started(LIVE), operator())
    connect(monkeypatch, cluster)
    return cluster


def file(path: Path, *bodies: Body) -> Path:
    """As a user writes it: without what the cluster adds."""
    plain = [{**body, "metadata": {"name": body["metadata"]["name"]}} for body in bodies]
    path.write_text(yaml.safe_dump_all(plain))
    return path


def test_no_change_ends_with_0(cluster: Cluster, tmp_path: Path) -> None:
    result = run("diff", "-f", file(tmp_path / "chat.yaml", LIVE))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "nothing changes" in result.stdout


def test_a_change_ends_with_1_and_is_told_in_words_and_lines(cluster: Cluster, tmp_path: Path) -> None:
    result = run("diff", "-f", file(tmp_path / "chat.yaml", edited(router={"holdoutPercent": 5}), resource("new")))
    assert result.exit_code == 1
    for text in (
        "team/chat\n  spec.router.holdoutPercent: 0 -> 5\n",
        "children: 1 to change",
        "--- live/ConfigMap/chat-router\n+++ planned/ConfigMap/chat-router\n",
        "team/new",
        "+kind: StatefulSet",
    ):
        assert text in result.stdout


def test_json(cluster: Cluster, tmp_path: Path) -> None:
    result = run(
        "diff", "-o", "json", "-f", file(tmp_path / "chat.yaml", edited(engine={"image": "b", "version": "0.33"}))
    )
    (found,) = json.loads(result.stdout)
    assert (found["namespace"], found["name"], len(found["restarts"])) == ("team", "chat", 4)
    assert {child["action"] for child in found["children"]} == {"create", "change"}
    assert result.exit_code == 1


def test_the_operators_settings_count(cluster: Cluster, tmp_path: Path) -> None:
    path = file(tmp_path / "chat.yaml", LIVE)
    cluster.add(operator("--router-image=mirror/router:9"))
    assert "+        image: mirror/router:9" in run("diff", "-f", path).stdout
    cluster.add(operator("--of-another-version"))
    result = run("diff", "-f", path)
    assert (result.exit_code, "settings cannot be read" in result.stderr) == (0, True)
    cluster.add(operator("--router-image=x", "--namespace=elsewhere"))
    assert "settings cannot be read" in run("diff", "-f", path).stderr


def test_without_the_right_to_see_the_operator(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forbidden(_: object) -> None:
        raise ForbiddenError("no")

    monkeypatch.setattr("kvloop.cli.diff.installations", forbidden)
    result = run("diff", "-f", file(tmp_path / "chat.yaml", LIVE))
    assert (result.exit_code, "compared with its defaults" in result.stderr) == (0, True)


def test_an_operator_of_another_version_is_told(cluster: Cluster, tmp_path: Path) -> None:
    cluster.add(operator(image="kvloop/operator:9.9.9"))
    assert "the operator is of version 9.9.9" in run("diff", "-f", file(tmp_path / "chat.yaml", LIVE)).stderr


def test_what_cannot_be_compared_ends_with_2(cluster: Cluster, tmp_path: Path) -> None:
    assert run("diff", "-f", tmp_path / "none.yaml").exit_code == 2
    refused = run("diff", "-f", file(tmp_path / "bad.yaml", edited(transfer={"fabric": "Push"})))
    assert (refused.exit_code, "spec.transfer.fabric" in refused.stderr) == (2, True)
    cluster.objects.clear()
    cluster.errors["DisaggregatedInference"] = NotFoundError("404 page not found", 404)
    missing = run("diff", "-f", file(tmp_path / "chat.yaml", LIVE))
    assert (missing.exit_code, "not installed" in missing.stderr) == (2, True)
