"""Reading the routers, and adding up."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from kvloop.api.contract import FirstToken, FirstTokenByArm, ReuseCounters, ReuseSummary
from kvloop.controller.cache import Cache, Key
from kvloop.controller.scrape import Routers, Scraper, added, fetcher, total
from kvloop.controller.settings import SCRAPE_BYTES

from .doubles import KEY, pod, resource

READY = [{"type": "Ready", "status": "True"}]


def summary(turns: int = 0, since: float = 1.0, **more: Any) -> ReuseSummary:
    counters = ReuseCounters(turns=turns)
    fields = {"since": since, "window_seconds": 60, "counters": counters, "window": counters}
    return ReuseSummary(**fields | {"first_token": FirstTokenByArm()} | more)


class Bench:
    """Two routers of one resource, whose answers the test sets."""

    def __init__(self) -> None:
        self.answers: dict[str, ReuseSummary | Exception] = {}
        self.urls: list[str] = []
        self.changed: list[Key] = []
        self.results: list[bool] = []
        self.cache = Cache()
        self.cache.see(resource())
        for name, address in (("r1", "10.0.0.1"), ("r2", "fd00::2")):
            self.cache.see(pod(name, "router", conditions=READY, podIP=address))
        self.scraper = Scraper(self.cache, self.fetch, self.changed.append, self.results.append)

    async def fetch(self, url: str) -> bytes:
        self.urls.append(url)
        answer = self.answers.get(url.removeprefix("http://").removesuffix(":9090/reuse"), OSError("refused"))
        if isinstance(answer, Exception):
            raise answer
        return answer.model_dump_json(by_alias=True).encode()

    def turns(self) -> int | None:
        found = self.scraper.summary(KEY)
        return found.counters.turns if found else None


async def test_every_ready_router_is_read_and_added_up() -> None:
    bench = Bench()
    bench.cache.see(pod("engine", "decode", conditions=READY, podIP="10.0.0.3"))
    bench.cache.see(pod("starting", "router", podIP="10.0.0.4"))
    bench.answers = {"10.0.0.1": summary(3), "[fd00::2]": summary(4)}
    await bench.scraper.scrape()
    assert sorted(bench.urls) == ["http://10.0.0.1:9090/reuse", "http://[fd00::2]:9090/reuse"]
    assert bench.turns() == 7
    assert bench.changed == [KEY]
    await bench.scraper.scrape()
    assert bench.changed == [KEY], "no news"
    assert bench.results == [True] * 4


async def test_routers_without_news_are_read_less_often_until_there_are_some() -> None:
    bench = Bench()
    bench.answers = {"10.0.0.1": summary(3), "[fd00::2]": summary(4)}
    read = []
    for number in range(1, 25):
        if number == 16:
            bench.answers["10.0.0.1"] = summary(5)
        before = len(bench.urls)
        await bench.scraper.scrape()
        if len(bench.urls) > before:
            read.append(number)
    assert read == [1, 2, 4, 8, 12, 16, 17, 18, 20, 24]
    bench.cache.see(pod("r3", "router", conditions=READY, podIP="10.0.0.3"))
    before = len(bench.urls)
    await bench.scraper.scrape()
    assert len(bench.urls) == before + 3, "a new router is news"


async def test_a_silent_router_does_not_hold_up_the_others_and_keeps_its_word_for_a_while() -> None:
    bench = Bench()
    bench.answers = {"10.0.0.1": summary(3), "[fd00::2]": summary(4)}
    await bench.scraper.scrape()
    bench.answers["10.0.0.1"] = TimeoutError()
    windows = []
    for turns in (5, 6, 7):
        bench.answers["[fd00::2]"] = summary(turns)
        await bench.scraper.scrape()
        assert bench.turns() == 3 + turns, "its counts stay"
        found = bench.scraper.summary(KEY)
        assert found is not None
        windows.append(found.window.turns)
    assert windows == [8, 9, 7], "its window goes with the third"
    bench.answers["10.0.0.1"] = summary(3)
    await bench.scraper.scrape()
    assert bench.turns() == 10, "when it answers again, nothing counts twice"


async def test_counts_outlive_a_restart_and_a_replacement() -> None:
    bench = Bench()
    bench.answers = {"10.0.0.1": summary(3), "[fd00::2]": summary(4)}
    await bench.scraper.scrape()
    bench.answers["10.0.0.1"] = summary(1, since=2.0)
    await bench.scraper.scrape()
    assert bench.turns() == 8
    bench.cache.forget(pod("r2", "router"))
    await bench.scraper.scrape()
    assert bench.turns() == 8


async def test_nothing_is_known_before_the_first_answer_nor_after_the_last() -> None:
    bench = Bench()
    await bench.scraper.scrape()
    assert bench.scraper.summary(KEY) is None
    assert bench.changed == []
    bench.answers = {"10.0.0.1": summary(3)}
    await bench.scraper.scrape()
    bench.cache.forget(pod("r1", "router"))
    await bench.scraper.scrape()
    assert bench.scraper.summary(KEY) is None
    assert bench.changed == [KEY, KEY]


async def test_nonsense_counts_as_no_answer() -> None:
    bench = Bench()

    async def nonsense(url: str) -> bytes:
        return b'{"counters": "many"}'

    scraper = Scraper(bench.cache, nonsense, bench.changed.append, bench.results.append)
    await scraper.scrape()
    assert scraper.summary(KEY) is None
    assert bench.results == [False, False]


async def test_a_forgotten_resource_starts_from_nothing() -> None:
    bench = Bench()
    bench.answers = {"10.0.0.1": summary(3)}
    await bench.scraper.scrape()
    bench.scraper.forget(KEY)
    assert bench.scraper.summary(KEY) is None


def test_the_sum() -> None:
    one, two = (
        summary(
            since=since,
            window_seconds=seconds,
            window=ReuseCounters(first_token={"reused": {11: {30: count}}}),
            engines=[{"address": "10.0.0.9:8000", "role": "decode", "revision": "r", "healthy": healthy}],
        )
        for since, seconds, count, healthy in ((5.0, 30, 1, False), (3.0, 60, 3, True))
    )
    found = total([one, two], ReuseCounters(turns=2, misses={"expired": 1}))
    assert (found.since, found.window_seconds) == (3.0, 60)
    assert found.window.first_token == {"reused": {11: {30: 4}}}
    assert found.first_token.reused.count == 4
    assert found.first_token.holdout == FirstToken()
    assert [engine.healthy for engine in found.engines] == [True]
    assert found.counters == ReuseCounters(turns=2, misses={"expired": 1})


def test_counters_are_added_reason_by_reason() -> None:
    one = ReuseCounters(turns=1, misses={"a": 1, "b": 2}, not_eligible={"n": 1})
    two = ReuseCounters(turns=2, reused_tokens=5, misses={"b": 3})
    assert added([one, two]) == ReuseCounters(turns=3, reused_tokens=5, misses={"a": 1, "b": 5}, not_eligible={"n": 1})


def test_a_router_that_never_answered_leaves_nothing() -> None:
    routers = Routers()
    for _ in range(3):
        routers.missed("r")
    assert routers.summary() is None


Handler = Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]


async def get(handler: Handler) -> bytes:
    """Fetch from a server with that handler."""
    application = web.Application()
    application.router.add_get("/reuse", handler)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession() as session:
            port = runner.addresses[0][1]
            return await fetcher(session)(f"http://127.0.0.1:{port}/reuse")
    finally:
        await runner.cleanup()


async def test_fetching_is_bounded_in_size() -> None:
    async def endless(_: web.Request) -> web.Response:
        return web.Response(body=b" " * (SCRAPE_BYTES + 1))

    with pytest.raises(aiohttp.ClientPayloadError):
        await get(endless)


async def test_fetching_reads_all_of_a_slow_answer() -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in (b"{", b"}"):
            await response.write(part)
            await asyncio.sleep(0.01)
        return response

    assert await get(slow) == b"{}"


async def test_an_error_or_a_redirect_is_no_answer() -> None:
    async def broken(_: web.Request) -> web.Response:
        raise web.HTTPServiceUnavailable

    with pytest.raises(aiohttp.ClientResponseError):
        await get(broken)
