"""One pass over one custom resource: observe, plan, apply, status. Looks at all there is, never at what happened."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from kvloop.api.labels import API_VERSION, KIND, Condition
from kvloop.api.v1alpha1 import DisaggregatedInference, Status, parse
from kvloop.controller import observe
from kvloop.controller.apply import Applier, Outcome, failure_of
from kvloop.controller.blueprints import Blueprints
from kvloop.controller.cache import Cache, Key, ResourceEntry
from kvloop.controller.events import Poster
from kvloop.controller.metrics import Metrics
from kvloop.controller.nodes import Nodes
from kvloop.controller.queue import WorkQueue
from kvloop.controller.scrape import Scraper
from kvloop.controller.settings import UNREADY_RECHECK_SECONDS, WARNINGS_AFTER_SECONDS
from kvloop.controller.warnings import Warnings
from kvloop.kube.client import KubeClient
from kvloop.kube.errors import ConflictError, InvalidError, KubeError, NotFoundError, UnavailableError
from kvloop.plan import reuse
from kvloop.plan.config import PlanConfig
from kvloop.plan.desired import Desired, plan
from kvloop.plan.events import transitions
from kvloop.plan.observed import ApplyFailure, ChildRef, NodeKind, Observed
from kvloop.plan.status import status

log = logging.getLogger(__name__)


@dataclass
class Reconciler:
    """What a pass needs; call it with a key. Decides too when the key comes again."""

    kube: KubeClient
    cache: Cache
    queue: WorkQueue[Key]
    applier: Applier
    poster: Poster
    scraper: Scraper
    warnings: Warnings
    nodes: Nodes
    metrics: Metrics
    config: PlanConfig
    status_seconds: float = reuse.MIN_SECONDS
    clock: Callable[[], float] = time.time
    left_out: dict[Key, set[tuple[str, ...]]] = field(default_factory=dict)
    """Fields of the status that the API server does not take."""

    def __post_init__(self) -> None:
        self._blueprints = Blueprints(self.config)

    async def __call__(self, key: Key) -> None:
        """Make a pass. No failure of one resource gets out: it is logged, counted, and tried again with backoff."""
        start, result = time.monotonic(), "ok"
        try:
            if await self._pass(key):
                self.queue.forget(key)
            else:
                result = "retry"
        except UnavailableError as error:
            result = "retry"
            log.warning("the API server takes no requests: %s", error, extra=key.extra)
        except Exception:
            result = "error"
            log.exception("the pass failed", extra=key.extra)
        if result != "ok":
            self.queue.retry(key)
        self.metrics.passed(result, time.monotonic() - start)

    async def _pass(self, key: Key) -> bool:
        """Whether nothing is left that another try would mend."""
        entry = self.cache.resource(key)
        if entry is None:
            self.applier.forget(key)
            self.scraper.forget(key)
            self.warnings.forget(key)
            self._blueprints.forget(key)
            self.left_out.pop(key, None)
            return True
        try:
            cr = parse(entry.to_body())
        except ValidationError as error:
            # Only an object stored under another version of the CRD gets here; an edit of it brings the next pass.
            log.error("the resource cannot be read: %s", error, extra=key.extra)  # noqa: TRY400 (no trace is of help)
            return True
        outcome = Outcome()
        if await self.warnings.read(key):
            outcome.look_again(WARNINGS_AFTER_SECONDS)
        desired = plan(cr, self._observe(key), self.config, self._blueprints.of(key, cr))
        if not entry.deleting:
            await self.applier.apply(key, entry.uid, desired.children, outcome, desired.keep)
            await self._delete_pods(key, desired, outcome)
        await self._status(key, cr, entry, desired, outcome)
        if outcome.recheck is not None:
            self.queue.add_after(key, outcome.recheck)
        return not outcome.retry

    def _observe(
        self, key: Key, failures: tuple[ApplyFailure, ...] = (), capacity: tuple[NodeKind, ...] | None = None
    ) -> Observed:
        warnings = self.warnings.about(key)
        pods = tuple(
            observe.with_probe_failure(entry.pod, warnings.get(entry.uid, ())) for entry in self.cache.pods(key)
        )
        waiting = (container.message for pod in pods for container in pod.containers if container.message)
        mounts = (warning.message for pod in pods for warning in warnings.get(pod.uid, ()))
        return Observed(
            now=self.clock(),
            children={
                ref: observe.with_create_failure(entry.child, warnings.get(entry.uid, ()))
                for ref, entry in self.cache.children(key).items()
            },
            pods=pods,
            missing=observe.missing((*waiting, *mounts)),
            capacity=capacity,
            measured=self.scraper.measured(key),
            apply_failures=failures,
        )

    async def _delete_pods(self, key: Key, desired: Desired, outcome: Outcome) -> None:
        """Delete the pods that the rollout replaces and their StatefulSet does not, or not yet."""
        uids = {entry.pod.name: entry.uid for entry in self.cache.pods(key) if not entry.pod.deleting}
        for name in desired.delete_pods:
            if uid := uids.get(name):
                try:
                    await self.kube.delete("Pod", key.namespace, name, uid)
                except (NotFoundError, ConflictError):
                    continue  # gone, or another one by now: an event tells
                except UnavailableError:
                    raise
                except KubeError as error:
                    outcome.refused(failure_of(ChildRef("Pod", name), error))
                    log.warning("pod %s may not be deleted: %s", name, error, extra=key.extra)
                    continue
                self.cache.mark_deleting(key, name)
                log.info("deleted pod %s: the rollout replaces it", name, extra=key.extra)

    async def _status(
        self, key: Key, cr: DisaggregatedInference, entry: ResourceEntry, desired: Desired, outcome: Outcome
    ) -> None:
        """Write the status if it differs from what is there, and post what changed."""
        previous = entry.to_status()
        words = {entry.pod.unschedulable for entry in self.cache.pods(key) if entry.pod.is_engine} - {""}
        capacity = await self.nodes.kinds(desired.node_selector, " ".join(sorted(words))) if words else None
        observed = self._observe(key, tuple(outcome.failures), capacity)
        wanted = self._taken(key, status(cr, observed, desired, previous, self.status_seconds))
        before, after = Status.read(previous), Status.read(wanted)
        if observed.measured and not reuse.is_due(before, observed.now, self.status_seconds):
            outcome.look_again(self.status_seconds)
        if not any(each.type == Condition.READY and each.status == "True" for each in after.conditions):
            outcome.look_again(UNREADY_RECHECK_SECONDS)
        if before == after:
            return
        try:
            answer = await self._write(key, entry.uid, wanted)
        except (NotFoundError, ConflictError):
            return  # gone, or another one by now: an event tells
        self.cache.see(answer)
        await self.poster.post(key, entry.uid, transitions(previous, wanted))

    async def _write(self, key: Key, uid: str, wanted: dict[str, Any]) -> dict[str, Any]:
        """Apply the status; a field that the API server refuses, as with an older CRD, is left out from then on."""
        while True:
            try:
                return await self.kube.apply_status(_with_status(key, uid, wanted))
            except InvalidError as error:
                path = tuple(error.path.split(".")[1:])
                left_out = self.left_out.setdefault(key, set())
                if not path or path in left_out:
                    raise
                left_out.add(path)
                log.warning(
                    "left out of the status: is the installed CRD older than this operator? %s",
                    error.message,
                    extra=key.extra,
                )
                wanted = self._taken(key, wanted)

    def _taken(self, key: Key, wanted: dict[str, Any]) -> dict[str, Any]:
        """The status without what the API server does not take."""
        for path in self.left_out.get(key, ()):
            wanted = _without(wanted, path)
        return wanted


def _without(tree: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The same without the field at `path`."""
    first, *rest = path
    if rest and isinstance(tree.get(first), dict):
        return tree | {first: _without(tree[first], tuple(rest))}
    return {name: value for name, value in tree.items() if name != first}


def _with_status(key: Key, uid: str, wanted: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"namespace": key.namespace, "name": key.name, "uid": uid},
        "status": wanted,
    }
