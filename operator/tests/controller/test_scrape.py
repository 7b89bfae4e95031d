"""Reading routers and engines, in rounds."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from kvloop.api.contract import FirstTokenByArm, ReuseCounters, ReuseSummary
from kvloop.api.labels import NAME
from kvloop.controller.cache import Cache, Key
from kvloop.controller.scrape import Scraper, fetcher
from kvloop.controller.settings import SCRAPE_BYTES
from kvloop.plan.measured import Measured

from .doubles import KEY, OWNER, Body, pod, resource

READY = [{"type": "Ready", "status": "True"}]
WALL = datetime(2030, 1, 2, 3, 5, 0, tzinfo=UTC).timestamp()
"""The doubles' pods are 55 s old."""
WINDOW = 600.0


def summary(turns: int = 0, since: float = 1.0, uid: str = OWNER, **more: Any) -> ReuseSummary:
    counters = ReuseCounters(turns=turns, follow_ups=turns)
    fields: dict[str, Any] = {"since": since, "window_seconds": 60, "counters": counters, "window": counters}
    return ReuseSummary(**fields | {"first_token": FirstTokenByArm(), "resource_uid": uid, "version": 2} | more)


def exposition(fetched: int = 0, boot: str = "b") -> str:
    source = 'vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"}'
    return f'{source} {fetched}.0\nkvloop_engine_info{{active="1",boot_id="{boot}"}} 1.0\n'


@dataclass
class Bench:
    """Two routers and two engines of one resource, whose answers the test sets."""

    answers: dict[str, ReuseSummary | str | Exception] = field(default_factory=dict)
    urls: list[str] = field(default_factory=list)
    changed: list[Key] = field(default_factory=list)
    results: list[tuple[str, bool]] = field(default_factory=list)
    now: float = 1000.0
    wall: float = WALL
    asked: asyncio.Event | None = None

    def __post_init__(self) -> None:
        self.cache = Cache()
        self.cache.see(resource())
        for name, component, address in (
            ("r1", "router", "10.0.0.1"),
            ("r2", "router", "fd00::2"),
            ("p", "prefill", "10.0.0.3"),
            ("d", "decode", "10.0.0.4"),
        ):
            self.cache.see(pod(name, component, conditions=READY, podIP=address))
        self.scraper = self.operator()

    def operator(self) -> Scraper:
        """As after a start."""
        return Scraper(
            self.cache,
            self.fetch,
            self.changed.append,
            lambda *result: self.results.append(result),
            WINDOW,
            lambda: self.now,
            lambda: self.wall,
        )

    async def fetch(self, url: str) -> bytes:
        self.urls.append(url.removeprefix("http://"))
        if self.asked:
            self.asked.set()
        answer = self.answers.get(self.urls[-1].rpartition(":")[0], OSError("refused"))
        if isinstance(answer, Exception):
            raise answer
        return (answer if isinstance(answer, str) else answer.model_dump_json(by_alias=True)).encode()

    async def round(self, seconds: float = 60, **answers: ReuseSummary | str | Exception) -> Measured | None:
        """Time passes, pods answer (by name), and all are read."""
        addresses = {"r1": "10.0.0.1", "r2": "[fd00::2]", "p": "10.0.0.3", "d": "10.0.0.4"}
        self.answers |= {addresses[name]: answer for name, answer in answers.items()}
        self.now += seconds
        self.wall += seconds
        await self.scraper.scrape()
        return self.scraper.measured(KEY)

    async def turns(self, **answers: ReuseSummary | str | Exception) -> tuple[int, int]:
        """Turns over the window and in all, after another round."""
        found = await self.round(60, **answers)
        assert found
        return found.window.turns, found.life.turns

    async def fetched(self, **answers: ReuseSummary | str | Exception) -> float:
        """Tokens that prefill fetched, after another round."""
        found = await self.round(60, **answers)
        assert found
        return found.prefill.fetched_tokens


