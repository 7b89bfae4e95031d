"""The revision: what must be equal for prefill and decode engines to exchange KV, as one short digest.

vLLM compares most of it itself at the handshake and refuses (version, model, dtype, KV layout, attention backend); the
router therefore pairs engines of one revision only. What two engines may differ in is not part of it: devices, memory,
prefix caching, labels, sidecars, the longest sequence, the time a drain may take.
"""

from typing import Any

from kvloop.api.labels import ENGINE_CONTAINER, Role
from kvloop.api.v1alpha1 import DisaggregatedInference
from kvloop.plan import config_maps, engine_args, model_source
from kvloop.plan.config import PlanConfig
from kvloop.plan.hashing import digest
from kvloop.plan.scope import Scope


def revision(cr: DisaggregatedInference, config: PlanConfig) -> str:
    """The revision of a resource: 10 hex digits."""
    return of(Scope.of(cr, config))


def of(scope: Scope) -> str:
    """The revision of a scope."""
    engine = scope.values["engine"]
    return digest(
        {
            "image": engine["image"],
            "version": scope.resolved.version,
            "model": scope.spec.model.name,
            "dtype": engine["dtype"],
            "kvCacheDtype": engine["kvCacheDtype"],
            "blockSize": engine["blockSize"],
            "args": engine["args"],
            "env": engine["env"],
            "fabric": scope.spec.transfer.fabric,
            "plugin": config_maps.plugin_versions(scope.config),
            "roles": {role: _role(scope, role) for role in Role},
        }
    )


def _role(scope: Scope, role: Role) -> dict[str, Any]:
    values, source = scope.values[role], model_source.of(scope, role)
    return {
        "source": [source.model, *source.args],
        "connector": engine_args.kv_transfer_config(scope, role),
        "tensorParallelSize": values["tensorParallelSize"],
        "args": values["args"],
        "env": values["env"],
        "overrides": _overrides(values["podTemplate"]),
    }


def _overrides(pod_template: dict[str, Any]) -> dict[str, Any]:
    """What a pod template may change of the engine's own process; the rest of it is refused at admission."""
    spec = pod_template.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    for container in containers if isinstance(containers, list) else ():
        if isinstance(container, dict) and container.get("name") == ENGINE_CONTAINER:
            return {key: container[key] for key in ("env", "envFrom") if key in container}
    return {}
