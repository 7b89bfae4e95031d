"""What is wrong with pods of the newest templates: those of older ones are on their way out."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kvloop.api.labels import Reason
from kvloop.plan.container_states import CRASH_LOOP, CRASHES, NOT_PULLED, NOT_STARTED
from kvloop.plan.observed import Container, Pod
from kvloop.plan.status.problem import Problem, brief, names, worst_of
from kvloop.plan.status.view import View

_PASSING: Final = re.compile(
    r"time(d )?out|deadline exceeded|connection (refused|reset)|TLS handshake|temporary failure|\bEOF\b|unreachable"
    r"|too ?many ?requests|QPS exceeded|internal server error|bad gateway|service unavailable|RegistryUnavailable",
    re.IGNORECASE,
)
"""Causes of a failed pull or start that pass by themselves."""
_FORBIDDEN: Final = re.compile(r"unauthorized|denied|forbidden|authentication|no basic auth", re.IGNORECASE)
_REFUSED_BY_KUBELET: Final = re.compile(r"Admission|^OutOf|^Node(Affinity|Ports)")


def _containers(view: View) -> Iterator[tuple[Pod, Container]]:
    return ((pod, container) for pod in view.waiting_for for container in pod.containers)


def image_pull_failed(view: View) -> Problem | None:
    """An image cannot be pulled."""
    return worst_of(_pull(pod, each) for pod, each in _containers(view) if each.waiting in NOT_PULLED)


def _pull(pod: Pod, container: Container) -> Problem:
    # While the kubelet backs off it puts words of its own before the cause, or gives none.
    cause = re.sub(r"^Back-off pulling image \S+?(: ErrImagePull: |$)", "", container.message)
    passing = _PASSING.search(f"{container.waiting} {cause}")
    remedy = "It is tried again." if passing else _image_remedy(pod, cause)
    because = f" ({brief(cause)})" if cause else ""
    message = f'{pod.name} cannot pull image "{container.image}"{because}. {remedy}'
    return Problem(Reason.IMAGE_PULL_FAILED, message, stalls=not passing)


def _image_remedy(pod: Pod, cause: str) -> str:
    if _FORBIDDEN.search(cause):
        return "Give credentials in spec.engine.imagePullSecrets."
    return f"Correct {'spec.engine.image' if pod.is_engine else 'the image'}, or push it."


def crashed(view: View) -> Problem | None:
    """A container ended, and is started again and again."""
    return worst_of(
        # Between two crashes it looks alive; it has recovered when it is ready.
        replace(problem, stalls=problem.stalls or view.was_stalled_by(problem.reason))
        for pod, container in _containers(view)
        if (problem := _crash(pod, container)) is not None
    )


def _crash(pod: Pod, container: Container) -> Problem | None:
    reason = Reason.ENGINE_CRASHED if pod.is_engine else Reason.ROUTER_CRASHED
    who = f"{pod.name}: container {container.name}"
    if container.waiting in NOT_STARTED:
        cause = container.message or container.waiting
        return Problem(reason, f"{who} cannot be started ({brief(cause)}).", stalls=not _PASSING.search(cause))
    ended = container.exit_code is not None and not container.started
    if not ended or (container.exit_code == 0 and container.waiting != CRASH_LOOP):
        return None
    looping = container.waiting == CRASH_LOOP and container.restarts + 1 >= CRASHES
    times = f"restarted {container.restarts} time{'s' if container.restarts != 1 else ''}"
    if container.terminated == "OOMKilled":
        field = f"spec.{pod.component if pod.is_engine else 'router'}.resources"
        message = f"{who} ran out of memory, {times}. Raise limits.memory in {field}."
        return Problem(Reason.ENGINE_OUT_OF_MEMORY if pod.is_engine else reason, message, stalls=looping)
    logs = f"kubectl logs {pod.name} --container {container.name} --previous"
    message = f"{who} ended with exit code {container.exit_code}, {times}. See {logs}."
    return Problem(reason, message, stalls=looping)


def ended(view: View) -> Problem | None:
    """A pod as a whole has failed; its controller makes another."""
    for pod in view.waiting_for:
        if pod.phase == "Failed":
            refused = _REFUSED_BY_KUBELET.search(pod.reason)
            reason = Reason.ADMISSION_REFUSED if refused else Reason.PODS_PENDING
            return Problem(reason, f"{pod.name} has failed and is replaced ({brief(pod.message or pod.reason)}).")
    return None


def loading(view: View) -> Problem | None:
    """Engines that run and have not been ready since they started."""
    engines = [pod for pod in view.waiting_for if pod.is_engine and _runs(pod) and not _was_ready(pod)]
    if not engines:
        return None
    unstarted = [pod for pod in engines if not _started(pod)]
    if not unstarted and any(pod.probe_failure for pod in engines):
        return not_ready(view)
    if not unstarted:
        return Problem(Reason.MODEL_LOADING, f"Loaded, about to be ready: {names(engines)}.")
    return Problem(Reason.MODEL_LOADING, f"Loading the model: {names(unstarted)}.")


def not_ready(view: View) -> Problem | None:
    """Engines that have started, and do not pass their readiness probe, or not any more."""
    engines = [pod for pod in view.waiting_for if pod.is_engine and _runs(pod) and _started(pod)]
    if not engines:
        return None
    failure = next((f" ({brief(pod.probe_failure)})" for pod in engines if pod.probe_failure), "")
    when = ", after it was ready" if all(map(_was_ready, engines)) else ""
    message = f"Fails the readiness probe{when}: {names(engines)}{failure}."
    return Problem(Reason.ENGINE_NOT_READY, f"{message} See kubectl describe pod {engines[0].name} and its log.")


def _runs(pod: Pod) -> bool:
    return any(container.running for container in pod.containers)


def _started(pod: Pod) -> bool:
    return all(container.started for container in pod.containers if container.running)


def _was_ready(pod: Pod) -> bool:
    """Whether it was ready since its containers run: readiness then changed after they had started."""
    return pod.ready_changed_at > max(container.started_at for container in pod.containers if container.running)