async def test_routers_and_engines_are_read_and_added_up() -> None:
    bench = Bench()
    bench.cache.see(pod("starting", "router", podIP="10.0.0.9"))
    found = await bench.round(r1=summary(3), r2=summary(4), p=exposition(500), d=exposition(70))
    assert found
    assert (found.window.turns, found.prefill.fetched_tokens, found.decode.fetched_tokens) == (7, 500, 70)
    assert [(engine.pod, engine.role, engine.guard) for engine in found.engines] == [
        ("d", "decode", "active"),
        ("p", "prefill", "active"),
    ]
    assert sorted(bench.urls) == [
        "10.0.0.1:9090/reuse",
        "10.0.0.3:8000/metrics",
        "10.0.0.4:8000/metrics",
        "[fd00::2]:9090/reuse",
    ]
    assert sorted(bench.results) == [("engine", True)] * 2 + [("router", True)] * 2
    await bench.round()
    assert bench.changed == [KEY], "no news"
    assert bench.scraper.measured(KEY) is found


async def test_the_busiest_window_is_remembered() -> None:
    bench = Bench()
    first = await bench.round(r1=summary(0))
    assert first
    assert first.busiest_per_second == 0, "a window that has just begun may be a burst's"
    busy = await bench.round(WINDOW, r1=summary(int(6 * WINDOW)))
    calm = await bench.round(3 * WINDOW, r1=summary(int(6 * WINDOW) + 1))
    assert busy
    assert calm
    assert 5 <= busy.busiest_per_second <= 6
    assert calm.window.turns == 1
    assert calm.busiest_per_second == busy.busiest_per_second


async def test_engines_are_not_asked_while_no_router_answers() -> None:
    """Nobody could be told of it; a thousand dead resources must not cost a thousand timeouts each."""
    bench = Bench()
    assert await bench.round(p=exposition(), d=exposition()) is None
    assert not [url for url in bench.urls if url.endswith("metrics")]
    assert bench.changed == []


async def test_where_nothing_changes_fewer_rounds_are_made() -> None:
    bench = Bench()
    read = []
    for number in range(1, 25):
        before = len(bench.urls)
        await bench.round(1, r1=summary(3 if number < 16 else 5), r2=summary(4))
        if len(bench.urls) > before:
            read.append(number)
    assert read == [1, 2, 4, 8, 12, 16, 17, 18, 20, 24]
    bench.cache.see(pod("r3", "router", conditions=READY, podIP="10.0.0.9"))
    before = len(bench.urls)
    await bench.round()
    assert len(bench.urls) > before, "a new pod is news"


async def test_counts_leave_the_window_and_stay_in_all() -> None:
    bench = Bench()
    assert await bench.turns(r1=summary(3)) == (3, 3)
    assert await bench.turns(r1=summary(10)) == (10, 10)
    seen = [await bench.turns() for _ in range(16)]
    assert seen[0] == (10, 10)
    assert seen[-1] == (0, 10)


async def test_counts_outlive_a_restart_a_replacement_and_a_silence() -> None:
    bench = Bench()
    assert await bench.turns(r1=summary(3), r2=summary(4)) == (7, 7)
    assert await bench.turns(r1=summary(1, since=2.0)) == (8, 8), "it counts from 0 again"
    assert await bench.turns(r2=TimeoutError()) == (8, 8)
    assert await bench.turns(r2=summary(6)) == (10, 10), "nothing is lost or counts twice"
    bench.cache.forget(pod("r2", "router"))
    assert await bench.turns() == (10, 10)
    assert await bench.turns(r1=summary(2, since=2.0)) == (11, 11)


async def test_what_engines_count_outlives_them() -> None:
    bench = Bench()
    assert await bench.fetched(r1=summary(1), p=exposition(500)) == 500
    assert await bench.fetched(p=exposition(20, boot="c")) == 520, "another start"
    assert await bench.fetched(p=exposition(5, boot="c")) == 525, "a counter fell"
    bench.cache.forget(pod("p"))
    assert await bench.fetched(r1=summary(2)) == 525
    bench.cache.see(pod("p2", conditions=READY, podIP="10.0.0.3"))
    bench.wall = WALL
    assert await bench.fetched(p=exposition(30, boot="d")) == 555, "young: all it counted came within the window"


