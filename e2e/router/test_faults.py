"""Engines and clients that misbehave: nobody gets a wrong answer, and no request fails because of reuse."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Self

import aiohttp
import orjson
import pytest

from e2e.router import fake
from e2e.router.fake import FakeEngine
from e2e.router.harness import Router, assistant, config, eventually, user
from kvloop.api.labels import Role

TURN_1 = (user("hi"),)
TURN_2 = (user("hi"), assistant("Hello world"), user("go on"))


class Setup:
    """Two prefill engines, two decode engines, one router."""

    def __init__(self, **settings: Any) -> None:
        self.prefill = [FakeEngine("prefill"), FakeEngine("prefill")]
        self.decode = [FakeEngine("decode"), FakeEngine("decode")]
        self._settings = settings
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for engine in (*self.prefill, *self.decode):
            await self._stack.enter_async_context(engine)
        urls = [e.url for e in self.prefill], [e.url for e in self.decode]
        self.router = await self._stack.enter_async_context(Router(config(*urls, **self._settings)))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def holder(self) -> FakeEngine:
        """The decode engine that served the last turn."""
        return max(self.decode, key=lambda e: len(e.seen))

    def only(self, prefill: int = 1, decode: int = 1) -> None:
        """Let the router know of the first engines only."""
        known = {e.address for e in (*self.prefill[:prefill], *self.decode[:decode])}
        pool = self.router.app.pool
        pool.update([e.endpoint for e in pool.all() if e.address in known])

    def handles(self) -> list[str]:
        """Request ids of the handles that prefill got, in no order."""
        return [seen.kv["remote_request_id"] for engine in self.prefill for seen in engine.seen if seen.handle]


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    async with Setup() as made:
        yield made


FAILURES = {"500": fake.status(500), "503": fake.status(503), "cut": fake.drop()}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_leg_that_fails_with_a_handle_is_tried_without_it_at_once(
    setup: Setup, failure: fake.Behaviour, stream: bool
) -> None:
    setup.only()
    await setup.router.chat(*TURN_1, stream=stream)
    setup.prefill[0].script.append(failure)
    await setup.router.chat(*TURN_2, stream=stream)
    legs = [seen.handle for seen in setup.prefill[0].seen]
    assert legs in ([False, True, False], [False, True])  # a cut connection leaves no healthy prefill engine
    counters = (await setup.router.reuse()).counters
    assert counters.failed_transfers == 1
    assert counters.misses == {"transfer_failed": 1}
    assert counters.reused_tokens == 0


async def test_then_on_another_engine_and_then_decode_works_alone(setup: Setup) -> None:
    for engine in setup.prefill:
        engine.script.extend([fake.status(500)] * 3)
    await setup.router.chat(*TURN_1)
    assert [len(engine.seen) for engine in setup.prefill] == [1, 1]
    assert (
        setup.holder().seen[0].kv is None
    )  # or vLLM would keep blocks that nobody can read, without the guard for good
    assert (await setup.router.reuse()).counters.decode_only_turns == 1


@pytest.mark.parametrize("handle", [{"x": 1}, {"do_remote_decode": True, "guard": {}, "remote_num_tokens": "7"}])
@pytest.mark.parametrize("settings", [{}, {"holdoutPercent": 100}], ids=["reuse", "holdout"])
async def test_a_handle_without_what_is_needed_costs_the_next_turn_s_reuse_only(
    handle: dict[str, Any], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeEngine, "handle", lambda _: handle)
    async with Setup(**settings) as setup:
        await setup.router.chat(*TURN_1)
        assert b"[DONE]" in await setup.router.chat(*TURN_2, stream=True)
        assert not any(seen.handle for engine in setup.prefill for seen in engine.seen)


@pytest.mark.parametrize("said", [{"usage": {"prompt_tokens": -5}}, {"guard": {"offered": -1, "verified": -1}}])
async def test_counts_that_cannot_be_cost_nothing(
    setup: Setup, said: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    setup.only()
    engine = setup.prefill[0]
    await setup.router.chat(*TURN_1)
    params = {**engine.prefill_params({}), "guard": said.get("guard", {"offered": 1, "verified": 1})}
    engine.script.append(fake.whole({**engine.answer("x", params), **said}))
    await setup.router.chat(*TURN_2)
    assert not caplog.text


async def test_no_prefill_may_be_a_failure() -> None:
    async with Setup(whenNoPrefill="Fail") as setup:
        setup.only(prefill=0)
        status, body = await setup.router.post({"messages": [user("hi")]})
        assert status == 503
        assert orjson.loads(body)["error"]["code"] == 503
        assert not setup.holder().seen


async def test_a_handle_is_never_sent_twice(setup: Setup) -> None:
    for engine in setup.prefill:
        engine.script.extend([fake.status(500)] * 2)
    await setup.router.chat(*TURN_1)
    for _ in range(5):
        for engine in setup.prefill:
            engine.script.append(fake.status(500))
        await setup.router.chat(*TURN_2)
    handles = setup.handles()
    assert len(handles) == len(set(handles))


async def test_prefill_that_gives_no_parameters_is_noticed(setup: Setup) -> None:
    async def plain(_: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        return aiohttp.web.json_response(FakeEngine("prefill").answer("x", None))

    setup.only()
    setup.prefill[0].script.append(plain)
    await setup.router.chat(*TURN_1)
    assert (await setup.router.reuse()).counters.decode_only_turns == 1
    assert setup.decode[0].seen[0].kv is None


async def test_an_engine_without_an_active_guard_gets_no_handle(setup: Setup) -> None:
    for engine in setup.prefill:
        engine.guard = False
    engines = setup.router.app.pool.usable
    await eventually(lambda: not any(e.info.guard_active for e in engines(Role.PREFILL)), "guard seen inactive")
    await setup.router.chat(*TURN_1)
    await setup.router.chat(*TURN_2)
    assert not setup.handles()
    assert (await setup.router.reuse()).counters.misses == {"guard_inactive": 1}


async def test_an_answer_that_no_guard_checked_is_thrown_away() -> None:
    async with Setup(probeSeconds=300) as setup:
        await setup.router.chat(*TURN_1)
        served = max(setup.prefill, key=lambda e: len(e.seen))
        other = next(e for e in setup.prefill if e is not served)
        served.guard = other.guard = False  # gone between two probes
        await setup.router.chat(*TURN_2)
        assert served.seen[-1].handle
        assert [seen.handle for seen in other.seen] == [False]
        assert (await setup.router.reuse()).counters.misses == {"transfer_failed": 1}
        assert setup.holder().seen[-1].kv["do_remote_prefill"] is True


async def test_a_decode_engine_that_cannot_be_reached_is_replaced(setup: Setup) -> None:
    await setup.router.chat(*TURN_1)
    gone = setup.holder()
    await gone.__aexit__(None, None, None)
    await setup.router.chat(*TURN_2)
    assert len(next(e for e in setup.decode if e is not gone).seen) == 1


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
async def test_prefill_s_parameters_are_not_used_again_once_decode_may_have_read(
    setup: Setup, failure: fake.Behaviour
) -> None:
    for engine in setup.decode:
        engine.script.append(failure)
    status, _ = await setup.router.post({"messages": [user("hi")]})
    assert status in (200, 500, 503)  # 200 by the engine that cut its connection first, and is back
    legs = [seen.kv for engine in setup.decode for seen in engine.seen]
    assert len(legs) == (3 if status == 200 else 2)
    assert legs.count(None) == len(legs) - 1


async def test_no_decode_engine_is_503_with_retry_after(setup: Setup) -> None:
    setup.only(decode=0)
    body = orjson.dumps({"messages": [user("hi")]})
    async with setup.router.session.post(setup.router.url + "/v1/chat/completions", data=body) as answer:
        assert answer.status == 503
        assert int(answer.headers["retry-after"]) > 0
        assert (await answer.json())["error"]["type"] == "ServiceUnavailableError"


@pytest.mark.parametrize("fails", [1, 2])
async def test_where_there_is_no_other_engine_decode_is_asked_to_compute_by_itself(fails: int) -> None:
    """What failed may be the read of prefill's KV. Once: what fails without it fails for another reason."""
    async with FakeEngine("prefill") as p, FakeEngine("decode") as d, Router(config([p.url], [d.url])) as router:
        d.script.extend([fake.status(500)] * fails)
        status, _ = await router.post({"messages": [user("hi")]})
        assert status == (200 if fails == 1 else 500)
        first, second = d.seen
        assert first.kv is not None
        assert second.kv is None


