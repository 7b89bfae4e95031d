"""Arguments and environment of the engines, and what of both belongs to the operator.

The rules stand at each item, so that kubectl names the one that is wrong.
"""

from typing import Annotated, Any, ClassVar, Final

from pydantic import Field

from kvloop.api.v1alpha1.base import ATOMIC, PRESERVE, Model, Rule, list_map

OWNED_FLAGS: Final = {
    "model": "spec.model.source",
    "served-model-name": "spec.model.name",
    "revision": "spec.model.source.huggingFace.revision",
    "hf-token": "spec.model.source.huggingFace.tokenSecretRef",
    "max-model-len": "spec.model.maxLength",
    "load-format": "spec.model.source",
    "model-loader-extra-config": "spec.model.source",
    "dtype": "spec.engine.dtype",
    "kv-cache-dtype": "spec.engine.kvCacheDtype",
    "block-size": "spec.engine.blockSize",
    "shutdown-timeout": "spec.engine.shutdownTimeoutSeconds",
    "tensor-parallel-size": "spec.prefill.tensorParallelSize and spec.decode.tensorParallelSize",
    "enable-prefix-caching": "spec.prefill.prefixCaching and spec.decode.prefixCaching",
    "no-enable-prefix-caching": "spec.prefill.prefixCaching and spec.decode.prefixCaching",
    "kv-transfer-config": "spec.transfer",
    "kv-offloading-size": "nothing: it would replace the connector of spec.transfer",
    "kv-offloading-backend": "nothing: it would replace the connector of spec.transfer",
    "data-parallel-size": "nothing: one engine in a pod; use replicas",
    "nnodes": "nothing: an engine does not span nodes",
    "node-rank": "nothing: an engine does not span nodes",
    "headless": "nothing: the router needs the engine's HTTP server",
    "api-key": "spec.router.apiKeysSecretRef",
    "host": "nothing: the operator sets it",
    "port": "nothing: the operator sets it",
    "uds": "nothing: the operator sets the address",
    "grpc": "nothing: the router speaks HTTP",
    "ssl-keyfile": "nothing: the router speaks plain HTTP to the engines",
    "ssl-certfile": "nothing: the router speaks plain HTTP to the engines",
    "root-path": "nothing: the router expects vLLM's own paths",
    "config": "nothing: a configuration file could change owned flags unseen",
}
"""vLLM flags that the operator owns, and what to set instead."""

OWNED_SHORT: Final = ("tp", "dp", "n", "r")
"""Their short forms."""

OWNED_ENV: Final = {
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "nothing: it is the pod's address",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "nothing: the operator sets it",
    "VLLM_API_KEY": "spec.router.apiKeysSecretRef",
    "PYTHONPATH": "nothing: it finds the engine's plugin",
    "HF_TOKEN": "spec.model.source.huggingFace.tokenSecretRef",
    "FI_PROVIDER": "spec.transfer.fabric",
    "FI_EFA_USE_DEVICE_RDMA": "spec.transfer.efa.deviceRDMA",
    "FI_EFA_ENABLE_SHM_TRANSFER": "nothing: shared memory corrupts KV on GPUs",
}
"""Environment variables that the operator sets itself, and what to set instead."""


def cel_list(values: tuple[str, ...]) -> str:
    """`values` as a CEL list of strings."""
    return "[" + ", ".join(f"'{value}'" for value in values) + "]"


_FLAGS = cel_list((*(f"--{flag}" for flag in OWNED_FLAGS), *(f"-{flag}" for flag in OWNED_SHORT)))

# argparse takes any unambiguous beginning of a flag, and vLLM `_` for `-` and `--flag.key value` for one key of a
# JSON value (seen on vLLM 0.32.0), so every beginning of an owned flag is refused in all these forms.
_FLAG_RULE: Final = Rule(
    "!self.startsWith('-') || [self.split('=')[0].split('.')[0].replace('_', '-')]"
    f".all(given, !{_FLAGS}.exists(owned, owned.startsWith(given)))",
    "the operator owns this flag: remove it from args and use the field of the spec instead",
    message_expression="'the operator owns %s: remove it from args and use the field of the spec instead'"
    ".format([self.split('=')[0]])",
)

Arg = Annotated[str, Field(max_length=4096, json_schema_extra={"x-kubernetes-validations": [_FLAG_RULE.schema()]})]

Args = Annotated[list[Arg], Field(max_length=64, json_schema_extra=ATOMIC)]
"""Command-line arguments of the engine, one string each."""


class Variable(Model):
    """An environment variable, as in a pod's container."""

    name: str = Field(min_length=1, max_length=256, description="Name of the variable.")
    value: str | None = Field(None, max_length=32768, description="Literal value.")
    value_from: dict[str, Any] | None = Field(
        None,
        description="Source of the value, as in a pod's container (secretKeyRef, configMapKeyRef, fieldRef).",
        json_schema_extra=PRESERVE,
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("!(has(self.value) && has(self.valueFrom))", "set value or valueFrom, not both", field_path=".valueFrom"),
    )


class EnvVar(Variable):
    """An environment variable of an engine."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!(self.name in {cel_list(tuple(OWNED_ENV))})",
            "the operator owns this variable: remove it from env",
            message_expression="'the operator owns %s: remove it from env'.format([self.name])",
            field_path=".name",
        ),
        # It turns GPUDirect off: https://github.com/awslabs/awsome-distributed-ai/pull/1106
        Rule(
            "self.name != 'NCCL_NET_GDR_LEVEL' || !has(self.value) || self.value != 'LOC'",
            "remove NCCL_NET_GDR_LEVEL=LOC from env: it turns GPUDirect RDMA off",
            field_path=".value",
        ),
        # https://github.com/awslabs/awsome-distributed-ai/blob/main/1.architectures/efa-cheatsheet.md
        Rule(
            "!self.name.startsWith('RDMAV_')",
            "remove RDMAV_* from env: they break EFA on current kernels",
            field_path=".name",
        ),
        *Variable.rules,
    )


EnvVars = Annotated[list[EnvVar], Field(max_length=64, json_schema_extra=list_map("name"))]
"""Environment variables of the engine."""

Variables = Annotated[list[Variable], Field(max_length=64, json_schema_extra=list_map("name"))]
"""Environment variables of a container that is not an engine."""
