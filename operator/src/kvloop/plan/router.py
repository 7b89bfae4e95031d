"""The router: its Deployment and its configuration."""

from typing import Any, Final

from kvloop.api import contract
from kvloop.api.labels import ADMIN_PORT, CONFIG_HASH, HTTP_PORT, ROUTER_ADMIN, ROUTER_CONTAINER
from kvloop.plan import engine_args, labels, names, valkey
from kvloop.plan.hashing import digest
from kvloop.plan.scope import Scope

COMPONENT: Final = "router"
CONFIG_KEY: Final = "router.yaml"
CONFIG_FOLDER: Final = "/etc/kvloop/router"
API_KEYS_FOLDER: Final = "/etc/kvloop/api-keys"
STORE_FOLDER: Final = "/etc/kvloop/store"
PASSWORD_FILE: Final = "password"  # noqa: S105 (the name of a file)
CLIENT_PORT: Final = 8000

PRE_STOP_SECONDS: Final = 5
"""From a pod's end in EndpointSlices to SIGTERM, for every node's proxy to look away from it."""

GRACE_MARGIN_SECONDS: Final = 15

VLLM_TTL_BEFORE_OPTION: Final = 480
"""Seconds for which decode keeps blocks in vLLM without `decoder_kv_blocks_ttl` (VLLM_NIXL_ABORT_REQUEST_TIMEOUT)."""


def config(scope: Scope) -> contract.RouterConfig:
    """What the router is to do, from the custom resource."""
    values = scope.values["router"]
    same = ("holdoutPercent", "leaseSeconds", "maxPinnedPercent", "whenNoPrefill", "tenantHeader", "deadlines")
    return contract.RouterConfig.model_validate(
        {
            "listen": {"port": CLIENT_PORT},
            "admin": {"port": ROUTER_ADMIN},
            "endpoints": {
                "endpointSlices": {"namespace": scope.namespace, "name": scope.name, "portName": HTTP_PORT},
            },
            "transfer": _transfer(scope),
            "store": _store(scope),
            "apiKeysFolder": API_KEYS_FOLDER if scope.spec.router.api_keys_secret_ref else None,
            "resourceUid": scope.cr.metadata.uid or "",
            "drainSeconds": scope.spec.engine.shutdown_timeout_seconds,
            **{key: values[key] for key in same},
        }
    )


def _transfer(scope: Scope) -> dict[str, Any]:
    """What the engines really do: a flag that their vLLM does not know is not sent to them either."""
    transfer, version = scope.spec.transfer, scope.resolved.version
    has_ttl = engine_args.supports(version, "decoder_kv_blocks_ttl")
    return {
        "bidirectional": transfer.bidirectional and engine_args.supports(version, "bidirectional_kv_xfer"),
        "decoderKVBlocksTTLSeconds": transfer.decoder_kv_blocks_ttl_seconds if has_ttl else VLLM_TTL_BEFORE_OPTION,
        "kvRecomputeThresholdTokens": transfer.kv_recompute_threshold_tokens,
    }


def _store(scope: Scope) -> dict[str, Any]:
    store = scope.spec.router.store
    if store.valkey:
        password = f"{STORE_FOLDER}/{PASSWORD_FILE}" if store.valkey.password_secret_ref else None
        return {"valkey": {"url": store.valkey.url or valkey.url(scope), "passwordFile": password}}
    return {"memory": store.memory.model_dump() if store.memory else {}}


def deployment(scope: Scope) -> dict[str, Any]:
    """The Deployment. Its pods read most of the configuration again on change; only the rest restarts them."""
    spec, wire = scope.spec.router, config(scope).to_wire()
    at_start = {key: wire[key] for key in ("listen", "admin")}
    return scope.child(
        "router_deployment",
        name=names.router(scope.name),
        component=COMPONENT,
        replicas=spec.replicas,
        selector=labels.component_selector(scope.name, COMPONENT),
        pod_labels=labels.common(scope.name, COMPONENT),
        pod_annotations={CONFIG_HASH: digest(at_start)},
        service_account=names.router(scope.name),
        image_pull_secrets=scope.pull_secrets,
        grace_seconds=PRE_STOP_SECONDS + scope.spec.engine.shutdown_timeout_seconds + GRACE_MARGIN_SECONDS,
        pre_stop_seconds=PRE_STOP_SECONDS,
        container=ROUTER_CONTAINER,
        image=scope.resolved.router_image,
        config_file=f"{CONFIG_FOLDER}/{CONFIG_KEY}",
        config_folder=CONFIG_FOLDER,
        config_map=names.router(scope.name),
        ports=[
            {"name": HTTP_PORT, "containerPort": CLIENT_PORT},
            {"name": ADMIN_PORT, "containerPort": ROUTER_ADMIN},
        ],
        admin_port=ADMIN_PORT,
        env=[variable.plain() for variable in spec.env],
        resources=spec.resources or {"requests": {"cpu": "100m", "memory": "256Mi"}},
        secrets=_secrets(scope),
    )


def _secrets(scope: Scope) -> list[dict[str, Any]]:
    """Secrets to mount, each with its folder."""
    spec = scope.spec.router
    secrets = []
    if spec.api_keys_secret_ref:
        secrets.append(
            {"name": "api-keys", "folder": API_KEYS_FOLDER, "source": {"secretName": spec.api_keys_secret_ref.name}}
        )
    if spec.store.valkey and spec.store.valkey.password_secret_ref:
        ref = spec.store.valkey.password_secret_ref
        source = {"secretName": ref.name, "items": [{"key": ref.key, "path": PASSWORD_FILE}]}
        secrets.append({"name": "store", "folder": STORE_FOLDER, "source": source})
    return secrets