async def test_a_stream_that_breaks_off_ends_with_an_error_event(setup: Setup) -> None:
    setup.only()
    piece = setup.decode[0].events()[0]
    setup.decode[0].script.append(fake.drop(after=piece + b'data: {"half'))
    answer = await setup.router.chat(*TURN_1, stream=True)
    assert answer.startswith(piece)
    error = orjson.loads(answer.removeprefix(piece).removeprefix(b"data: "))
    assert error["error"]["code"] == 502
    await setup.router.chat(*TURN_2)
    assert not setup.handles()


async def test_every_event_reaches_the_client_as_it_comes(setup: Setup) -> None:
    setup.only()
    last = asyncio.Event()
    first, *rest = setup.decode[0].events()
    setup.decode[0].script.append(fake.stream(b": ping\r\n\r\n", first, *rest, until=last, at=2))
    body = orjson.dumps({"messages": [user("hi")], "stream": True})
    async with setup.router.session.post(setup.router.url + "/v1/chat/completions", data=body) as answer:
        seen = b""
        async with asyncio.timeout(30):
            while not seen.endswith(first):
                seen += await answer.content.readany()
        last.set()
        seen += await answer.content.read()
    assert seen == b": ping\r\n\r\n" + b"".join(setup.decode[0].events(with_handle=False))


