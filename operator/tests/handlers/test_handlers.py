"""The shell around Kopf: what it is told, that it holds no logic, and that our Role covers what it watches."""

import ast
import gc
import inspect
import logging
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import kopf
import pytest
import yaml

from kvloop.controller.settings import Settings
from kvloop.handlers import main, memories, settings, watch
from kvloop.kube.kinds import CHILDREN, CUSTOM_RESOURCE, EVENT, LEASE, POD

INSTALL = Path(__file__).parents[3] / "manifests" / "install.yaml"


class Recorder:
    """Stands for the operator."""

    children = CHILDREN

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def see(self, body: Any) -> None:
        self.calls.append(("see", body))

    def forget(self, body: Any) -> None:
        self.calls.append(("forget", body))

    async def stop(self) -> None:
        self.calls.append(("stop", None))


@pytest.fixture
def operator() -> Recorder:
    return Recorder()


@pytest.fixture
def registry(operator: Recorder) -> kopf.OperatorRegistry:
    return watch.registry(cast("Any", operator))


async def test_events_are_handed_on(operator: Recorder, registry: kopf.OperatorRegistry) -> None:
    handlers = tuple(registry._watching.get_all_handlers())
    assert len(handlers) == len(CHILDREN) + 3
    for kind, call in ((None, "see"), ("ADDED", "see"), ("MODIFIED", "see"), ("DELETED", "forget")):
        body = {"kind": "Pod", "metadata": {"name": "chat"}}
        await cast("Any", handlers[0].fn)(event={"type": kind, "object": body}, other="ignored")
        assert operator.calls.pop() == (call, body)


async def test_of_an_object_only_what_kopf_needs_outlives_its_event(registry: kopf.OperatorRegistry) -> None:
    (handler, *_) = registry._watching.get_all_handlers()
    meta = {"name": "chat", "uid": "1", "resourceVersion": "7", "labels": {"app": "chat"}}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta | {"managedFields": [{}]}, "spec": {}, "status": {}}
    await cast("Any", handler.fn)(event={"type": "MODIFIED", "object": body})
    assert body == {"apiVersion": "v1", "kind": "Pod", "metadata": meta}


async def test_kopf_remembers_no_object() -> None:
    kept = memories.NoMemories()
    body = cast("Any", {"metadata": {"uid": "1"}})
    assert (await kept.recall(body, noticed_by_listing=True)).noticed_by_listing
    assert not list(kept.iter_all_memories())
    await kept.forget(body)


async def test_the_end_of_kopf_is_the_end_of_the_operator(operator: Recorder, registry: kopf.OperatorRegistry) -> None:
    cleanup = [
        each for each in registry._activities.get_all_handlers() if each.activity and each.activity.value == "cleanup"
    ]
    await cast("Any", cleanup[0].fn)()
    assert operator.calls == [("stop", None)]


def test_no_handler_keeps_state_on_objects(registry: kopf.OperatorRegistry) -> None:
    assert not registry._changing.get_all_handlers()
    assert not registry._spawning.get_all_handlers()
    assert not registry._indexing.get_all_handlers()


def test_kopfs_settings_are_stated() -> None:
    theirs = settings.settings(Settings(request_seconds=17))
    assert theirs.networking.request_timeout == 17
    assert theirs.watching.inactivity_timeout == 70
    assert theirs.queueing.worker_limit is None
    assert theirs.scanning.disabled
    assert not theirs.posting.enabled
    assert theirs.persistence.finalizer == "kvloop.io/unused"


def test_every_watch_of_a_built_in_kind_is_filtered_by_the_server() -> None:
    theirs = settings.settings(Settings(namespace=("team",)))
    selected = {str(selector) for selector in theirs.watching.label_selectors}
    for kind in (POD, *CHILDREN):
        assert any(kind.plural in each for each in selected), kind
    (lease,) = theirs.watching.field_selectors.values()
    assert lease == "metadata.name=kvloop-operator,metadata.namespace=team"


