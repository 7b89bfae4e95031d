"""A namespace of a test's own, and what tests ask of the custom resources in it."""

import json
from dataclasses import dataclass
from typing import Any, Final

from e2e.cluster import Client, KubectlError, eventually
from kvloop.api.labels import API_VERSION, KIND, PLURAL

CHILDREN: Final = (
    "serviceaccounts",
    "roles",
    "rolebindings",
    "configmaps",
    "services",
    "networkpolicies",
    "poddisruptionbudgets",
    "statefulsets",
    "deployments",
)

Body = dict[str, Any]


def resource(name: str, namespace: str, **spec: Any) -> Body:
    """A custom resource with simulated engines: no accelerators, two of each role; `spec` replaces whole fields."""
    role = {"replicas": 2, "gpus": 0}
    base: Body = {
        "model": {"name": "sim", "source": {"path": "/models/sim"}, "maxLength": 8192},
        "engine": {"image": "enginesim:1", "version": "0.32.0"},
        "prefill": role,
        "decode": role,
        "transfer": {"fabric": "UCX"},
        "placement": {"sameZone": "None"},
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": base | spec,
    }


@dataclass(frozen=True)
class Site:
    """A namespace in a cluster where the operator serves."""

    cluster: Client
    namespace: str

    def create(self, name: str = "chat", **spec: Any) -> Body:
        """Create a custom resource (see `resource`); gives it."""
        self.cluster.apply(resource(name, self.namespace, **spec), self.namespace)
        return self.get(PLURAL, name)

    def patch(self, spec: Body, name: str = "chat") -> None:
        """Merge into the spec of a custom resource; None removes a field."""
        self.edit(PLURAL, name, {"spec": spec})

    def edit(self, kind: str, name: str, change: Body, *options: str) -> None:
        """A merge patch by somebody else."""
        self.kubectl("patch", kind, name, "--type=merge", f"--patch={json.dumps(change)}", *options)

    def get(self, kind: str, name: str) -> Body:
        """One object."""
        return self.cluster.get(kind, name, self.namespace)

    def items(self, kind: str, *options: str) -> list[Body]:
        """Objects of a kind."""
        return self.cluster.items(kind, f"--namespace={self.namespace}", *options)

    def kubectl(self, *arguments: str, timeout_s: float = 120) -> str:
        """Run kubectl in the namespace."""
        return self.cluster.kubectl(*arguments, f"--namespace={self.namespace}", timeout_s=timeout_s)

    def diagnostics(self) -> str:
        """What its pods said last, to print when a test fails."""
        parts = []
        for pod in self.items("pods"):
            name = pod["metadata"]["name"]
            try:
                parts.append(f"{name}:\n{self.kubectl('logs', name, '--all-containers', '--tail=25')}")
            except KubectlError as error:
                parts.append(f"{name}: {error}")
        return "\n".join(parts)

    def status(self, name: str = "chat") -> Body:
        """Status of a custom resource."""
        found: Body = self.get(PLURAL, name).get("status", {})
        return found

    def condition(self, kind: str, name: str = "chat") -> Body:
        """A condition of a custom resource; empty if it has none of that type."""
        return next((each for each in self.status(name).get("conditions", []) if each["type"] == kind), {})

    def wait_for(self, kind: str, status: str, reason: str = "", name: str = "chat", timeout_s: float = 60) -> Body:
        """Wait until a condition has that status, and that reason, for the newest generation; gives it."""

        def check() -> Body:
            body = self.get(PLURAL, name)
            found = next((each for each in body["status"].get("conditions", []) if each["type"] == kind), None)
            assert found, body["status"]
            assert found["status"] == status, body["status"]
            assert reason in {"", found["reason"]}, found
            assert found["observedGeneration"] == body["metadata"]["generation"], found
            return dict(found)

        return eventually(check, timeout_s)

    def children(self, name: str = "chat") -> dict[tuple[str, str], Body]:
        """All children of a custom resource, by kind and name."""
        items = self.items(",".join(CHILDREN), f"--selector=kvloop.io/name={name}", "--show-managed-fields")
        return {(item["kind"], item["metadata"]["name"]): item for item in items}
