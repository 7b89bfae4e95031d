"""What a cache takes, ignores, tells and forgets."""

import asyncio
from collections.abc import Callable

import pytest

from kvloop.api.labels import KIND
from kvloop.controller.cache import GONE, Cache, Key, key_of
from kvloop.plan.observed import ChildRef

from .doubles import KEY, OWNER, Body, MemoryKube, owned, pod, resource


@pytest.fixture
def service(kube: MemoryKube) -> Body:
    return kube.put(owned("Service", "chat"))


def with_version(body: Body, version: int) -> Body:
    return body | {"metadata": body["metadata"] | {"resourceVersion": str(version)}}


def test_keys(service: Body) -> None:
    assert key_of(resource()) == KEY == key_of(service) == key_of(pod("p"))
    assert key_of({"kind": "Service", "metadata": {"name": "chat", "namespace": "team"}}) is None


def test_only_changes_of_interest_are_told(service: Body) -> None:
    cache = Cache()
    assert cache.see(service) == {KEY}
    assert cache.see(service) == set()
    assert cache.see(with_version(service, 1000)) == set()
    assert cache.see(with_version(service | {"metadata": service["metadata"] | {"generation": 7}}, 1001)) == {KEY}


def test_an_older_version_changes_nothing() -> None:
    cache = Cache()
    cache.see(resource(generation=2, version=20))
    assert cache.see(resource(generation=1, version=10)) == set()
    entry = cache.resource(KEY)
    assert entry is not None
    assert entry.generation == 2


def test_a_new_object_of_the_name_replaces_the_old_one_and_not_the_other_way_round(service: Body) -> None:
    cache = Cache()
    cache.see(service)
    anew = service | {"metadata": service["metadata"] | {"uid": "another", "resourceVersion": "1000"}}
    assert cache.see(anew) == {KEY}
    assert cache.see(with_version(service, 999)) == set(), "an event about the old one that comes late"
    assert cache.children(KEY)[ChildRef("Service", "chat")].uid == "another"
    assert cache.forget(service) == set(), "the end of the old one is no news about the new one"


@pytest.mark.parametrize("kind", ["Pod", "Service"])
def test_what_is_relabelled_to_another_resource_leaves_the_old_one(service: Body, kind: str) -> None:
    """Both get a pass: one has lost something, which the other has won."""
    cache, other = Cache(), Key(KEY.namespace, "other")
    body = pod("p") if kind == "Pod" else service
    cache.see(body)
    labels = {**body["metadata"]["labels"], "kvloop.io/name": other.name}
    moved = with_version(body | {"metadata": body["metadata"] | {"labels": labels}}, 1000)
    assert cache.see(moved) == {KEY, other}
    assert (cache.pods(KEY), cache.children(KEY)) == ((), {})
    assert [*cache.pods(other), *cache.children(other)]
    assert cache.see(moved) == set()
    assert cache.see(with_version(body, 999)) == set(), "an event about the old label that comes late"
    assert not [*cache.pods(KEY), *cache.children(KEY)]
    assert cache.forget(moved) == {other}


def test_what_has_gone_does_not_come_back(service: Body) -> None:
    cache = Cache()
    cache.see(pod("p"))
    cache.forget(pod("p", version=9))
    assert cache.see(pod("p", version=8)) == set(), "the answer to a write that was made before"
    assert not cache.pods(KEY)
    cache.see(service)
    cache.drop_child(KEY, ChildRef("Service", "chat"))
    assert cache.see(with_version(service, 999)) == set()
    assert not cache.children(KEY)


@pytest.mark.parametrize("gone", [lambda cache: cache.forget(pod("p", version=2)), lambda cache: cache.drop({"uid-p"})])
def test_what_lost_its_labels_comes_back_with_them(gone: Callable[[Cache], object]) -> None:
    cache = Cache()
    cache.see(pod("p"))
    gone(cache)
    assert not cache.pods(KEY)
    assert cache.see(pod("p", version=3)) == {KEY}
    assert cache.see(pod("p", version=2)) == set()


def test_not_all_that_has_gone_is_remembered_for_ever(service: Body) -> None:
    cache = Cache()
    cache.forget(service)
    assert cache.see(service) == set()
    for number in range(GONE):
        cache.forget(pod(str(number)))
    assert cache.see(service) == {KEY}, "whose uid is forgotten by now"


def test_a_resource_comes_back_as_it_was_without_what_is_not_needed() -> None:
    cache = Cache()
    cache.see(resource(status={"observedGeneration": 3}))
    entry = cache.resource(KEY)
    assert entry is not None
    body = entry.to_body()
    assert "managedFields" not in body["metadata"]
    assert (body["spec"], entry.to_status()) == ({"model": {"name": "m"}}, {"observedGeneration": 3})


def test_a_foreign_edit_of_the_status_is_told() -> None:
    cache = Cache()
    cache.see(resource())
    assert cache.see(resource(version=2, status={"observedGeneration": 5})) == {KEY}


def test_forgetting(service: Body) -> None:
    cache = Cache()
    for body in (resource(), service, pod("p")):
        cache.see(body)
        assert cache.forget(body) == {KEY}
        assert cache.forget(body) == set()
    assert cache.resource(KEY) is None
    assert not cache.children(KEY)
    assert not cache.pods(KEY)
    assert not cache.resources()


def test_a_pod_told_to_go_counts_as_going_until_the_watch_shows_it() -> None:
    cache = Cache()
    cache.see(pod("p"))
    cache.mark_deleting(KEY, "p")
    (entry,) = cache.pods(KEY)
    assert entry.pod.deleting
    cache.see(pod("p", version=2))
    (entry,) = cache.pods(KEY)
    assert entry.pod.deleting, "an event from before"
    cache.forget(pod("p", version=3))
    cache.see(pod("p") | {"metadata": pod("p")["metadata"] | {"uid": "another"}})
    (entry,) = cache.pods(KEY)
    assert not entry.pod.deleting


def test_versions_and_drop(service: Body) -> None:
    cache = Cache()
    for body in (resource(), service, pod("p"), pod("q")):
        cache.see(body)
    assert cache.versions("Pod") == {"uid-p": 1, "uid-q": 1}
    assert cache.versions(KIND) == {OWNER: 1}
    assert cache.drop({"uid-p", OWNER, "unknown"}) == {KEY}
    assert cache.versions("Pod") == {"uid-q": 1}
    assert cache.resource(KEY) is None


async def test_arrival_waits_for_versions_and_for_ends() -> None:
    cache = Cache()
    cache.see(pod("p", version=5))
    assert await cache.arrival({"uid-p": 5}, 1)
    waiting = asyncio.create_task(cache.arrival({"uid-p": 6, "uid-q": 1, "uid-r": 9}, 60))
    await asyncio.sleep(0)
    cache.see(pod("p", version=7))
    cache.see(pod("q", version=1))
    assert not waiting.done()
    cache.forget(pod("r", version=2))
    assert await waiting


async def test_arrival_gives_up() -> None:
    assert not await Cache().arrival({"uid-p": 1}, 0.01)


def test_log_lines_name_the_resource() -> None:
    reference = Key("team", "chat").extra["k8s_ref"]
    assert (reference["kind"], reference["namespace"], reference["name"]) == (KIND, "team", "chat")
