"""The client on the wire, against a server that answers what the test says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from kvloop.kube.dynamic import DynamicKube, connect
from kvloop.kube.errors import ConflictError, InvalidError, NotFoundError, ServerError, UnavailableError
from kvloop.kube.kinds import CHILDREN, CUSTOM_RESOURCE, KINDS, POD
from kvloop.kube.transport import Timing

from .server import Server, status

TIMING = Timing(
    request_seconds=60,
    connect_seconds=60,
    attempts=3,
    backoff_seconds=0.001,
    backoff_limit_seconds=0.05,
    page_size=2,
    connections=4,
)
CONFIG_MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "a", "namespace": "team"},
    "data": {"unknown": "fields pass"},
    "future": True,
}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def calls() -> list[tuple[str, str, int]]:
    return []


@asynccontextmanager
async def client(server: Server, calls: list[tuple[str, str, int]], timing: Timing) -> AsyncIterator[DynamicKube]:
    async with server.running() as configuration:
        made = DynamicKube(
            ApiClient(configuration), timing, lambda verb, kind, code, _: calls.append((verb, kind, code))
        )
        yield made
        await made.close()


@pytest.fixture
async def kube(server: Server, calls: list[tuple[str, str, int]]) -> AsyncIterator[DynamicKube]:
    async with client(server, calls, TIMING) as made:
        yield made


async def test_apply_is_server_side_with_force_and_our_name_and_leaves_the_body_alone(
    kube: DynamicKube, server: Server, calls: list[tuple[str, str, int]]
) -> None:
    server.answers = [web.json_response({"stored": True})]
    assert await kube.apply(CONFIG_MAP) == {"stored": True}
    ((method, path, query, body, headers),) = server.requests
    assert (method, path) == ("PATCH", "/api/v1/namespaces/team/configmaps/a")
    assert query == {"fieldManager": "kvloop", "force": "true"}
    assert headers["Content-Type"] == "application/apply-patch+yaml"
    assert body == CONFIG_MAP
    assert calls == [("apply", "ConfigMap", 200)]


async def test_a_new_object_is_applied_with_a_version_that_no_other_has(kube: DynamicKube, server: Server) -> None:
    await kube.apply(CONFIG_MAP, new=True)
    assert server.requests[0][3]["metadata"]["resourceVersion"] == "1"
    assert "resourceVersion" not in CONFIG_MAP["metadata"]  # type: ignore[operator]  # a dict
    server.answers = [status(409, "the object has been modified")]
    with pytest.raises(ConflictError):
        await kube.apply(CONFIG_MAP, new=True)


async def test_subresources(kube: DynamicKube, server: Server) -> None:
    resource = {"apiVersion": "kvloop.io/v1alpha1", "kind": "DisaggregatedInference"}
    await kube.apply_status(resource | {"metadata": {"name": "chat", "namespace": "team"}, "status": {}})
    await kube.apply_scale("StatefulSet", "team", "chat-prefill", 3)
    assert [request[1] for request in server.requests] == [
        "/apis/kvloop.io/v1alpha1/namespaces/team/disaggregatedinferences/chat/status",
        "/apis/apps/v1/namespaces/team/statefulsets/chat-prefill/scale",
    ]
    assert server.requests[1][3]["spec"] == {"replicas": 3}


async def test_delete_takes_only_the_object_that_was_meant(kube: DynamicKube, server: Server) -> None:
    await kube.delete("Pod", "team", "p", "uid-7")
    ((method, path, _, body, _),) = server.requests
    assert (method, path) == ("DELETE", "/api/v1/namespaces/team/pods/p")
    assert body == {"propagationPolicy": "Background", "preconditions": {"uid": "uid-7"}}


async def test_metadata_comes_page_by_page_even_if_the_last_is_empty(kube: DynamicKube, server: Server) -> None:
    server.answers = [
        web.json_response({"metadata": {"continue": "more"}, "items": [{"metadata": {"uid": "1"}}]}),
        web.json_response({"metadata": {}, "items": None}),
    ]
    assert [each async for each in kube.metadata("Pod", None, "a=b")] == [{"uid": "1"}]
    first, second = server.requests
    assert first[1] == "/api/v1/pods"
    assert first[2] == {"labelSelector": "a=b", "limit": "2"}
    assert second[2] == {"labelSelector": "a=b", "limit": "2", "continue": "more"}
    assert first[4]["Accept"].startswith("application/json;as=PartialObjectMetadataList")


async def test_nodes_come_whole_and_a_few_at_a_time(kube: DynamicKube, server: Server) -> None:
    server.answers = [web.json_response({"metadata": {}, "items": [{"status": {}}]})]
    assert [each async for each in kube.nodes("a=b")] == [{"status": {}}]
    ((_, path, query, _, headers),) = server.requests
    assert (path, query) == ("/api/v1/nodes", {"labelSelector": "a=b", "limit": "50"})
    assert "PartialObjectMetadata" not in headers["Accept"]


async def test_warnings_are_of_one_object(kube: DynamicKube, server: Server) -> None:
    server.answers = [web.json_response({"metadata": {}, "items": None})]
    assert await kube.warnings("team", "uid-7") == []
    assert server.requests[0][2] == {"fieldSelector": "involvedObject.uid=uid-7,type=Warning"}


async def test_whether_an_api_is_served(kube: DynamicKube, server: Server) -> None:
    assert await kube.serves("monitoring.coreos.com/v1")
    assert server.requests[0][1] == "/apis/monitoring.coreos.com/v1"
    server.answers = [web.Response(text="404 page not found", status=404)]
    assert not await kube.serves("monitoring.coreos.com/v1")


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
async def test_what_passes_is_tried_again(
    kube: DynamicKube, server: Server, calls: list[tuple[str, str, int]], code: int
) -> None:
    server.answers = [status(code, "later"), status(code, "later"), web.json_response({"ok": 1})]
    assert await kube.get("Pod", "team", "p") == {"ok": 1}
    assert [call[2] for call in calls] == [code, code, 200]


async def test_trying_again_has_an_end(kube: DynamicKube, server: Server) -> None:
    server.answers = [status(503, "later")]
    with pytest.raises(UnavailableError, match="later"):
        await kube.get("Pod", "team", "p")
    server.answers = [status(500, "webhook is down")]
    with pytest.raises(ServerError, match="webhook"):
        await kube.get("Pod", "team", "p")
    assert len(server.requests) == 6


@pytest.mark.parametrize(("code", "error"), [(404, NotFoundError), (409, ConflictError), (422, InvalidError)])
async def test_what_does_not_pass_is_not_tried_again(
    kube: DynamicKube, server: Server, code: int, error: type[Exception]
) -> None:
    server.answers = [status(code, "no")]
    with pytest.raises(error):
        await kube.get("Pod", "team", "p")
    assert len(server.requests) == 1


async def test_the_wait_that_the_server_asks_for_is_kept_up_to_a_limit(kube: DynamicKube, server: Server) -> None:
    server.answers = [status(429, "later", **{"Retry-After": "3600"}), web.json_response({})]
    loop = asyncio.get_running_loop()
    begin = loop.time()
    async with asyncio.timeout(60):  # not the hour that is asked for
        await kube.get("Pod", "team", "p")
    assert loop.time() - begin >= TIMING.backoff_limit_seconds


async def test_a_server_that_does_not_answer_is_not_waited_for(
    server: Server, calls: list[tuple[str, str, int]]
) -> None:
    async def never() -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    server.answers = [never]
    async with client(server, calls, replace(TIMING, request_seconds=0.3)) as kube:
        with pytest.raises(UnavailableError, match="TimeoutError"):
            await kube.get("Pod", "team", "p")
    assert calls == [("get", "Pod", 0)] * 3


async def test_no_server_at_all() -> None:
    configuration = Configuration()
    configuration.host = "http://127.0.0.1:1"
    kube = DynamicKube(ApiClient(configuration), TIMING, lambda *_: None)
    with pytest.raises(UnavailableError, match="get /api/v1/namespaces/team/pods/p"):
        await kube.get("Pod", "team", "p")
    await kube.close()


async def test_an_answer_that_is_no_status_is_told_as_it_is(kube: DynamicKube, server: Server) -> None:
    server.answers = [web.Response(text="<html>proxy error</html>", status=502)]
    with pytest.raises(UnavailableError, match="proxy error"):
        await kube.get("Pod", "team", "p")


async def test_no_credentials_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", "/does/not/exist")
    with pytest.raises(UnavailableError, match="no usable kubeconfig"):
        await connect(TIMING, lambda *_: None)


def test_paths() -> None:
    assert POD.path() == "/api/v1/pods"
    assert (
        CUSTOM_RESOURCE.path("team", "chat") == "/apis/kvloop.io/v1alpha1/namespaces/team/disaggregatedinferences/chat"
    )
    assert (KINDS["StatefulSet"].group, KINDS["StatefulSet"].version, POD.group) == ("apps", "v1", "")
    assert len({kind.kind for kind in CHILDREN}) == len(CHILDREN)
