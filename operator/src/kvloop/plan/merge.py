"""The user's pod template over the generated one: a small, predictable form of Kubernetes' strategic merge.

- Objects merge key by key, and null removes a key.
- Lists of the fields in `KEYS` merge element by element: an element with the same key merges, another one is appended.
- Everything else, lists of strings and tolerations among it, is replaced; so is a list with an element that has no key,
  which the API server then refuses.
"""

from typing import Any

KEYS = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "imagePullSecrets": ("name",),
    "resourceClaims": ("name",),
    "claims": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "protocol"),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
"""Fields of a pod template that are lists of named objects, and what names them, as in the Kubernetes API."""


def merge(base: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """`base` with `patch` over it; neither is changed."""
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _value(key, merged.get(key), value)
    return merged


def _value(key: str, base: Any, patch: Any) -> Any:
    if isinstance(patch, dict):
        return merge(base if isinstance(base, dict) else {}, patch)
    keys = KEYS.get(key, ())
    if keys and _keyed(keys, patch):
        return _elements(keys, base if _keyed(keys, base) else [], patch)
    return patch


def _keyed(keys: tuple[str, ...], items: Any) -> bool:
    return isinstance(items, list) and all(isinstance(item, dict) and keys[0] in item for item in items)


def _elements(keys: tuple[str, ...], base: list[dict[str, Any]], patch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    merged = {_identity(keys, item): item for item in base}
    for item in patch:
        identity = _identity(keys, item)
        merged[identity] = merge(merged.get(identity, {}), item)
    return list(merged.values())


def _identity(keys: tuple[str, ...], item: dict[str, Any]) -> tuple[str, ...]:
    defaults = {"protocol": "TCP"}
    return tuple(str(item.get(key, defaults.get(key))) for key in keys)
