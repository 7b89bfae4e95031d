"""Everything about the operator that can be set, each with its reason; flags and environment follow from this table."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import kvloop
from kvloop.engine import bundle
from kvloop.plan.config import VALKEY_IMAGE, ApiAvailable, PlanConfig

_PREFIX = "KVLOOP_"


def _setting(default: Any, text: str, **metadata: Any) -> Any:
    return field(default=default, metadata={"help": text, **metadata})


@dataclass(frozen=True)
class Settings:
    """Settings of one operator process. Durations are in seconds."""

    namespace: tuple[str, ...] = _setting((), "namespace to serve; may be repeated; all namespaces if left out")
    router_image: str = _setting(
        f"kvloop/router:{kvloop.__version__}", "image of the router where a resource names none"
    )
    valkey_image: str = _setting(VALKEY_IMAGE, "image of the Valkey of resources with router.store.valkey.managed")
    scrape_namespace: tuple[str, ...] = _setting(
        (), "namespace of Prometheus, which may then read engines and routers; may be repeated; no other may"
    )
    cluster_domain: str = _setting("cluster.local", "DNS domain of the cluster")
    metrics_port: int = _setting(8080, "port of /metrics for Prometheus; 0 lets the system choose one", least=0)
    liveness_port: int = _setting(8081, "port of /healthz for the kubelet", least=0)
    log_format: str = _setting("json", "json, with the object of every line, or text", choices=("json", "text"))
    log_level: str = _setting(
        "info", "debug, info or warning: the least severe lines that are written", choices=("debug", "info", "warning")
    )
    workers: int = _setting(
        8, "resources that are worked on at a time; more only wait for the one core that Python uses", least=1
    )
    settle_seconds: float = _setting(
        0.2,
        "how long an event waits for others of the same resource; a dozen children come into being in a burst",
        least=0,
    )
    resync_seconds: float = _setting(
        600, "time between two passes over everything, against what no event told; costs a list of each kind", least=10
    )
    scrape_seconds: float = _setting(60, "time between two reads of what routers and engines count", least=1)
    window_seconds: float = _setting(600, "length of the window that status.reuse tells of", least=10)
    status_seconds: float = _setting(
        60,
        "least time between two writes of status.reuse, status.advice and KVTransferVerified; each wakes all who watch",
        least=1,
    )
    canary_seconds: float = _setting(
        30,
        "time between two writes of the operator's own Lease; deaf for three of them, the liveness probe fails",
        least=1,
    )
    request_seconds: float = _setting(
        30, "longest API request; Kopf's default of 300 would hold an object for five minutes", least=1
    )
    pod_namespace: str = _setting("kvloop-system", "namespace of the operator's own pod and Lease", env="POD_NAMESPACE")
    pod_name: str = _setting("kvloop-operator", "name of the operator's own pod, for its Lease", env="POD_NAME")

    @property
    def canary_namespace(self) -> str:
        """Where the Lease is: the operator's own namespace if it is watched, else the first that is."""
        return self.namespace[0] if self.namespace else self.pod_namespace


def plan_config(settings: Settings, *, pod_monitors: bool) -> PlanConfig:
    """What the planner is told; `pod_monitors` is whether the cluster serves that kind."""
    return PlanConfig(
        router_image=settings.router_image,
        valkey_image=settings.valkey_image,
        scrape_namespaces=settings.scrape_namespace,
        plugin_files=bundle.files(),
        cluster_domain=settings.cluster_domain,
        api_available=ApiAvailable(pod_monitor=pod_monitors),
        operator_namespace=settings.pod_namespace,
    )


