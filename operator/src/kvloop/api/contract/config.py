"""The file of `kvloop-router --config router.yaml`: YAML or JSON, camelCase keys, unknown keys refused.

The operator fills it from the custom resource, and by hand it serves without Kubernetes.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel


class ContractError(ValueError):
    """A file that is no valid router configuration; the message names every wrong field and says what it wants."""


class Contract(BaseModel):
    """A part of the configuration: closed, so that a misspelt key is an error and not a default."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    def to_wire(self) -> dict[str, Any]:
        """The object as it stands in the file: camelCase, defaults written out, absent fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86400)]


class TLS(Contract):
    """Certificate of a listener, as mounted from a kubernetes.io/tls Secret; both files are read again on reload."""

    cert_file: Path = Field(description="PEM file with the certificate and its chain.")
    key_file: Path = Field(description="PEM file with the private key.")


class Listener(Contract):
    """Where clients connect."""

    host: str = Field("", description="Address to bind; every address, IPv4 and IPv6, when empty.")
    port: Port = Field(8000, description="TCP port; 0 lets the system choose one, which the log then names.")
    tls: TLS | None = Field(None, description="Serve HTTPS; plain HTTP when absent.")


class AdminListener(Contract):
    """Where the operator, Prometheus and the kubelet connect; never to be reachable by clients."""

    host: str = Field("", description="Address to bind; every address, IPv4 and IPv6, when empty.")
    port: Port = Field(9090, description="TCP port; 0 lets the system choose one, which the log then names.")


class StaticEngine(Contract):
    """One engine at a fixed address."""

    url: str = Field(
        pattern=r"^http://[^/?#@\s]+/?$",
        max_length=300,
        description="Such as http://10.0.0.7:8000 or http://[fd00::7]:8000; plain HTTP, on a private network.",
    )
    revision: str = Field(
        "", max_length=63, description="Engines exchange KV only with engines of an equal revision; empty is one too."
    )


class StaticEndpoints(Contract):
    """A fixed list of engines, for use without Kubernetes."""

    prefill: list[StaticEngine] = Field(default_factory=list, max_length=1024, description="Prefill engines.")
    decode: list[StaticEngine] = Field(max_length=1024, description="Decode engines.")


class EndpointSlices(Contract):
    """Engines from the EndpointSlices of the routing Services, watched with the pod's own service account."""

    namespace: str = Field(min_length=1, max_length=63, description="Namespace of the slices.")
    name: str = Field(
        min_length=1, max_length=253, description="Name of the custom resource: value of the label kvloop.io/name."
    )
    port_name: str = Field("http", min_length=1, max_length=15, description="Name of the engines' HTTP port.")
    api_server: str | None = Field(
        None, max_length=300, description="URL of the API server; the pod's own environment tells it when absent."
    )
    token_file: Path = Field(
        Path("/var/run/secrets/kubernetes.io/serviceaccount/token"), description="Bearer token; read at every request."
    )
    ca_file: Path = Field(
        Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"),
        description="PEM file to check the API server with.",
    )


