"""What a person may ask of a cluster from a laptop: reads, trials, and requests to pods through the API server."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

import kvloop
from kvloop.kube.client import Body
from kvloop.kube.errors import NotFoundError, UnavailableError, from_status
from kvloop.kube.kinds import POD, Kind
from kvloop.kube.transport import Answer, Timing, Transport, status_of

TIMING: Final = Timing(
    request_seconds=60,
    connect_seconds=10,
    attempts=2,
    backoff_seconds=0.5,
    backoff_limit_seconds=5,
    page_size=500,
    connections=16,
)
"""A person waits: one more try, and then an error."""

METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Session:
    """A cluster, as a context of a kubeconfig names it; `async with await Session.open()`. Methods raise `KubeError`.

    Attributes:
        server: URL of the API server.
        namespace: Of the context; where a command looks that was told no other.
    """

    def __init__(self, api: Any, namespace: str, timing: Timing = TIMING) -> None:
        self.server: str = api.configuration.host
        self.namespace = namespace
        self._transport = Transport(api, timing, lambda *_: None)

    @classmethod
    async def open(cls, kubeconfig: str | None = None, context: str | None = None) -> "Session":
        """With the kubeconfig and context that kubectl would use, or, in a pod without one, its service account.

        Raises:
            UnavailableError: there are no credentials.
        """
        target = Configuration()
        try:
            loader: Any = await config.load_kube_config(  # type: ignore[no-untyped-call]  # the client has no types here
                kubeconfig, context, client_configuration=target, persist_config=False
            )
            namespace = loader.current_context["context"].get("namespace") or "default"
        except (config.ConfigException, OSError) as error:
            if kubeconfig or context or not _NAMESPACE_FILE.exists():
                raise UnavailableError(f"no usable kubeconfig: {error}") from error
            config.load_incluster_config(target)  # type: ignore[no-untyped-call]  # as above
            namespace = _NAMESPACE_FILE.read_text(encoding="utf-8").strip()
        target.connection_pool_maxsize = TIMING.connections
        api = ApiClient(target)
        api.user_agent = f"kvloop-cli/{kvloop.__version__}"
        return cls(api, namespace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.close()

    async def version(self) -> str:
        """Version of the API server, such as v1.34.2."""
        kind = Kind("", "Version", "version")
        return str((await self._transport.json("get", kind, "/version"))["gitVersion"])

    async def serves(self, api_version: str) -> bool:
        """Whether the API server has this group and version."""
        kind = Kind(api_version, "APIResourceList", "")
        try:
            await self._transport.json("get", kind, kind.path().rstrip("/"))
        except NotFoundError:
            return False
        return True

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Body:
        """One object; without a namespace for kinds of the cluster."""
        return await self._transport.json("get", kind, kind.path(namespace, name))

    async def exists(self, kind: Kind, namespace: str | None, name: str) -> bool:
        """Whether an object is there. Only its metadata is asked for, so that no Secret's content is ever read."""
        try:
            path = kind.path(namespace, name)
            await self._transport.json("get", kind, path, header_params={"Accept": METADATA})
        except NotFoundError:
            return False
        return True

    async def list(self, kind: Kind, namespace: str | None = None, *, labels: str = "") -> list[Body]:
        """All objects of a kind with these labels; in all namespaces if `namespace` is None."""
        found: list[Body] = []
        token = None
        while True:
            page = await self._transport.json(
                "list",
                kind,
                kind.path(namespace),
                label_selector=labels or None,
                limit=self._transport.timing.page_size,
                _continue=token,
            )
            # The items of a list do not say what they are.
            found += [{"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in page["items"] or ()]
            token = page["metadata"].get("continue")
            if not token:
                return found

    async def may(self, verb: str, kind: Kind, namespace: str, subresource: str = "") -> bool:
        """Whether whoever asks may do this."""
        wanted = {"verb": verb, "group": kind.group, "resource": kind.plural, "namespace": namespace}
        review = Kind("authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews")
        body = {
            "apiVersion": review.api_version,
            "kind": review.kind,
            "spec": {"resourceAttributes": wanted | ({"subresource": subresource} if subresource else {})},
        }
        answer = await self._transport.json("create", review, review.path(), body=body)
        return bool(answer["status"]["allowed"])

    async def dry_run(self, kind: Kind, namespace: str, body: Body) -> Body:
        """What server-side apply would store, with all checks of the API server, without storing it."""
        path = kind.path(namespace, body["metadata"]["name"])
        options = {"content_type": "application/apply-patch+yaml", "field_manager": "kvloop-cli"}
        return await self._transport.json(
            "apply", kind, path, body=body, dry_run="All", force_conflicts=True, **options
        )

    async def logs(self, namespace: str, pod: str, container: str, *, lines: int, previous: bool = False) -> str:
        """The last lines of a container's log; with `previous`, of the one that ran before it."""
        query = f"container={container}&tailLines={lines}&limitBytes={lines * 4096}" + "&previous=true" * previous
        return await self._transport.text(POD, f"{POD.path(namespace, pod, 'log')}?{query}")

    async def ask(
        self,
        namespace: str,
        pod: str,
        port: int,
        path: str,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Any answer of an HTTP server in a pod, as the API server passes it on: GET, or POST with a body.

        Works from wherever the API server can be reached. It takes an Authorization header for itself.

        Raises:
            UnavailableError: the pod cannot be reached, such as where a NetworkPolicy keeps the API server out.
            ForbiddenError: whoever asks may not.
        """
        method = "GET" if body is None else "POST"
        where = f"{POD.path(namespace, f'{pod}:{port}', 'proxy')}{path}"
        answer = await self._transport.once(method, where, body=body, headers=headers)
        if answer.status >= 400 and (status := status_of(answer.text)).get("kind") == "Status":
            raise from_status(answer.status, status)
        return answer

    async def run(self, namespace: str, pod: str, container: str, command: Sequence[str], line: str) -> str:
        """What a command prints that runs in a container and gets a line on its standard input.

        Raises:
            UnavailableError: it does not run, or does not end well.
        """
        query = [("container", container), *((name, "true") for name in ("stdin", "stdout"))]
        query += [("command", word) for word in command]
        output, status = await self._transport.run(POD.path(namespace, pod, "exec"), query, line)
        if (told := status_of(status)).get("status") != "Success":
            raise UnavailableError(f"a command in {pod} failed: {told.get('message') or 'it was cut off'}")
        return output
