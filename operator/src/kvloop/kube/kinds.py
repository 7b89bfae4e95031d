"""Every kind that the operator touches, so that no discovery request is needed, and roles can be checked against it."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kvloop.api.labels import API_VERSION, KIND, PLURAL


@dataclass(frozen=True)
class Kind:
    """Where the API server serves a kind. All that the operator writes live in namespaces."""

    api_version: str
    kind: str
    plural: str
    optional: bool = False
    """Not every cluster serves it."""

    @property
    def group(self) -> str:
        """API group; empty for the core one."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """Version within the group."""
        return self.api_version.rpartition("/")[2]

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of the collection (of every namespace without `namespace`), an object, or its subresource."""
        scope = f"/namespaces/{namespace}" if namespace else ""
        root = "apis" if self.group else "api"
        return "/".join(filter(None, [f"/{root}/{self.api_version}{scope}/{self.plural}", name, subresource]))


CUSTOM_RESOURCE: Final = Kind(API_VERSION, KIND, PLURAL)
POD: Final = Kind("v1", "Pod", "pods")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
EVENT: Final = Kind("v1", "Event", "events")
NODE: Final = Kind("v1", "Node", "nodes")
POD_MONITOR: Final = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors", optional=True)

CHILDREN: Final = (
    Kind("v1", "ServiceAccount", "serviceaccounts"),
    Kind("rbac.authorization.k8s.io/v1", "Role", "roles"),
    Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    Kind("v1", "ConfigMap", "configmaps"),
    Kind("v1", "Service", "services"),
    Kind("apps/v1", "StatefulSet", "statefulsets"),
    Kind("apps/v1", "Deployment", "deployments"),
    Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    Kind("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates", optional=True),
    POD_MONITOR,
)
"""Kinds that a custom resource may own, and that are therefore watched."""

KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {kind.kind: kind for kind in (CUSTOM_RESOURCE, POD, LEASE, EVENT, NODE, *CHILDREN)}
)
"""By the `kind` of an object."""

# Kinds that only people's commands read: the operator has no right to them.
CRD: Final = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
NAMESPACE: Final = Kind("v1", "Namespace", "namespaces")
RESOURCE_QUOTA: Final = Kind("v1", "ResourceQuota", "resourcequotas")
SECRET: Final = Kind("v1", "Secret", "secrets")
PERSISTENT_VOLUME_CLAIM: Final = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
PRIORITY_CLASS: Final = Kind("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses")