class Endpoints(Contract):
    """Where the engines are; exactly one source."""

    static: StaticEndpoints | None = Field(None, description="A fixed list.")
    endpoint_slices: EndpointSlices | None = Field(None, description="Kubernetes EndpointSlices.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.static is None) == (self.endpoint_slices is None):
            raise ValueError("set exactly one of endpoints.static and endpoints.endpointSlices")
        return self


class Transfer(Contract):
    """What the engines were started with; the router keeps its own clock within these."""

    bidirectional: bool = Field(True, description="bidirectional_kv_xfer of the engines. False: no reuse.")
    decoder_kv_blocks_ttl_seconds: float = Field(
        480,
        alias="decoderKVBlocksTTLSeconds",
        ge=15,
        le=86400,
        description="decoder_kv_blocks_ttl of the engines, in seconds. A handle is forgotten 10 s before it ends.",
    )
    kv_recompute_threshold_tokens: int = Field(
        64,
        alias="kvRecomputeThresholdTokens",
        ge=0,
        le=1048576,
        description="kv_recompute_threshold of the engines, in tokens: fewer are computed, and counted as such.",
    )


class MemoryStore(Contract):
    """Conversations in the router's own memory."""

    max_conversations: int = Field(
        100_000, ge=1, le=10_000_000, description="Most conversations held; the least recently used is forgotten first."
    )


class ValkeyStore(Contract):
    """Conversations in a Valkey or Redis server, shared by several routers."""

    url: str = Field(
        max_length=1024,
        pattern=r"^(redis|rediss|valkey|valkeys|unix)://",
        description="Such as redis://valkey:6379/0; rediss:// for TLS.",
    )
    password_file: Path | None = Field(None, description="File that holds the password; read at every connect.")
    ca_file: Path | None = Field(None, description="PEM file to check the server with; the system's when absent.")
    timeout_seconds: float = Field(
        0.05, gt=0, le=5, description="Longest wait for the server in a turn, in seconds; beyond it the turn is a miss."
    )


class Store(Contract):
    """Where handles are remembered between turns; memory by default."""

    memory: MemoryStore | None = Field(None, description="In the router's own memory: one router only.")
    valkey: ValkeyStore | None = Field(None, description="In Valkey or Redis: any number of routers.")

    @model_validator(mode="after")
    def _one_store(self) -> Self:
        if self.memory and self.valkey:
            raise ValueError("set at most one of store.memory and store.valkey")
        return self


class WhenNoPrefill(StrEnum):
    """What happens to a turn when no prefill engine can take it."""

    DECODE_LOCALLY = "DecodeLocally"
    FAIL = "Fail"


class Deadlines(Contract):
    """Longest times of a turn's legs, in seconds; a leg beyond its deadline is closed and counts as failed."""

    connect_seconds: Seconds = Field(5, description="TCP connect to an engine, in seconds.")
    prefill_seconds: Seconds = Field(300, description="Prefill leg, until its whole answer, in seconds.")
    first_byte_seconds: Seconds = Field(300, description="Decode leg, until the head of its answer, in seconds.")
    idle_seconds: Seconds = Field(300, description="Decode leg, between two pieces of its answer, in seconds.")


class Limits(Contract):
    """Bounds on what clients may cause."""

    max_request_bytes: int = Field(
        64 << 20, ge=1024, le=1 << 30, description="Largest request body, in bytes; beyond it the answer is 413."
    )
    max_turns_per_engine: int = Field(
        1024,
        ge=1,
        le=1_000_000,
        description="Turns on one decode engine at a time; beyond it turns queue.",
    )
    max_queued_turns: int = Field(
        1024, ge=0, le=1_000_000, description="Turns waiting for a decode engine; beyond it the answer is 429."
    )
    queue_seconds: Seconds = Field(30, description="Longest wait for a decode engine, in seconds; then 429.")


class CircuitBreaker(Contract):
    """When an engine, or a pair of engines, is left alone for a while."""

    failures: int = Field(3, ge=1, le=1000, description="Failed legs in a row, without a good one between.")
    open_seconds: Seconds = Field(10, description="How long until one turn tries it again, in seconds.")


class RouterConfig(Contract):
    """Configuration of one router process. Only `listen` and `admin` need a restart; all else is reloaded."""

    listen: Listener = Field(default_factory=Listener, description="The client port.")
    admin: AdminListener = Field(default_factory=AdminListener, description="The admin port.")
    endpoints: Endpoints = Field(description="Where the engines are.")
    transfer: Transfer = Field(default_factory=Transfer, description="How the engines exchange KV.")
    store: Store = Field(default_factory=Store, description="Where handles are remembered.")
    resource_uid: str = Field(
        "",
        max_length=128,
        description="uid of the custom resource that this is of, said again in /reuse: another one of the same name"
        " has other numbers. Empty without Kubernetes.",
    )
    api_keys_folder: Path | None = Field(
        None,
        description="Folder whose files hold one accepted API key each, as a mounted Secret does; read again"
        " when it changes. Every client is served when absent.",
    )
    holdout_percent: int = Field(
        0, ge=0, le=100, description="Percent of conversations, by hash, that never reuse; to measure against."
    )
    lease_seconds: float | None = Field(
        None,
        ge=15,
        le=86400,
        description="End leases after this many seconds without a follow-up; the TTL when absent.",
    )
    max_pinned_percent: int = Field(
        50,
        ge=1,
        le=100,
        description="End leases while their estimated share of a decode engine's KV cache is above this: those"
        " that have waited longer than half of all gaps between turns, and then the newest.",
    )
    when_no_prefill: WhenNoPrefill = Field(
        WhenNoPrefill.DECODE_LOCALLY,
        description="Serve a turn on decode alone, or fail it with 503.",
    )
    tenant_header: str | None = Field(
        None,
        max_length=128,
        pattern=r"^[A-Za-z0-9-]+$",
        description="Header, set by a trusted gateway, that tells tenants apart; the Authorization header when absent.",
    )
    deadlines: Deadlines = Field(default_factory=Deadlines, description="Longest times of a turn's legs.")
    limits: Limits = Field(default_factory=Limits, description="Bounds on what clients may cause.")
    circuit_breaker: CircuitBreaker = Field(default_factory=CircuitBreaker, description="When an engine is left alone.")
    probe_seconds: float = Field(
        5,
        ge=0.1,
        le=300,
        description="Time between two reads of an engine's /metrics, in seconds.",
    )
    window_seconds: float = Field(
        600, ge=1, le=86400, description="Length of the window that /reuse sums up, in seconds."
    )
    drain_seconds: float = Field(
        600,
        ge=0,
        le=86400,
        description="Longest wait for running turns after SIGTERM, in seconds.",
    )
    access_log: bool = Field(True, description="One JSON line a turn on standard output; never any content.")


def parse(data: Any, source: str = "router configuration") -> RouterConfig:
    """The configuration in the decoded content of a file; raises `ContractError`, which calls it `source`."""
    if not isinstance(data, dict):
        raise ContractError(f"{source} must be a mapping with at least the key endpoints")
    try:
        return RouterConfig.model_validate(data)
    except ValidationError as error:
        lines = [f"  {_where(e['loc'])}: {_what(e)}" for e in error.errors()]
        raise ContractError("\n".join([f"{source} is not valid:", *lines])) from error


def _where(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or "(the whole file)"


def _what(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown key; keys are camelCase, see the reference of the router's configuration"
    if error["type"] == "missing":
        return "is required"
    return f"{error['msg'].removeprefix('Value error, ')} (got {error['input']!r:.80})"