BACKOFF_FIRST_SECONDS = 1.0
"""First delay after a failed pass; most failures are a conflict or a restarting API server and over by then."""
BACKOFF_LIMIT_SECONDS = 300.0
"""Longest delay after failures in a row, so that a healed cause is noticed within five minutes."""
UNREADY_RECHECK_SECONDS = 60.0
"""A resource that is not ready is looked at this often without an event, since deadlines make none."""
WARNINGS_AFTER_SECONDS = 10.0
"""How long a pod may be mute, or a StatefulSet lack pods, before the events about it are read; few are so long."""
WARNINGS_EVERY_SECONDS = 60.0
"""Time between two reads of the events about one object; `WARNINGS_AFTER_SECONDS` in the first minute of silence."""
NODES_SECONDS = 30.0
"""How long a list of nodes is believed by those about whom the scheduler has the same words."""
REJECTION_SECONDS = 600.0
"""The API server's final no to an object is believed for this long; what made it say so, as a policy, may change."""
NAME_CONFLICT_RECHECK_SECONDS = 30.0
"""A child whose name is taken is tried again this often: the taker is not watched."""
PAGE_SIZE = 100
"""Objects in a page of a list. A page of metadata is some 5 MB once it is read, one of whole objects may be 10."""
STOP_SECONDS = 10.0
"""How long running passes may take to end after SIGTERM; well below the pod's grace period of 30."""
FILL_RECHECK_SECONDS = 30.0
"""How long the watches may take to bring what a list found, before the list is repeated."""
SCRAPE_TIMEOUT_SECONDS = 3.0
"""Longest read of one router or engine; both answer from memory, but a busy engine is slow to."""
SCRAPE_CONCURRENCY = 16
"""Pods that are read at a time; bounds sockets and memory."""
SCRAPE_BYTES = 1 << 20
"""Largest answer; a summary with a thousand engines has a quarter of it, and so have an engine's metrics."""
SCRAPE_MISSES = 3
"""The last numbers are kept for as many rounds without an answer, so that a lost packet does not empty the status."""
SCRAPE_SLOWEST = 4
"""Where nothing changes, every fourth round is made at the least, so that a thousand idle resources cost little."""
SCRAPE_LEAVING_SECONDS = 2.0
"""Time between two reads of a pod that is about to go."""
EVENT_REPEAT_SECONDS = 600.0
"""An equal Event about the same object is not posted again within this time."""
CANARY_PERIODS = 3
"""Periods without the operator's own Lease coming back, after which it counts as deaf."""


def parse(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Settings from the command line, else from the environment, else the defaults. Exits on what is not understood."""
    parser = argparse.ArgumentParser(
        prog="kvloop-operator",
        description="Kubernetes operator for DisaggregatedInference resources. Times are in seconds. Each setting is"
        " also read from the environment variable in brackets.",
    )
    parser.add_argument("--version", action="version", version=kvloop.__version__)
    for setting in fields(Settings):
        _add(parser, setting)
    given = list(sys.argv[1:] if arguments is None else arguments)
    values = vars(parser.parse_args([*_from(environment, given), *given]))
    for setting in fields(Settings):
        least = setting.metadata.get("least")
        if least is not None and values[setting.name] < least:
            parser.error(f"{_flag(setting)} must be at least {least:g}")
    repeated = {setting.name: tuple(values[setting.name]) for setting in fields(Settings) if _repeats(setting)}
    return Settings(**values | repeated)


@dataclass(frozen=True)
class Described:
    """A setting in words."""

    flag: str
    variable: str
    """Of the environment."""
    default: str
    text: str


def described() -> list[Described]:
    """All settings, in the order of the table."""
    return [_described(setting) for setting in fields(Settings)]


def _described(setting: Any) -> Described:
    default = str(setting.default or "none")
    return Described(_flag(setting), _variable(setting), default, setting.metadata["help"])


def _add(parser: argparse.ArgumentParser, setting: Any) -> None:
    options: dict[str, Any] = {"type": setting.type, "choices": setting.metadata.get("choices")}
    if _repeats(setting):
        options = {"action": "append"}
    words = _described(setting)
    parser.add_argument(
        words.flag,
        default=list(setting.default) if _repeats(setting) else setting.default,
        help=f"{words.text} (default: {words.default}) [{words.variable}]",
        **options,
    )


def _from(environment: Mapping[str, str], given: Sequence[str]) -> list[str]:
    """Arguments that the environment stands for, without those that are given."""
    return [
        f"{_flag(setting)}={value}"
        for setting in fields(Settings)
        if not any(each.partition("=")[0] == _flag(setting) for each in given)
        for value in _values(setting, environment.get(_variable(setting), ""))
    ]


def _values(setting: Any, text: str) -> list[str]:
    parts = text.split(",") if _repeats(setting) else [text]
    return [part for part in parts if part]


def _repeats(setting: Any) -> bool:
    return isinstance(setting.default, tuple)


def _flag(setting: Any) -> str:
    return "--" + str(setting.name).replace("_", "-")


def _variable(setting: Any) -> str:
    return str(setting.metadata.get("env", _PREFIX + setting.name.upper()))
