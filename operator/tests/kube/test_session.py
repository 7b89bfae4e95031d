"""What a person asks of a cluster, on the wire."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from kubernetes.aio.client import ApiClient

from kvloop.kube.errors import ForbiddenError, KubeError, NotFoundError, UnavailableError
from kvloop.kube.kinds import CUSTOM_RESOURCE, POD, Kind
from kvloop.kube.session import TIMING, Session

from .server import Server, status

NODE = Kind("v1", "Node", "nodes")


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def session(server: Server) -> AsyncIterator[Session]:
    async with server.running() as configuration:
        configuration.api_key["authorization"] = "secret"
        configuration.api_key_prefix["authorization"] = "Bearer"
        timing = replace(TIMING, attempts=1)
        async with Session(ApiClient(configuration), "team", timing) as session:
            yield session


async def test_version_and_groups(session: Session, server: Server) -> None:
    server.answers = [web.json_response({"gitVersion": "v1.34.2"}), web.json_response({}), status(404, "no")]
    assert await session.version() == "v1.34.2"
    assert await session.serves("resource.k8s.io/v1")
    assert not await session.serves("resource.k8s.io/v1")
    assert [request[1] for request in server.requests] == ["/version", *["/apis/resource.k8s.io/v1"] * 2]


async def test_lists_come_whole_and_say_what_they_hold(session: Session, server: Server) -> None:
    server.answers = [
        web.json_response({"metadata": {"continue": "more"}, "items": [{"metadata": {"name": "a"}}]}),
        web.json_response({"metadata": {}, "items": None}),
    ]
    (node,) = await session.list(NODE, labels="a=b")
    assert node == {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}
    first, second = server.requests
    assert (first[1], first[2]["labelSelector"]) == ("/api/v1/nodes", "a=b")
    assert second[2]["continue"] == "more"


async def test_existence_is_asked_without_the_content(session: Session, server: Server) -> None:
    server.answers = [web.json_response({"kind": "PartialObjectMetadata"}), status(404, "no"), status(403, "no")]
    secret = Kind("v1", "Secret", "secrets")
    assert await session.exists(secret, "team", "token")
    assert server.requests[0][4]["Accept"].startswith("application/json;as=PartialObjectMetadata;")
    assert not await session.exists(secret, "team", "token")
    with pytest.raises(ForbiddenError):
        await session.exists(secret, "team", "token")


async def test_rights_are_asked_for(session: Session, server: Server) -> None:
    server.answers = [
        web.json_response({"status": {"allowed": True}}),
        web.json_response({"status": {"allowed": False}}),
    ]
    assert await session.may("create", CUSTOM_RESOURCE, "team")
    assert not await session.may("create", POD, "team", "proxy")
    wanted = [request[3]["spec"]["resourceAttributes"] for request in server.requests]
    assert wanted == [
        {"verb": "create", "group": "kvloop.io", "resource": "disaggregatedinferences", "namespace": "team"},
        {"verb": "create", "group": "", "resource": "pods", "namespace": "team", "subresource": "proxy"},
    ]


async def test_a_dry_run_stores_nothing(session: Session, server: Server) -> None:
    await session.dry_run(CUSTOM_RESOURCE, "team", {"metadata": {"name": "chat"}})
    method, path, query, _, headers = server.requests[0]
    assert (method, path.rpartition("/")[2], headers["Content-Type"]) == (
        "PATCH",
        "chat",
        "application/apply-patch+yaml",
    )
    assert query["dryRun"] == "All"
    assert query["fieldManager"] != "kvloop", "a trial is nobody's edit"


async def test_logs_are_text(session: Session, server: Server) -> None:
    server.answers = [web.Response(text="one\ntwo\n")]
    assert await session.logs("team", "chat-0", "vllm", lines=20, previous=True) == "one\ntwo\n"
    _, path, query, _, _ = server.requests[0]
    assert path == "/api/v1/namespaces/team/pods/chat-0/log"
    assert query == {"container": "vllm", "tailLines": "20", "limitBytes": "81920", "previous": "true"}


async def test_pods_are_asked_through_the_api_server(session: Session, server: Server) -> None:
    server.answers = [web.json_response({"text": "hi"}), web.Response(text="no such path", status=404)]
    answer = await session.ask("team", "chat-0", 8000, "/v1/x?a=b", body={"n": 1}, headers={"X-Api-Key": "k"})
    assert (answer.status, answer.text) == (200, '{"text": "hi"}')
    method, path, query, body, headers = server.requests[0]
    assert (method, path, query) == ("POST", "/api/v1/namespaces/team/pods/chat-0:8000/proxy/v1/x", {"a": "b"})
    assert (body, headers["X-Api-Key"], headers["Authorization"]) == ({"n": 1}, "k", "Bearer secret")
    assert await session.ask("team", "chat-0", 8000, "/y") == (404, "no such path")
    assert server.requests[1][0] == "GET"


@pytest.mark.parametrize(("code", "error"), [(503, UnavailableError), (403, ForbiddenError), (404, NotFoundError)])
async def test_what_the_api_server_says_itself_is_an_error(
    session: Session, server: Server, code: int, error: type[Exception]
) -> None:
    server.answers = [status(code, "error trying to reach service")]
    with pytest.raises(error, match="trying to reach"):
        await session.ask("team", "chat-0", 8000, "/metrics")


def kubeconfig(path: Path, server: str, **context: str) -> str:
    body = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", **context}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path.write_text(yaml.safe_dump(body))
    return str(path)


async def test_a_context_names_server_and_namespace(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path / "config", "https://somewhere:6443", namespace="team")
    async with await Session.open(file) as session:
        assert (session.server, session.namespace) == ("https://somewhere:6443", "team")
    async with await Session.open(kubeconfig(tmp_path / "other", "http://a"), "here") as session:
        assert session.namespace == "default"
    with pytest.raises(UnavailableError, match=r"no usable kubeconfig.*there"):
        await Session.open(file, "there")
    with pytest.raises(UnavailableError, match="no usable kubeconfig"):
        await Session.open(str(tmp_path / "none"))


async def test_no_server(tmp_path: Path) -> None:
    async with await Session.open(kubeconfig(tmp_path / "config", "http://127.0.0.1:1")) as session:
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1"):
            await session.ask("team", "p", 1, "/")


SUCCESS = b'\x03{"status": "Success"}'


@pytest.mark.parametrize(
    ("frames", "printed"),
    [
        ([b"\x01", b"\x01one ", b"\x02noise", b"\x01two", SUCCESS], "one two"),
        ([b'\x03{"status": "Failure", "message": "exit code 1"}'], "exit code 1"),
        ([b"\x01half"], "cut off"),
    ],
)
async def test_a_command_in_a_container(frames: list[bytes], printed: str) -> None:
    asked: list[tuple[str, list[str], bytes]] = []

    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        asked.append((request.path, request.query.getall("command"), await socket.receive_bytes()))
        for frame in frames:
            await socket.send_bytes(frame)
        await socket.close()
        return socket

    server = Server()
    server.handle = serve  # type: ignore[method-assign,assignment]  # the same routes, another protocol
    async with server.running() as configuration, Session(ApiClient(configuration), "team") as session:
        command = session.run("team", "chat-0", "router", ["python3", "-c", "x y"], "line")
        if SUCCESS in frames:
            assert await command == printed
        else:
            with pytest.raises(UnavailableError, match=printed):
                await command
    assert asked == [("/api/v1/namespaces/team/pods/chat-0/exec", ["python3", "-c", "x y"], b"\x00line\n")]


@pytest.mark.parametrize(("code", "error"), [(403, ForbiddenError), (404, NotFoundError), (500, KubeError)])
async def test_a_command_that_may_not_run(session: Session, server: Server, code: int, error: type[KubeError]) -> None:
    server.answers = [status(code, "no")]
    with pytest.raises(error):
        await session.run("team", "chat-0", "router", ["x"], "")
