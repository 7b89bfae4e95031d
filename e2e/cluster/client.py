"""What tests do with a cluster, ours or an existing one, by way of kubectl."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import yaml

from e2e.cluster.binaries import ensure
from e2e.cluster.errors import ClusterError
from e2e.cluster.kwok import P5EN, NodeShape, fake_node
from e2e.cluster.system import cluster_folder, write_private

Object = Mapping[str, Any]
T = TypeVar("T")


class KubectlError(ClusterError):
    """kubectl said no; the message is its standard error."""


class Client:
    """The administrator's access to a cluster, which may be anybody's; what only ours can do raises ClusterError.

    Attributes:
        name: By which the command line finds it again.
        folder: Of our files about it.
    """

    def __init__(self, name: str, kubeconfig: Path | None = None) -> None:
        self.name = name
        self.folder = cluster_folder(name)
        self.kubeconfig = kubeconfig or self.folder / "kubeconfigs" / "admin.yaml"

    @cached_property
    def _kubectl(self) -> Path:
        found = shutil.which("kubectl")
        return Path(found) if found else ensure(["kubectl"])["kubectl"]

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self) -> None:
        """Make sure that the cluster answers. Raises ClusterError if it does not."""
        self.kubectl("get", "--raw=/readyz", timeout_s=30)

    def down(self) -> None:
        """Forget a cluster that is not ours to stop."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def remember(self, record: Mapping[str, Any]) -> None:
        """Write down, once the cluster is up, what a later process needs to know of it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "cluster.json").write_text(json.dumps(record))

    def kubectl(self, *arguments: str, input: str | None = None, timeout_s: float = 120) -> str:  # noqa: A002 - subprocess's own name
        """Run kubectl and return its standard output.

        Raises:
            KubectlError: kubectl ended with another code than 0, or not within `timeout_s` seconds.
        """
        command = [str(self._kubectl), f"--kubeconfig={self.kubeconfig}", *arguments]
        environment = os.environ | {"KUBECACHEDIR": str(self.folder / "kubectl-cache")}
        try:
            done = subprocess.run(
                command, input=input, capture_output=True, text=True, check=False, timeout=timeout_s, env=environment
            )
        except subprocess.TimeoutExpired as error:
            raise KubectlError(f"`kubectl {' '.join(arguments)}` did not end within {timeout_s:.0f} s") from error
        if done.returncode:
            raise KubectlError(done.stderr.strip().removeprefix("error: "))
        return done.stdout

    def apply(self, objects: str | Object | Iterable[Object], namespace: str | None = None) -> None:
        """Apply YAML text, one object, or several, on the server's side; the namespace is for those that name none."""
        self.kubectl(
            "apply", "--server-side", "--force-conflicts", *_in(namespace), "--filename=-", input=_yaml(objects)
        )

    def delete(self, objects: str | Object | Iterable[Object], namespace: str | None = None) -> None:
        """Delete what `apply` made, and wait until it is gone."""
        self.kubectl("delete", "--ignore-not-found", *_in(namespace), "--filename=-", input=_yaml(objects))

    def get(self, resource: str, name: str, namespace: str = "default") -> dict[str, Any]:
        """One object. Raises KubectlError if it is not there."""
        found: dict[str, Any] = json.loads(
            self.kubectl("get", resource, name, f"--namespace={namespace}", "--output=json")
        )
        return found

    def items(self, resource: str, *arguments: str) -> list[dict[str, Any]]:
        """Objects of one kind, in the namespace and with the selector that the arguments for `kubectl get` say."""
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", resource, *arguments, "--output=json"))["items"]
        return found

    def wait(self, resource: str, condition: str, namespace: str = "default", timeout_s: float = 60) -> None:
        """Wait until an object ("pod/x") exists and meets a condition of `kubectl wait --for` ("condition=Ready")."""
        begin = time.monotonic()
        for what in ("create", condition):
            left = max(1, timeout_s - (time.monotonic() - begin))
            arguments = (resource, f"--for={what}", f"--namespace={namespace}", f"--timeout={left:.0f}s")
            self.kubectl("wait", *arguments, timeout_s=left + 10)

    def wait_established(self, crd: str, timeout_s: float = 60) -> None:
        """Wait until a CRD is served. `kubectl wait` fails, and is asked again, while it has no status at all."""
        arguments = (f"crd/{crd}", "--for=condition=Established", "--timeout=30s")
        eventually(lambda: self.kubectl("wait", *arguments), timeout_s)

    def add_fake_nodes(
        self, count: int, *, prefix: str = "p5en", zone: str = "us-east-1a", shape: NodeShape = P5EN
    ) -> list[str]:
        """Add nodes that KWOK plays, and return their names once they are ready."""
        names = [f"{prefix}-{number}" for number in range(count)]
        self.apply(fake_node(name, zone, shape) for name in names)
        for name in names:
            self.wait(f"node/{name}", "condition=Ready")
        return names

    def set_capacity(self, node: str, resources: Mapping[str, int]) -> None:
        """Let a node offer extended resources, such as nvidia.com/gpu, that it does not have."""
        amounts = {name: str(amount) for name, amount in resources.items()}
        patch = json.dumps({"status": {"capacity": amounts, "allocatable": amounts}})
        self.kubectl("patch", "node", node, "--subresource=status", "--type=merge", f"--patch={patch}")

    def service_account_token(self, name: str, namespace: str = "default", hours: int = 24) -> str:
        """A token of a ServiceAccount, as a pod of its own would get."""
        return self.kubectl("create", "token", name, f"--namespace={namespace}", f"--duration={hours}h").strip()

    def service_account_kubeconfig(self, name: str, namespace: str = "default") -> Path:
        """A kubeconfig with which a program outside the cluster has that ServiceAccount's rights and no others."""
        content = yaml.safe_load(self.kubeconfig.read_text())
        content["users"] = [{"name": name, "user": {"token": self.service_account_token(name, namespace)}}]
        content["contexts"] = [
            {"name": context["name"], "context": context["context"] | {"user": name, "namespace": namespace}}
            for context in content["contexts"]
            if context["name"] == content["current-context"]
        ]
        return write_private(self.folder / "kubeconfigs" / f"{namespace}.{name}.yaml", yaml.safe_dump(content))

    @property
    def audit_log(self) -> Path:
        """One JSON object a line for each request of whoever is neither the administrator nor a part of the cluster."""
        raise ClusterError("The audit log of this cluster is not known: use a cluster of `python -m e2e.cluster up`.")

    def kubeconfig_for(self, user: str, *groups: str) -> Path:  # noqa: ARG002 - the signature of those that can
        """A kubeconfig for a user of these groups; "system:masters" may do everything."""
        raise ClusterError(
            f"No certificate for {user} can be issued here: use a cluster of `python -m e2e.cluster up`."
        )

    def load_image(self, archive: Path) -> None:
        """Bring an image (an OCI or docker archive) to the cluster's nodes."""
        raise ClusterError(
            f"{archive.name} cannot be loaded into this cluster: push it to a registry that the cluster pulls from."
        )

    def diagnostics(self) -> str:
        """What to print when a test fails: the objects that tell, and what they went through."""
        parts = []
        for arguments in (
            ("get", "nodes,pods,services", "--all-namespaces", "--output=wide"),
            ("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"),
        ):
            try:
                parts.append(self.kubectl(*arguments, timeout_s=20))
            except KubectlError as error:
                parts.append(f"kubectl {' '.join(arguments)}: {error}")
        return "\n".join(parts)


def eventually(check: Callable[[], T], timeout_s: float = 30, interval_s: float = 0.1) -> T:
    """Call `check` until it returns something true without raising AssertionError or KubectlError, and return that.

    Raises:
        AssertionError: it did not within `timeout_s`; says what it returned or raised last.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if result := check():
                return result
            last = f"returned {result!r}"
        except (AssertionError, KubectlError) as error:
            last = f"raised {error}"
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:.0f} s: the last check {last}")
        time.sleep(interval_s)


def _in(namespace: str | None) -> list[str]:
    return [f"--namespace={namespace}"] if namespace else []


def _yaml(objects: str | Object | Iterable[Object]) -> str:
    if isinstance(objects, str):
        return objects
    return yaml.safe_dump_all([objects] if isinstance(objects, Mapping) else list(objects))
