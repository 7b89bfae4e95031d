"""`spec.router`: the data plane that returns each conversation's KV to prefill."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from kvloop.api.contract import WhenNoPrefill
from kvloop.api.v1alpha1.base import LocalObjectReference, Model, Rule, SecretKeyRef
from kvloop.api.v1alpha1.owned import Variables
from kvloop.api.v1alpha1.pod import Resources


class ServiceType(StrEnum):
    """Type of the client Service."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class MemoryStore(Model):
    """Conversations in the router's own memory: one replica only."""

    max_conversations: int = Field(
        100000, ge=1, le=10000000, description="Most conversations held; the least recently used is forgotten first."
    )


class ValkeyStore(Model):
    """Conversations in a Valkey or Redis server, shared by several routers."""

    url: str | None = Field(
        None,
        max_length=1024,
        pattern=r"^(redis|rediss|valkey|valkeys|unix)://",
        description="Such as redis://valkey:6379/0; rediss:// for TLS. No password here: use passwordSecretRef.",
    )
    password_secret_ref: SecretKeyRef | None = Field(None, description="Password of the server.")
    managed: bool = Field(
        False, description="Run a Valkey of one replica beside the router; holds hints only, so no backup."
    )

    rules: ClassVar = (
        Rule("has(self.url) != self.managed", "set exactly one of valkey.url and valkey.managed: true"),
        Rule(
            "!has(self.url) || !self.url.matches('^[a-z]+://[^/]*:[^/@]*@')",
            "url must not hold a password; put it into a Secret and name it in passwordSecretRef",
            field_path=".url",
        ),
    )


class StoreSpec(Model):
    """Where the router remembers handles; memory by default."""

    memory: MemoryStore | None = Field(None, description="In the router's own memory.")
    valkey: ValkeyStore | None = Field(None, description="In Valkey or Redis.")

    rules: ClassVar = (Rule("!(has(self.memory) && has(self.valkey))", "set at most one of memory and valkey"),)


class DeadlineSpec(Model):
    """Longest times of a turn's legs, in seconds."""

    prefill_seconds: int = Field(300, ge=1, le=86400, description="Prefill leg, until its whole answer.")
    first_byte_seconds: int = Field(300, ge=1, le=86400, description="Decode leg, until the first byte.")
    idle_seconds: int = Field(300, ge=1, le=86400, description="Decode leg, between two pieces of the stream.")
    connect_seconds: int = Field(5, ge=1, le=600, description="TCP connect to an engine.")


class RouterServiceSpec(Model):
    """The Service that clients use."""

    type: ServiceType = Field(ServiceType.CLUSTER_IP, description="Type of the Service.")
    annotations: dict[str, Annotated[str, Field(max_length=4096)]] = Field(
        default_factory=dict, max_length=64, description="Annotations of the Service, such as those of a load balancer."
    )


class RouterSpec(Model):
    """The router Deployment."""

    replicas: int = Field(1, ge=0, le=64, description="Router pods; more than one needs store.valkey.")
    image: str | None = Field(
        None, min_length=1, max_length=1024, description="Router image; the operator's default fits its own version."
    )
    resources: Resources = Field(
        default_factory=dict, description="Resource requests and limits, as in a pod's container."
    )
    env: Variables = Field(
        default_factory=list,
        description="Further environment variables, such as OTEL_EXPORTER_OTLP_ENDPOINT for traces.",
    )
    port: int = Field(8000, ge=1, le=65535, description="Port of the client Service.")
    store: StoreSpec = Field(default_factory=StoreSpec, description="Where handles are remembered.")
    api_keys_secret_ref: LocalObjectReference | None = Field(
        None,
        description="Secret whose values are the accepted API keys; reloaded on change. None: every client is served.",
    )
    holdout_percent: int = Field(
        0, ge=0, le=100, description="Percent of conversations that never reuse, to measure against."
    )
    lease_seconds: int | None = Field(
        None,
        ge=15,
        le=86400,
        description="End decode's leases after this many seconds without a follow-up, before their TTL; the TTL by"
        " default.",
    )
    max_pinned_percent: int = Field(
        50,
        ge=1,
        le=100,
        description="End leases when their estimated share of decode's KV cache is above this percentage: those"
        " that have waited longer than half of all gaps between turns, and then the newest.",
    )
    when_no_prefill: WhenNoPrefill = Field(
        WhenNoPrefill.DECODE_LOCALLY,
        description="Serve a turn on decode alone, or fail it with 503, when no prefill is left.",
    )
    tenant_header: str | None = Field(
        None,
        max_length=128,
        pattern=r"^[A-Za-z0-9-]+$",
        description="Header, set by a trusted gateway, that tells tenants apart; the Authorization header by default.",
    )
    deadlines: DeadlineSpec = Field(default_factory=DeadlineSpec, description="Longest times of a turn's legs.")
    service: RouterServiceSpec = Field(default_factory=RouterServiceSpec, description="The client Service.")
