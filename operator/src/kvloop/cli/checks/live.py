"""A resource that runs: its guards, its transfers, its answers. Sends a few short requests."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, Final

from kvloop.api.contract.summary import ReuseSummary
from kvloop.api.labels import ROLE, ROUTER_ADMIN
from kvloop.cli.checks.engines import HANDLE, Engine, RefusedError, Server, engine
from kvloop.cli.checks.exchange import STEPS, WORDS, WRONG, Exchange, ExchangeError, pairs
from kvloop.cli.checks.finding import Finding, Level, fail, ok, unseen, warn
from kvloop.cli.load import prose
from kvloop.cli.reach import Reach, bastion, is_ready
from kvloop.kube.client import Body
from kvloop.kube.errors import ForbiddenError, KubeError
from kvloop.kube.session import Session
from kvloop.plan.router import CLIENT_PORT
from kvloop.plan.scope import Scope

API_KEY: Final = "KVLOOP_API_KEY"
"""Environment variable with a key of the router's, where it wants one."""
_REPLY_TOKENS: Final = 24
MOST_TOKENS: Final = 1024
"""Highest threshold for which a check waits, since its replies are longer."""
ROOM_TOKENS: Final = 2000
"""What the check's conversation takes, beside two replies."""
_AT_ONCE: Final = 4
_STATUS: Final = "see kvloop status"
_UNREACHABLE: Final = (
    "the API server, or else a router, must reach pods for this; kvloop status tells what the operator sees"
)


async def live(session: Session, scope: Scope, pods: list[Body], advance: Callable[[], None]) -> AsyncIterator[Finding]:
    """Everything that can be asked of a resource's pods."""
    router = bastion(pods)
    reach = Reach(session, router)
    found, problems = await _engines(reach, pods)
    for finding in problems:
        yield finding
    if found:
        yield guards(found)
        for finding in await _exchanges(scope, found, advance):
            yield finding
    if router is None:
        yield fail("Router", "none is ready", "see its log")
    else:
        yield await _router(scope, Server(reach, router, CLIENT_PORT), found)


async def _engines(reach: Reach, pods: list[Body]) -> tuple[list[Engine], list[Finding]]:
    found, problems = [], []
    for pod in pods:
        if ROLE in pod["metadata"]["labels"] and is_ready(pod):
            try:
                found.append(await engine(reach, pod))
            except ForbiddenError as error:
                return found, [unseen("Engines", error.message)]
            except (KubeError, RefusedError) as error:
                problems.append(warn(f"Engine {pod['metadata']['name']}", str(error).splitlines()[0], _UNREACHABLE))
    return found, problems


def guards(engines: list[Engine]) -> Finding:
    """The guard is active in every engine."""
    without = [each.name for each in engines if not each.guarded]
    if without:
        remedy = (
            "see what its log says of kvloop at start: VLLM_PLUGINS without kvloop, or a vLLM that it does not know"
        )
        return fail("Guard", f"is not active in {', '.join(without)}", remedy)
    versions = sorted({f"plugin {each.info['plugin_version']} in vLLM {each.info['vllm_version']}" for each in engines})
    return ok("Guard", f"active in all {len(engines)} engines, {', '.join(versions)}")


async def _exchanges(scope: Scope, engines: list[Engine], advance: Callable[[], None]) -> list[Finding]:
    """Two turns with each engine; a step is well if it is so with every pair that has come to it.

    Whether KV was read is seen by the engines' counters, which count other traffic, too.
    """
    threshold, most = scope.spec.transfer.kv_recompute_threshold_tokens, scope.spec.model.max_length
    if threshold > MOST_TOKENS or (most and most < ROOM_TOKENS + 2 * threshold):
        detail = f"a threshold of {threshold} tokens is too high, or maxLength too low, for a short check"
        return [warn("KV transfer", detail, _STATUS)]
    if not scope.spec.transfer.bidirectional:
        return [warn("KV transfer", "transfer.bidirectional is false", "set it to true, unless meant so")]
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(prefill: Engine, decode: Engine) -> ExchangeError | None:
        async with limit:
            try:
                await Exchange(scope.spec.model.name, prefill, decode, threshold).run()
            except ExchangeError as error:
                return error
            except (KubeError, RefusedError) as error:
                return ExchangeError(STEPS[0], str(error), _UNREACHABLE, Level.WARN)
            finally:
                advance()
            return None

    held = pairs(engines)
    if not held:
        detail = "there is no pair of one revision whose guards are active and that was told to send KV back"
        return [fail("KV transfer", detail, _STATUS)]
    return steps(await asyncio.gather(*(one(*pair) for pair in held)))