async def test_an_engine_that_does_not_answer_is_told_apart() -> None:
    bench = Bench()
    await bench.round(r1=summary(1), p=exposition(500), d=exposition())
    found = await bench.round(p=OSError("refused"), r1=summary(2))
    assert found
    assert {engine.pod: engine.read for engine in found.engines} == {"p": False, "d": True}
    assert found.prefill.fetched_tokens == 500
    found = await bench.round(r1=summary(3), p=exposition(600))
    assert found
    assert found.prefill.fetched_tokens == 600


async def test_an_operator_that_starts_later_begins_with_the_routers_own_window() -> None:
    """Engines keep none: theirs begins now, and so do the counters that are held beside them."""
    bench = Bench(wall=WALL + 10_000)
    grown, ten = ReuseCounters(turns=100, follow_ups=90), ReuseCounters(turns=10, follow_ups=9)
    found = await bench.round(r1=summary(counters=grown, window=ten), r2=summary(10), p=exposition(5000))
    assert found
    assert (found.window.turns, found.life.turns) == (20, 110)
    assert (found.beside.follow_ups, found.prefill.fetched_tokens, found.young) == (0, 0, True)
    found = await bench.round(r1=summary(counters=ReuseCounters(turns=104, follow_ups=93)), p=exposition(5400))
    assert found
    assert (found.window.turns, found.beside.follow_ups, found.prefill.fetched_tokens) == (24, 3, 400)
    found = await bench.round(WINDOW, r1=summary(105))
    assert found
    assert not found.young


async def test_routers_of_another_resource_of_this_name_do_not_count() -> None:
    """Deleted and created anew at once: the old pods are still there, and read their new configuration later."""
    bench = Bench()
    assert await bench.round(r1=summary(50, uid="another"), r2=summary(50, uid="")) is None
    assert await bench.turns(r1=summary(2, since=5.0)) == (2, 2)
    bench.cache.forget(resource())
    new = resource()
    new["metadata"]["uid"] = "another"
    bench.cache.see(new)
    found = await bench.round(r1=summary(3, since=5.0))
    assert found is None, "what the first one's routers counted is not the second one's"


async def test_a_silent_router_does_not_empty_the_status_at_once() -> None:
    bench = Bench()
    await bench.round(r1=summary(3))
    heard = [await bench.round(r1=TimeoutError()) is not None for _ in range(8)]
    assert heard == [True, True, True, True, True, True, False, False], "three rounds that were made"
    assert bench.changed[-1] == KEY
    assert await bench.turns(r1=summary(3)) == (3, 3)


async def test_nonsense_counts_as_no_answer() -> None:
    bench = Bench()
    assert await bench.round(r1='{"counters": "many"}') is None
    assert bench.results == [("router", False)] * 2
    found = await bench.round(r1=summary(1), p="vllm:prompt_tokens_by_source_total many\n\x00{{{")
    assert found
    assert found.prefill.fetched_tokens == 0


@pytest.mark.parametrize(
    "counters",
    [
        '{"turns": 1' + "0" * 400 + "}",
        '{"time": {"gapSeconds": Infinity}}',
        '{"misses": {' + ", ".join(f'"{i}": 1' for i in range(1000)) + "}}",
        '{"misses": {"' + "x" * 1000 + '": 1}}',
        '{"firstToken": {' + ", ".join(f'"{i}": {{}}' for i in range(1000)) + "}}",
    ],
)
async def test_numbers_that_nobody_can_have_counted_are_no_answer(counters: str) -> None:
    bench = Bench()
    answer = f'{{"resourceUid": "{OWNER}", "since": 1, "windowSeconds": 1, "firstToken": {{}}'
    assert await bench.round(r1=f'{answer}, "counters": {counters}, "window": {{}}}}') is None
    assert await bench.round(r1=f'{answer}, "counters": {{}}, "window": {{}}}}') is not None


