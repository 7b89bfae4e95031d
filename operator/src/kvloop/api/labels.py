"""Every label, annotation, port and container name, condition type and reason. No literal of these elsewhere."""

from enum import StrEnum
from typing import Final

GROUP: Final = "kvloop.io"
VERSION: Final = "v1alpha1"
KIND: Final = "DisaggregatedInference"
PLURAL: Final = "disaggregatedinferences"
API_VERSION: Final = f"{GROUP}/{VERSION}"

FIELD_MANAGER: Final = "kvloop"
"""The one server-side apply field manager, for children and for status."""

# Labels. Never app.kubernetes.io/instance: Argo CD decides by it which application owns an object.
APP_NAME: Final = "app.kubernetes.io/name"
APP_COMPONENT: Final = "app.kubernetes.io/component"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY_VALUE: Final = "kvloop"
NAME: Final = f"{GROUP}/name"
"""Name of the custom resource; on every child and pod."""
ROLE: Final = f"{GROUP}/role"
"""prefill or decode; on engine pods, routing Services and, through them, EndpointSlices."""
REVISION: Final = f"{GROUP}/revision"
"""Hash of everything that must be equal for P and D to exchange KV; on the same objects as ROLE."""

# Annotations.
APPLIED_HASH: Final = f"{GROUP}/applied-hash"
"""Digest of the object as it was last applied; an equal digest means that nothing is written."""
CONFIG_HASH: Final = f"{GROUP}/config-hash"
"""On pod templates: digest of mounted content that is read at start only."""
TEMPLATE_HASH: Final = f"{GROUP}/template-hash"
"""On engine pod templates, and so on pods: digest of the template; a pod with another one is to be replaced."""

# Containers and ports.
ENGINE_CONTAINER: Final = "vllm"
ROUTER_CONTAINER: Final = "router"
HTTP_PORT: Final = "http"
SIDE_CHANNEL_PORT: Final = "side-channel"
ADMIN_PORT: Final = "admin"
ENGINE_HTTP: Final = 8000
NIXL_SIDE_CHANNEL: Final = 5600
"""vLLM's default for VLLM_NIXL_SIDE_CHANNEL_PORT."""
ROUTER_ADMIN: Final = 9090


class Role(StrEnum):
    """The two roles of an engine."""

    PREFILL = "prefill"
    DECODE = "decode"


class Condition(StrEnum):
    """Types of status conditions. Ready, Reconciling and Stalled are read by kstatus."""

    READY = "Ready"
    AVAILABLE = "Available"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    KV_TRANSFER_VERIFIED = "KVTransferVerified"


class Reason(StrEnum):
    """Reasons of conditions and events: one CamelCase word each."""

    # All is well.
    READY = "Ready"
    AVAILABLE = "Available"
    RECONCILED = "Reconciled"
    VERIFIED = "Verified"
    # Patience: time heals it.
    PROGRESSING = "Progressing"
    MODEL_LOADING = "ModelLoading"
    ENGINE_NOT_READY = "EngineNotReady"
    PODS_PENDING = "PodsPending"
    ROLLING_OUT = "RollingOut"
    ROUTER_NOT_READY = "RouterNotReady"
    NO_READY_PAIR = "NoReadyPair"
    PAUSED = "Paused"
    SCALED_TO_ZERO = "ScaledToZero"
    DELETING = "Deleting"
    # Capacity: the cluster cannot give what was asked for.
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    EFA_UNAVAILABLE = "EFAUnavailable"
    ZONES_SPLIT = "ZonesSplit"
    # Fault: somebody must act.
    IMAGE_PULL_FAILED = "ImagePullFailed"
    SECRET_NOT_FOUND = "SecretNotFound"  # noqa: S105 (a reason, not a secret)
    CONFIG_MAP_NOT_FOUND = "ConfigMapNotFound"
    VOLUME_NOT_READY = "VolumeNotReady"
    ENGINE_CRASHED = "EngineCrashed"
    ENGINE_OUT_OF_MEMORY = "EngineOutOfMemory"
    ROUTER_CRASHED = "RouterCrashed"
    ADMISSION_REFUSED = "AdmissionRefused"
    INVALID_POD_TEMPLATE = "InvalidPodTemplate"
    IMMUTABLE_FIELD = "ImmutableField"
    NAME_CONFLICT = "NameConflict"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    APPLY_FAILED = "ApplyFailed"
    # KV transfer.
    NO_TRAFFIC = "NoTraffic"
    NO_TRANSFERS = "NoTransfers"
    GUARD_INACTIVE = "GuardInactive"
    DECODE_ONLY = "DecodeOnly"
    TRANSPORT_FALLBACK = "TransportFallback"
    EXPIRING = "Expiring"
    METRICS_UNREADABLE = "MetricsUnreadable"
    DISABLED = "Disabled"
