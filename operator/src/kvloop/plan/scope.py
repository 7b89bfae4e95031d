"""All that a builder may look at."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvloop.api.labels import API_VERSION, KIND, Role
from kvloop.api.v1alpha1 import DisaggregatedInference, Spec
from kvloop.api.v1alpha1.engine import RoleSpec
from kvloop.plan import labels
from kvloop.plan.config import PlanConfig
from kvloop.plan.render import render
from kvloop.plan.resolve import Resolved, resolve, role_spec


@dataclass(frozen=True)
class Scope:
    """One custom resource on its way to children."""

    cr: DisaggregatedInference
    config: PlanConfig
    resolved: Resolved

    @classmethod
    def of(cls, cr: DisaggregatedInference, config: PlanConfig) -> "Scope":
        """The scope of a resource."""
        return cls(cr, config, resolve(cr.spec, config.router_image))

    @property
    def name(self) -> str:
        """Name of the resource."""
        return self.cr.metadata.name

    @property
    def namespace(self) -> str:
        """Namespace of the resource and of all its children."""
        return self.cr.metadata.namespace

    @property
    def spec(self) -> Spec:
        """The wanted state."""
        return self.cr.spec

    def role(self, role: Role) -> RoleSpec:
        """`spec.prefill` or `spec.decode`."""
        return role_spec(self.spec, role)

    @cached_property
    def values(self) -> dict[str, Any]:
        """The spec as in the custom resource: camelCase keys, plain values."""
        return self.spec.plain()

    @property
    def pull_secrets(self) -> list[dict[str, str]] | None:
        """The `imagePullSecrets` of every pod; None leaves the field out."""
        return [{"name": secret.name} for secret in self.spec.engine.image_pull_secrets] or None

    def child(self, template: str, name: str, component: str, **values: Any) -> dict[str, Any]:
        """Render a child with the metadata that all children have; `labels` in `values` replaces the common ones."""
        values.setdefault("labels", labels.common(self.name, component))
        return render(
            template, name=name, namespace=self.namespace, owner_references=self._owner_references(), **values
        )

    def _owner_references(self) -> list[dict[str, Any]] | None:
        """None before the API server gave the resource a uid, as when rendering from a file."""
        metadata = self.cr.metadata
        if not metadata.uid:
            return None
        return [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": metadata.name,
                "uid": metadata.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