async def test_sums_that_nobody_can_have_counted_are_no_numbers() -> None:
    """Each answer alone could be true."""
    bench = Bench()
    for i in range(3):
        misses = {f"{i}-{j}": 1 for j in range(60)}
        measured = await bench.round(r1=summary(counters=ReuseCounters(misses=misses), since=i))
    assert measured is None
    assert bench.changed == [KEY, KEY]
    bench = Bench()
    for i in range(100):
        text = "\n".join(f'kvloop_guard_handles_total{{reason="{i}-{j}"}} 1' for j in range(200))
        await bench.round(r1=summary(i), p=text)
    assert bench.results.count(("engine", True)) < 60, "no more is taken from it"
    many = {i: dict.fromkeys(range(160), 1) for i in range(100)}
    assert await Bench().round(r1=summary(counters=ReuseCounters(first_token={"reused": many}))) is None


async def test_a_cache_is_used_by_no_more_than_all() -> None:
    found = await Bench().round(r1=summary(1), d="vllm:kv_cache_usage_perc 1e308\n")
    assert found
    assert [engine.used_percent for engine in found.engines] == [0]
    found = await Bench().round(r1=summary(1), d="vllm:kv_cache_usage_perc 1e9\n")
    assert found
    assert [engine.used_percent for engine in found.engines] == [100]


async def test_an_error_of_ours_stays_with_its_resource(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    other = resource()
    other["metadata"] |= {"name": "other", "uid": "uid-of-other"}
    router = pod("r3", "router", conditions=READY, podIP="10.0.0.5")
    router["metadata"]["labels"] |= {NAME: "other"}
    for body in (other, router):
        bench.cache.see(body)
    bench.answers["10.0.0.5"] = RuntimeError("a bug")
    assert await bench.turns(r1=summary(3)) == (3, 3)
    bench.scraper.hurry(KEY)
    await bench.scraper.scrape_leaving()
    assert caplog.text.count("a bug") == 1


async def test_a_forgotten_resource_starts_from_nothing() -> None:
    bench = Bench()
    await bench.round(r1=summary(3))
    bench.scraper.forget(KEY)
    assert bench.scraper.measured(KEY) is None


def leaving(name: str, component: str, address: str) -> Body:
    body = pod(name, component, version=2, conditions=[], podIP=address)
    body["metadata"]["deletionTimestamp"] = "2030-01-02T03:05:00Z"
    return body


async def test_a_pod_that_is_about_to_go_is_read_between_rounds() -> None:
    """What it still serves counts, and nobody could be asked for it later."""
    bench = Bench()
    bench.answers = {"10.0.0.1": summary(3), "[fd00::2]": summary(4)}
    asked = asyncio.Event()
    running = asyncio.create_task(bench.scraper.run(3600))
    async with asyncio.timeout(10):
        while bench.scraper.measured(KEY) is None:  # noqa: ASYNC110 (the round at the start has no event of its own)
            await asyncio.sleep(0)
        bench.cache.see(leaving("r1", "router", "10.0.0.1"))
        bench.answers["10.0.0.1"] = summary(9)
        bench.urls.clear()
        bench.asked = asked
        bench.scraper.hurry(KEY)
        await asked.wait()
    running.cancel()
    assert set(bench.urls) == {"10.0.0.1:9090/reuse"}, "the others can wait"
    bench.cache.forget(pod("r1", "router"))
    assert await bench.turns() == (13, 13)


async def test_leaving_pods_are_read_again_while_they_answer() -> None:
    bench = Bench()
    await bench.round(r1=summary(3), p=exposition(1))
    bench.cache.see(leaving("r1", "router", "10.0.0.1"))
    bench.cache.see(leaving("p", "prefill", "10.0.0.3"))
    bench.urls.clear()
    bench.scraper.hurry(KEY)
    for _ in range(3):
        await bench.scraper.scrape_leaving()
    assert sorted(bench.urls) == ["10.0.0.1:9090/reuse"] * 3 + ["10.0.0.3:8000/metrics"] * 3
    bench.answers.clear()
    for _ in range(3):
        await bench.scraper.scrape_leaving()
    assert len(bench.urls) == 8, "once in vain"
    bench.scraper.hurry(Key("no", "such"))
    bench.scraper.forget(KEY)
    await bench.scraper.scrape_leaving()
    assert len(bench.urls) == 8


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
