"""The user's pod template over the generated one."""

from copy import deepcopy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvloop.plan.merge import merge

BASE = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "containers": [
            {
                "name": "vllm",
                "args": ["x"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 (no temporary file)
                "ports": [{"name": "http", "containerPort": 8000}],
            }
        ],
        "tolerations": [{"key": "gpu"}],
        "volumes": [{"name": "shm", "emptyDir": {}}],
    },
}


def merged(**spec: Any) -> dict[str, Any]:
    result: dict[str, Any] = merge(BASE, {"spec": spec})["spec"]
    return result


def test_objects_merge_and_scalars_win() -> None:
    result = merge(BASE, {"metadata": {"labels": {"b": "2", "a": "3"}, "annotations": {"c": "4"}}})
    assert result["metadata"] == {"labels": {"a": "3", "b": "2"}, "annotations": {"c": "4"}}
    assert result["spec"] == BASE["spec"]


def test_null_removes() -> None:
    assert "volumes" not in merged(volumes=None)
    assert merge({}, {"absent": None}) == {}


def test_a_container_of_the_same_name_merges_and_another_is_appended() -> None:
    engine, sidecar = merged(containers=[{"name": "logs", "image": "l"}, {"name": "vllm", "tty": True}])["containers"]
    assert engine == {**BASE["spec"]["containers"][0], "tty": True}  # type: ignore[index]  # BASE is plain data
    assert sidecar == {"name": "logs", "image": "l"}


def test_lists_within_a_container_merge_by_their_own_keys() -> None:
    patch = {
        "name": "vllm",
        "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}],
        "volumeMounts": [{"mountPath": "/data", "name": "data"}],
        "ports": [
            {"containerPort": 8000, "protocol": "TCP", "hostPort": 1},
            {"containerPort": 8000, "protocol": "UDP"},
        ],
    }
    [engine] = merged(containers=[patch])["containers"]
    assert [(variable["name"], variable["value"]) for variable in engine["env"]] == [("A", "1"), ("B", "3"), ("C", "4")]
    assert [mount["mountPath"] for mount in engine["volumeMounts"]] == ["/dev/shm", "/data"]  # noqa: S108 (as above)
    assert [(port.get("name"), port.get("protocol")) for port in engine["ports"]] == [("http", "TCP"), (None, "UDP")]


def test_other_lists_are_replaced() -> None:
    assert merged(tolerations=[{"key": "other"}])["tolerations"] == [{"key": "other"}]
    assert merged(containers=[{"name": "vllm", "args": ["y"]}])["containers"][0]["args"] == ["y"]


def test_nonsense_is_left_to_the_api_server() -> None:
    assert merged(containers="none")["containers"] == "none"
    assert merged(containers=["x"])["containers"] == ["x"]
    assert merged(containers=[{"image": "nameless"}])["containers"] == [{"image": "nameless"}]
    assert merge({"spec": 1}, {"spec": {"a": 2}}) == {"spec": {"a": 2}}


PLAIN = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "containers", "env", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECT = st.dictionaries(st.sampled_from(["name", "containers", "env", "ports", "x"]), PLAIN, max_size=4)


@given(OBJECT, OBJECT)
def test_changes_neither_side_and_ends_at_once(base: dict[str, Any], patch: dict[str, Any]) -> None:
    before = deepcopy((base, patch))
    once = merge(base, patch)
    assert (base, patch) == before
    assert merge(once, patch) == once