async def _hang_up(setup: Setup, begun: asyncio.Event, **fields: Any) -> None:
    """Send a turn, and hang up when an engine has it."""
    body = {"messages": [user("hi")], **fields}
    task = asyncio.ensure_future(setup.router.post(body))
    async with asyncio.timeout(30):
        await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_prefill_leg_is_not_aborted_when_the_client_leaves(setup: Setup) -> None:
    setup.only()
    begun, until = asyncio.Event(), asyncio.Event()
    prefill = setup.prefill[0]
    prefill.script.append(fake.held(fake.status(200), until, begun))
    await _hang_up(setup, begun)
    engine = setup.router.app.pool.usable(Role.PREFILL)[0]
    await eventually(lambda: setup.router.app.tally.counters().turns == 1, "the turn has ended")
    assert engine.in_flight == 1
    until.set()
    await eventually(lambda: engine.in_flight == 0, "the leg has ended")
    assert prefill.aborted == 0
    assert not setup.decode[0].seen


@pytest.mark.parametrize("stream", [False, True])
async def test_a_decode_leg_is_closed_when_the_client_leaves(setup: Setup, stream: bool) -> None:
    setup.only()
    begun, never = asyncio.Event(), asyncio.Event()
    decode = setup.decode[0]
    decode.script.append(fake.held(fake.status(200), never, begun))
    await _hang_up(setup, begun, stream=stream)
    await eventually(lambda: decode.aborted == 1, "the leg is aborted")
    await eventually(lambda: setup.router.app.pool.usable(Role.DECODE)[0].in_flight == 0, "the leg has ended")


async def test_legs_have_deadlines() -> None:
    deadlines = {"prefillSeconds": 0.2, "firstByteSeconds": 0.2, "idleSeconds": 0.2}
    async with Setup(deadlines=deadlines) as setup:
        setup.only()
        never = asyncio.Event()
        setup.prefill[0].script.append(fake.held(fake.status(200), never))
        await setup.router.chat(*TURN_1)
        assert (await setup.router.reuse()).counters.decode_only_turns == 1
        setup.decode[0].script.append(fake.held(fake.status(200), never))
        status, _ = await setup.router.post({"messages": [user("hi")]})
        assert status == 504
        first, *rest = setup.decode[0].events()
        setup.decode[0].script.append(fake.stream(first, *rest[:1], until=never))
        answer = await setup.router.chat(*TURN_1, stream=True)
        assert b'"code":502' in answer


