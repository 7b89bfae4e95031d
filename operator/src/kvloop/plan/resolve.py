"""What the spec leaves to the operator: the vLLM version, and the devices of a pod."""

import re
from dataclasses import dataclass

from kvloop.api.instances import INSTANCE_TYPES, InstanceType
from kvloop.api.labels import Role
from kvloop.api.v1alpha1 import Spec
from kvloop.api.v1alpha1.engine import RoleSpec
from kvloop.api.v1alpha1.status import ResolvedStatus
from kvloop.api.v1alpha1.transfer import Fabric

NEWEST = (0, 33)
"""Newest vLLM that the table of flags was checked with; assumed where nothing tells the version."""

# Versions of vLLM up to now begin with 0, and tags hold other versions too (cu130, ubuntu22.04, or a vendor's own).
_TAG_VERSION = re.compile(r"(?:^|[-_v])(0\.(\d+)(?:\.\d+)?)")


@dataclass(frozen=True)
class Resolved:
    """The spec's open ends, tied. `version` is (major, minor); `version_text` is for people."""

    version: tuple[int, int]
    version_text: str
    gpus: dict[Role, int]
    efa: dict[Role, int]
    instance_type: InstanceType | None
    router_image: str

    def to_status(self) -> ResolvedStatus:
        """The part of the status that says so."""
        return ResolvedStatus(
            vllm_version=self.version_text,
            efa_devices_per_pod={role.value: count for role, count in self.efa.items() if count},
            gpus_per_pod={role.value: count for role, count in self.gpus.items()},
            router_image=self.router_image,
        )


def role_spec(spec: Spec, role: Role) -> RoleSpec:
    """`spec.prefill` or `spec.decode`."""
    return spec.prefill if role is Role.PREFILL else spec.decode


def resolve(spec: Spec, default_router_image: str) -> Resolved:
    """Tie the open ends of a spec."""
    version, text = vllm_version(spec.engine.version, spec.engine.image)
    instance_type = INSTANCE_TYPES.get(spec.placement.instance_type or "")
    gpus = {role: _gpus(role_spec(spec, role)) for role in Role}
    return Resolved(
        version=version,
        version_text=text,
        gpus=gpus,
        efa={role: _efa(spec, instance_type, count) for role, count in gpus.items()},
        instance_type=instance_type,
        router_image=spec.router.image or default_router_image,
    )


def vllm_version(stated: str | None, image: str) -> tuple[tuple[int, int], str]:
    """(major, minor) and its text: as stated, or else from the image's tag, or else the newest known."""
    if stated:
        major, minor = re.findall(r"\d+", stated)[:2]  # the CRD demands both
        return (int(major), int(minor)), stated
    _, colon, tag = image.split("@", maxsplit=1)[0].rpartition("/")[2].partition(":")
    match = _TAG_VERSION.search(tag) if colon else None
    if match:
        return (0, int(match[2])), match[1]
    return NEWEST, f"{NEWEST[0]}.{NEWEST[1]} (assumed: set spec.engine.version)"


def _gpus(role: RoleSpec) -> int:
    return role.tensor_parallel_size if role.gpus is None else role.gpus


def _efa(spec: Spec, instance_type: InstanceType | None, gpus: int) -> int:
    """EFA devices of a pod: as asked, or its share of the node's, or one, which is slower but right on any EFA node."""
    if spec.transfer.fabric is not Fabric.EFA:
        return 0
    if spec.transfer.efa.devices_per_pod:
        return spec.transfer.efa.devices_per_pod
    return instance_type.efa_for(gpus) if instance_type else 1
