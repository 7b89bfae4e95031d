"""Environment of an engine."""

from typing import Any

from kvloop.api.labels import NIXL_SIDE_CHANNEL, Role
from kvloop.api.v1alpha1.transfer import Fabric
from kvloop.plan.render import without_none
from kvloop.plan.scope import Scope

POD_ADDRESS = "VLLM_NIXL_SIDE_CHANNEL_HOST"
PLUGIN_FOLDER = "/opt/kvloop/plugin"
CACHE_FOLDER = "/var/cache/kvloop"


def environment(scope: Scope, role: Role) -> list[dict[str, Any]]:
    """Variables of the engine's container: the operator's, then the user's, of which the role's win by name.

    A variable that the operator owns is never the user's: such a resource is refused at admission.
    """
    variables = {variable["name"]: variable for variable in _owned(scope)}
    owned = frozenset(variables)
    # Weights and compiled kernels go to a volume, which outlives a crash of the container.
    variables["XDG_CACHE_HOME"] = _literal("XDG_CACHE_HOME", CACHE_FOLDER)
    for variable in (*scope.spec.engine.env, *scope.role(role).env):
        if variable.name not in owned:
            variables[variable.name] = without_none(variable.plain())
    return list(variables.values())


def _owned(scope: Scope) -> list[dict[str, Any]]:
    return [
        # Bind address and the address that goes into handles; vLLM's default is localhost.
        {"name": POD_ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        _literal("VLLM_NIXL_SIDE_CHANNEL_PORT", NIXL_SIDE_CHANNEL),
        _literal("PYTHONPATH", PLUGIN_FOLDER),
        *_hugging_face_token(scope),
        *(_literal(name, value) for name, value in fabric_variables(scope).items()),
    ]


def _literal(name: str, value: object) -> dict[str, Any]:
    return {"name": name, "value": str(value)}


def _hugging_face_token(scope: Scope) -> list[dict[str, Any]]:
    source = scope.spec.model.source.hugging_face
    if source is None or source.token_secret_ref is None:
        return []
    ref = source.token_secret_ref
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}}}]


def fabric_variables(scope: Scope) -> dict[str, str]:
    """Variables of libfabric on EFA.

    Sources: fi_efa(7) (FI_EFA_USE_DEVICE_RDMA=1 aborts on devices without RDMA; unset, libfabric finds out itself);
    AWS Neuron's and NVIDIA Dynamo's guides (the shared-memory path within a node corrupts device memory).
    """
    if scope.spec.transfer.fabric is not Fabric.EFA:
        return {}
    variables = {"FI_PROVIDER": "efa", "FI_EFA_ENABLE_SHM_TRANSFER": "0"}
    rdma = scope.spec.transfer.efa.device_rdma
    if rdma is None and scope.resolved.instance_type and scope.resolved.instance_type.gpudirect:
        rdma = True
    if rdma is not None:
        variables["FI_EFA_USE_DEVICE_RDMA"] = str(int(rdma))
    return variables