def steps(results: list[ExchangeError | None]) -> list[Finding]:
    """One finding for each step, of all pairs together. What comes after a failed step is not known."""
    found = []
    left = len(results)
    for step in STEPS:
        failed = [each for each in results if each and each.step == step]
        found += [Finding(step, each.level, each.detail, each.remedy) for each in failed]
        left -= len(failed)
        if left and not failed:
            found.append(ok(step, f"with {left} of {len(results)} pairs of engines"))
    return found


async def _router(scope: Scope, router: Server, engines: list[Engine]) -> Finding:
    """Two turns through a router, as a client holds them: the second one reuses, is right, and tells no address."""
    key = os.environ.get(API_KEY)
    if scope.spec.router.api_keys_secret_ref and not key:
        return warn("Router", "wants an API key, and has not been asked", f"set {API_KEY}")
    headers = {"X-Api-Key": key} if key else {}
    try:
        return await _turns(scope, router, engines, headers)
    except ForbiddenError as error:
        return unseen("Router", error.message)
    except RefusedError as error:
        return fail("Router", str(error), "see the router's log, and kvloop status")
    except KubeError as error:
        return warn("Router", error.message.splitlines()[0], _UNREACHABLE)


async def _turns(scope: Scope, router: Server, engines: list[Engine], headers: dict[str, str]) -> Finding:
    words = WORDS + scope.spec.transfer.kv_recompute_threshold_tokens
    messages = [{"role": "user", "content": prose(f"router {uuid.uuid4()}", words)}]
    size = {"max_tokens": _REPLY_TOKENS, "min_tokens": _REPLY_TOKENS}  # an empty answer would prove nothing
    body: dict[str, Any] = {"model": scope.spec.model.name, "temperature": 0, **size}
    first = await router.stream({**body, "messages": messages}, headers)
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "Go on, please."}]
    before = await _reuse(router)
    second = await router.stream({**body, "messages": messages}, headers | {"X-Conversation-End": "true"})
    after = await _reuse(router)
    if first.handle or second.handle:
        return fail("Router", f"lets {HANDLE} through to clients", "report it: they tell the engines' addresses")
    if engines:
        cold = await engines[0].stream({**body, "messages": messages, "cache_salt": uuid.uuid4().hex})
        if cold.said != second.said:
            return fail("Router", "a second turn is answered otherwise than a cold engine answers it", WRONG)
    if before is None or after is None:
        return warn("Router", "answers rightly; whether it reused was not told", _UNREACHABLE)
    return reused(before, after)


async def _reuse(router: Server) -> ReuseSummary | None:
    try:
        return ReuseSummary.model_validate_json((await replace(router, port=ROUTER_ADMIN).ask("/reuse")).text)
    except (KubeError, RefusedError):
        return None


def reused(before: ReuseSummary, after: ReuseSummary) -> Finding:
    """Whether the turn between two summaries was reused; turns of others may have come between, too."""
    tokens = after.counters.reused_tokens - before.counters.reused_tokens
    if tokens:
        return ok("Router", f"the second turn was answered rightly, with {tokens} tokens of reused KV")
    counted, earlier = (each.counters.misses | each.counters.not_eligible for each in (after, before))
    why = next((reason for reason, count in counted.items() if count > earlier.get(reason, 0)), "unknown")
    if why == "holdout":
        return ok("Router", "the second turn was answered rightly, and held out from reuse, as holdoutPercent wants")
    return fail("Router", f"the second turn reused nothing: {why}", "look up the miss in the router's documentation")
