"""`spec.engine`, `spec.prefill` and `spec.decode`: the vLLM pods."""

from enum import StrEnum
from typing import Any, ClassVar, Final

from pydantic import Field

from kvloop.api.v1alpha1.base import (
    PRESERVE,
    Args,
    EnvVars,
    LocalObjectReference,
    Model,
    ObjectName,
    Rule,
    list_map,
)

OWNED_FLAGS: Final = {
    "model": "spec.model.source",
    "served-model-name": "spec.model.name",
    "revision": "spec.model.source.huggingFace.revision",
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
    "data-parallel-size": "nothing: one engine per pod is supported",
    "api-key": "spec.router.apiKeysSecretRef",
    "host": "nothing: the operator sets it",
    "port": "nothing: the operator sets it",
    "uds": "nothing: the operator sets the address",
    "root-path": "nothing: the router expects vLLM's own paths",
    "config": "nothing: a configuration file could change owned flags unseen",
}
"""vLLM flags that the operator owns, and what to set instead. Also refused in vLLM's other spellings."""

_SHORT_FLAGS: Final = ("tp", "dp")
OWNED_ENV: Final = (
    "VLLM_NIXL_SIDE_CHANNEL_HOST",
    "VLLM_NIXL_SIDE_CHANNEL_PORT",
    "PYTHONPATH",
    "HF_TOKEN",
    "FI_PROVIDER",
    "FI_EFA_USE_DEVICE_RDMA",
    "FI_EFA_ENABLE_SHM_TRANSFER",
)
"""Environment variables that the operator sets itself."""

_OWNED_PATTERN = (
    "^(--("
    + "|".join(f.replace("-", "[-_]") for f in sorted(OWNED_FLAGS))
    + ")|-("
    + "|".join(_SHORT_FLAGS)
    + "))(=|$)"
)
_OWNED = f"a.matches('{_OWNED_PATTERN}')"
_ARGS_RULE = Rule(
    f"!has(self.args) || self.args.all(a, !{_OWNED})",
    "args must not set a flag that the operator owns",
    message_expression=f"'the operator owns ' + self.args.filter(a, {_OWNED})[0].split('=')[0]"
    " + ': remove it from args and use the field of the spec instead'",
    field_path=".args",
)
_OWNED_NAMES = "[" + ", ".join(f"'{name}'" for name in OWNED_ENV) + "]"
_ENV_RULES = (
    Rule(
        f"!has(self.env) || self.env.all(e, !(e.name in {_OWNED_NAMES}))",
        "env must not set a variable that the operator owns",
        message_expression=f"'the operator owns ' + self.env.filter(e, e.name in {_OWNED_NAMES})[0].name"
        " + ': remove it from env'",
        field_path=".env",
    ),
    # NCCL_NET_GDR_LEVEL=LOC turns GPUDirect off: https://github.com/awslabs/awsome-distributed-ai/pull/1106
    Rule(
        "!has(self.env) || self.env.all(e, !(e.name == 'NCCL_NET_GDR_LEVEL' && has(e.value) && e.value == 'LOC'))",
        "remove NCCL_NET_GDR_LEVEL=LOC from env: it turns GPUDirect RDMA off",
        field_path=".env",
    ),
    # https://github.com/awslabs/awsome-distributed-ai/blob/main/1.architectures/efa-cheatsheet.md
    Rule(
        "!has(self.env) || self.env.all(e, !e.name.startsWith('RDMAV_'))",
        "remove RDMAV_* from env: they break EFA on current kernels",
        field_path=".env",
    ),
)


class DType(StrEnum):
    """Data type of weights and activations, as vLLM's --dtype."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


class KVCacheDType(StrEnum):
    """Data type of the KV cache, as vLLM's --kv-cache-dtype."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FP8 = "fp8"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"
    FP8_DS_MLA = "fp8_ds_mla"


class PullPolicy(StrEnum):
    """When the kubelet pulls an image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class EngineSpec(Model):
    """What prefill and decode engines have in common."""

    image: str = Field(
        min_length=1,
        max_length=1024,
        description="vLLM image; one with EFA userspace in /opt/amazon/efa for fabric EFA.",
    )
    image_pull_policy: PullPolicy | None = Field(
        None, description="When to pull the image; Kubernetes' default if absent."
    )
    image_pull_secrets: list[LocalObjectReference] = Field(
        default_factory=list, max_length=16, description="Pull secrets.", json_schema_extra=list_map("name")
    )
    version: str | None = Field(
        None,
        max_length=32,
        pattern=r"^[0-9]{1,4}\.[0-9]{1,4}(\.[0-9]{1,4})?([.+-][0-9A-Za-z.+-]+)?$",
        description="vLLM version in the image, such as 0.32.0; read from the image's tag if absent.",
    )
    dtype: DType = Field(DType.AUTO, description="Data type of weights and activations (--dtype).")
    kv_cache_dtype: KVCacheDType = Field(KVCacheDType.AUTO, description="Data type of the KV cache (--kv-cache-dtype).")
    block_size: int | None = Field(
        None, ge=1, le=1024, description="Tokens in a KV block (--block-size); vLLM's choice if absent."
    )
    args: Args = Field(default_factory=list, description="Further vLLM arguments for both roles.")
    env: EnvVars = Field(default_factory=list, description="Further environment variables for both roles.")
    service_account_name: ObjectName | None = Field(
        None, description="ServiceAccount of the engine pods, such as one that may read the weights from S3."
    )
    shutdown_timeout_seconds: int = Field(
        120,
        ge=1,
        le=86400,
        description="Seconds for which a stopping engine finishes its streams (--shutdown-timeout); at least the longest answer.",
    )

    rules: ClassVar = (_ARGS_RULE, *_ENV_RULES)


class RoleSpec(Model):
    """Prefill or decode engines."""

    replicas: int | None = Field(
        None,
        ge=0,
        le=1024,
        description="Engine pods. Absent: somebody else's, such as a HorizontalPodAutoscaler's on the StatefulSet.",
    )
    tensor_parallel_size: int = Field(
        1, ge=1, le=64, description="GPUs that share the model (--tensor-parallel-size); decode's at least prefill's."
    )
    gpus: int | None = Field(
        None, ge=0, le=64, description="Accelerators of one pod; tensorParallelSize if absent. 0 for engines on a CPU."
    )
    gpu_resource: str = Field(
        "nvidia.com/gpu",
        max_length=253,
        pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$",
        description="Resource name of the accelerators.",
    )
    resources: dict[str, Any] = Field(
        default_factory=dict,
        description="Further requests and limits, as in a pod's container; accelerators and EFA are added.",
        json_schema_extra=PRESERVE,
    )
    prefix_caching: bool = Field(True, description="vLLM's own prefix cache on these engines.")
    args: Args = Field(default_factory=list, description="Further vLLM arguments for this role.")
    env: EnvVars = Field(default_factory=list, description="Further environment variables for this role.")
    pod_template: dict[str, Any] = Field(
        default_factory=dict,
        description="Merged into the generated pod template as a strategic merge by name: labels, annotations, sidecars,"
        " volumes. The container vllm is the engine.",
        json_schema_extra=PRESERVE,
    )
    max_unavailable: int = Field(
        1, ge=1, le=1024, description="Most pods of this role that a rollout takes down at once."
    )

    rules: ClassVar = (_ARGS_RULE, *_ENV_RULES)
