"""Command line of an engine: `vllm serve` and what the spec, the table of flags and the user add to it."""

import json
from collections.abc import Iterator
from functools import reduce
from typing import Any

from kvloop.api.flags import FLAGS, KV_ROLE, LOAD_FAILURE_POLICY, ROLES_SINCE, Flag, Where
from kvloop.api.labels import ENGINE_HTTP, Role
from kvloop.plan import model_source
from kvloop.plan.env import POD_ADDRESS
from kvloop.plan.scope import Scope

COMMAND = ["vllm", "serve"]


def arguments(scope: Scope, role: Role) -> list[str]:
    """Arguments after `vllm serve`; the model first, the user's last, so that vLLM's own rules settle repetitions."""
    source = model_source.of(scope, role)
    return [
        source.model,
        *source.args,
        # The pod's address, whatever its family: vLLM's default of 0.0.0.0 is out of reach over IPv6, and `::` fails on
        # nodes whose kernel has IPv6 turned off.
        f"--host=$({POD_ADDRESS})",
        f"--port={ENGINE_HTTP}",
        *(text for flag, value in _values(scope, role, Where.ARGUMENT) for text in _argument(flag.name, value)),
        f"--kv-transfer-config={json.dumps(kv_transfer_config(scope, role), sort_keys=True)}",
        *scope.spec.engine.args,
        *scope.role(role).args,
    ]


def kv_transfer_config(scope: Scope, role: Role) -> dict[str, Any]:
    """NixlConnector's configuration. Never an engine_id: vLLM's own changes at every start, and old handles with it."""
    return {
        "kv_connector": "NixlConnector",
        "kv_role": KV_ROLE[role] if scope.resolved.version >= ROLES_SINCE else "kv_both",
        # Never host buffers beside a GPU: vLLM returns KV from decode to prefill between device buffers only.
        "kv_buffer_device": "cuda" if scope.resolved.gpus[role] else "cpu",
        "kv_load_failure_policy": LOAD_FAILURE_POLICY[role],
        **{flag.name: value for flag, value in _values(scope, role, Where.CONNECTOR)},
        "kv_connector_extra_config": {flag.name: value for flag, value in _values(scope, role, Where.EXTRA)},
    }


def supports(version: tuple[int, int], name: str) -> bool:
    """Whether vLLM of this version knows a flag or connector key."""
    return any(flag.name == name and version >= flag.since for flag in FLAGS)


def _values(scope: Scope, role: Role, where: Where) -> Iterator[tuple[Flag, Any]]:
    """The flags that go `where` for a role and this version of vLLM, with vLLM's values."""
    for flag in FLAGS:
        if flag.where is where and role in flag.roles and scope.resolved.version >= flag.since:
            field = _field(scope.values, flag.path.format(role=role))
            value = None if field is None else flag.convert(field)
            if value is not None:
                yield flag, value


def _field(values: dict[str, Any], path: str) -> Any:
    return reduce(lambda part, key: part[key], path.split("."), values)


def _argument(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}={value}"]