async def test_a_terminating_engine_gets_no_new_turn(setup: Setup) -> None:
    pool = setup.router.app.pool
    leaving = {setup.prefill[0].address, setup.decode[0].address}
    await setup.router.chat(*TURN_1)
    changed = [
        type(e.endpoint)(e.role, e.address, "", ready=True, terminating=e.address in leaving) for e in pool.all()
    ]
    pool.update(changed)
    before = len(setup.prefill[0].seen), len(setup.decode[0].seen)
    for i in range(4):
        await setup.router.chat(user(f"hi {i}"))
    assert (len(setup.prefill[0].seen), len(setup.decode[0].seen)) == before


async def test_a_conversation_stays_on_its_engines(setup: Setup) -> None:
    messages = [user("hi")]
    for i in range(6):
        await setup.router.chat(*messages)
        messages += [assistant("Hello world"), user(f"turn {i}")]
    assert sorted(len(e.seen) for e in setup.decode) == [0, 6]
    assert sorted(len(e.seen) for e in setup.prefill) == [0, 6]


async def test_new_conversations_are_spread(setup: Setup) -> None:
    for i in range(8):
        await setup.router.chat(user(f"hi {i}"))
    assert [len(e.seen) for e in (*setup.prefill, *setup.decode)] == [4, 4, 4, 4]


async def test_what_prefill_rejects_decode_answers_in_its_own_words(setup: Setup) -> None:
    setup.only()
    setup.prefill[0].script.append(fake.status(400, "too long"))
    setup.decode[0].script.append(fake.status(400, "the prompt is too long"))
    status, body = await setup.router.post({"messages": [user("hi")]})
    assert status == 400
    assert orjson.loads(body)["error"]["message"] == "the prompt is too long"


async def test_the_holdout_never_reuses() -> None:
    async with Setup(holdoutPercent=100) as setup:
        await setup.router.chat(*TURN_1)
        await setup.router.chat(*TURN_2, stream=True)
        assert not setup.handles()
        summary = await setup.router.reuse()
        assert (summary.counters.follow_ups, summary.counters.misses) == (1, {"holdout": 1})
        assert summary.first_token.holdout.count == 1


async def test_an_entry_that_gives_way_to_a_turn_without_a_handle_has_its_lease_ended(setup: Setup) -> None:
    """Two turns of a conversation with an id, at the same time."""
    setup.only()
    prefill, decode = setup.prefill[0], setup.decode[0]
    until, begun = asyncio.Event(), asyncio.Event()
    decode.script.append(fake.held(fake.whole(decode.answer("x", None)), until, begun))
    stopped = asyncio.ensure_future(setup.router.chat(*TURN_1, conversation_id="c"))
    await begun.wait()
    await setup.router.chat(*TURN_1, conversation_id="c")
    until.set()
    await stopped
    await eventually(lambda: any(seen.ends for seen in prefill.seen), "the lease is ended")
    leases = setup.router.app.core.leases
    assert leases.pinned(decode.address) == 0
    await eventually(lambda: leases.ended == 1, "it is counted")


async def test_a_lease_that_prefill_would_not_end_is_not_counted_as_ended(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    setup.only()
    await setup.router.chat(*TURN_1, conversation_id="c")
    setup.prefill[0].script.append(fake.status(401))
    with caplog.at_level(logging.INFO):
        async with setup.router.session.delete(setup.router.url + "/v1/conversations/c") as answer:
            assert answer.status == 200
        await eventually(lambda: "prefill answered 401" in caplog.text, "the refusal is logged")
    assert setup.router.app.core.leases.ended == 0
