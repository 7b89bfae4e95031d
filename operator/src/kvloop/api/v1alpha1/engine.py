"""`spec.engine`, `spec.prefill` and `spec.decode`: the vLLM pods."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from kvloop.api.v1alpha1.base import LocalObjectReference, Model, ObjectName, Rule, list_map
from kvloop.api.v1alpha1.owned import Args, EnvVars
from kvloop.api.v1alpha1.pod import EFA_RESOURCE, HUGEPAGES_RESOURCE, PodTemplate, Resources, owned_resource_rule


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
        pattern=r"^[0-9]{1,4}\.[0-9]{1,4}(\.[0-9]{1,4})?(rc[0-9]{1,3})?([.+-][0-9A-Za-z.+-]+)?$",
        description="vLLM version in the image, such as 0.32.0; read from the image's tag if absent.",
    )
    dtype: DType = Field(DType.AUTO, description="Data type of weights and activations.")
    kv_cache_dtype: KVCacheDType = Field(KVCacheDType.AUTO, description="Data type of the KV cache.")
    block_size: int | None = Field(None, ge=1, le=1024, description="Tokens in a KV block; vLLM's choice if absent.")
    args: Args = Field(default_factory=list, description="Further vLLM arguments for both roles.")
    env: EnvVars = Field(default_factory=list, description="Further environment variables for both roles.")
    service_account_name: ObjectName | None = Field(
        None, description="ServiceAccount of the engine pods, such as one that may read the weights from S3."
    )
    shutdown_timeout_seconds: int = Field(
        120,
        ge=1,
        le=86400,
        description="Seconds for which a stopping engine finishes its streams: the time of the"
        " longest answer, or more.",
    )


class RoleSpec(Model):
    """Prefill or decode engines."""

    replicas: int | None = Field(
        None,
        ge=0,
        le=1024,
        description="Engine pods. Absent: somebody else's, such as a HorizontalPodAutoscaler's on the StatefulSet.",
    )
    tensor_parallel_size: int = Field(
        1, ge=1, le=64, description="GPUs that share the model; decode's at least prefill's."
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
    resources: Resources = Field(
        default_factory=dict,
        description="Further requests and limits, as in a pod's container; accelerators and EFA are added.",
    )
    prefix_caching: bool = Field(True, description="vLLM's own prefix cache on these engines.")
    args: Args = Field(default_factory=list, description="Further vLLM arguments for this role.")
    env: EnvVars = Field(default_factory=list, description="Further environment variables for this role.")
    pod_template: PodTemplate = Field(
        default_factory=dict,
        description="Merged into the generated pod template as a strategic merge by name: labels, annotations,"
        " sidecars, volumes. The container vllm is the engine.",
    )
    max_unavailable: int = Field(
        1, ge=1, le=1024, description="Most pods of this role that a rollout takes down at once."
    )

    rules: ClassVar = (
        Rule(
            "!has(self.gpus) || self.gpus == 0 || self.gpus >= self.tensorParallelSize",
            "gpus must be at least tensorParallelSize, or 0 for engines on a CPU",
            field_path=".gpus",
        ),
        Rule(
            "!has(self.gpuResource) || !self.gpuResource.startsWith('aws.amazon.com/')",
            "Neuron devices are not supported: use GPUs",
            field_path=".gpuResource",
        ),
        owned_resource_rule("self.gpuResource", "gpus"),
        owned_resource_rule(f"'{EFA_RESOURCE}'", "transfer.efa.devicesPerPod"),
        owned_resource_rule(f"'{HUGEPAGES_RESOURCE}'", "transfer.efa.hugepages2Mi"),
    )