def test_backoffs_can_be_gone_through_again_and_have_jitter() -> None:
    backoffs = settings.Backoffs()
    first, second = list(backoffs), list(backoffs)
    assert len(first) == len(backoffs) == 14
    assert first != second
    assert 0.75 <= first[0] <= 1.25
    assert 22.5 <= first[-1] <= 37.5


def test_kopf_stores_nothing() -> None:
    storage, progress = settings.NoDiffBase(), settings.NoProgress()
    patch = kopf.Patch()
    storage.store(patch=patch)
    for change in (progress.store, progress.purge, progress.touch):
        change(patch=patch)
    assert not patch
    assert storage.build(body={"spec": {}}) == {}
    essence = kopf.BodyEssence()
    assert progress.clear(essence=essence) is essence


@pytest.mark.parametrize("module", [main, memories, settings, watch])
def test_no_function_here_is_longer_than_fifteen_lines(module: ModuleType) -> None:
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.body[0].lineno + 1
            nested = any(isinstance(each, ast.AsyncFunctionDef) for each in node.body)
            assert lines <= (20 if nested else 15), node.name


def test_causes_of_a_group() -> None:
    group = ExceptionGroup("", [ValueError("a"), ExceptionGroup("", [KeyError("b")])])
    assert [type(cause) for cause in main.causes(group)] == [ValueError, KeyError]


@pytest.fixture
def clean_logging() -> Iterator[None]:
    root, kopfs = logging.getLogger(), logging.getLogger("kopf")
    before = root.handlers[:], root.level, kopfs.level
    yield
    root.handlers[:], level, kopf_level = before
    root.setLevel(level)
    kopfs.setLevel(kopf_level)


@pytest.mark.usefixtures("clean_logging")
@pytest.mark.parametrize(
    ("form", "expected"),
    [("json", '"object": {"name": "chat", "namespace": "team"}'), ("text", "[team/chat] hello")],
)
def test_log_lines_name_their_object(form: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    main.configure_logs(Settings(log_format=form))
    logging.getLogger("kvloop.test").info("hello", extra={"k8s_ref": {"name": "chat", "namespace": "team"}})
    logging.getLogger("kopf.objects").info("handler succeeded")
    text = capsys.readouterr().err
    assert expected in text
    assert "handler succeeded" not in text


@pytest.fixture
def clean_interpreter() -> Iterator[None]:
    """What a process sets for itself alone goes back to what it was."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("clean_logging", "clean_interpreter")
def test_failing_to_start_ends_with_1_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", "/does/not/exist")
    with pytest.raises(SystemExit) as end:
        main.main(["--metrics-port=0", "--liveness-port=0"])
    assert end.value.code == 1
    assert "no usable kubeconfig" in capsys.readouterr().err


def installed(kind: str, name: str = "kvloop-operator") -> dict[str, Any]:
    objects = yaml.safe_load_all(INSTALL.read_text(encoding="utf-8"))
    return next(each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))


def rules() -> list[dict[str, list[str]]]:
    found: list[dict[str, list[str]]] = installed("ClusterRole")["rules"]
    return found


def granted(group: str, resource: str) -> set[str]:
    return {
        verb
        for rule in rules()
        if group in rule["apiGroups"] and resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_role_covers_every_kind_and_has_no_wildcard_and_no_secret() -> None:
    for kind in CHILDREN:
        assert granted(kind.group, kind.plural) == {"get", "list", "watch", "create", "patch", "delete"}, kind
    assert granted(CUSTOM_RESOURCE.group, CUSTOM_RESOURCE.plural) == {"get", "list", "watch"}
    assert granted(POD.group, POD.plural) == {"get", "list", "watch", "delete"}
    assert granted(LEASE.group, LEASE.plural) == {"get", "list", "watch", "patch", "create"}
    assert granted(EVENT.group, EVENT.plural) == {"create", "list"}
    words = {word for rule in rules() for words in rule.values() for word in words}
    assert not {"*", "secrets"} & words


def test_the_pod_is_restricted_and_the_only_one() -> None:
    spec = installed("Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["resources"].keys() == {"requests", "limits"}
