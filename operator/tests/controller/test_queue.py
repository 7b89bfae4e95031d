"""The work queue, on a clock that jumps from timer to timer."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest
import uvloop

from kvloop.controller.queue import Backoff, WorkQueue


class JumpingSelector(selectors.SelectSelector):
    """Never waits: the time that the loop would sleep is added to its clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is exact and costs nothing."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class Metrics:
    def __init__(self) -> None:
        self.waits: list[float] = []
        self.retries = 0
        self.depths: list[int] = []

    def depth(self, keys: int) -> None:
        self.depths.append(keys)

    def waited(self, seconds: float) -> None:
        self.waits.append(seconds)

    def retried(self) -> None:
        self.retries += 1


class Bench:
    """A queue with workers that note when they work on what."""

    def __init__(self, settle: float = 0.0, work_seconds: float = 0.0) -> None:
        self.metrics = Metrics()
        self.queue: WorkQueue[str] = WorkQueue(Backoff(1, 60), settle, self.metrics)
        self.seconds = work_seconds
        self.log: list[tuple[float, str]] = []
        self.running: set[str] = set()

    async def process(self, key: str) -> None:
        assert key not in self.running, "two workers on one key"
        self.running.add(key)
        self.log.append((round(asyncio.get_running_loop().time(), 3), key))
        await asyncio.sleep(self.seconds)
        self.running.discard(key)

    async def run(self, workers: int, seconds: float) -> None:
        tasks = [asyncio.create_task(self.queue.work(self.process)) for _ in range(workers)]
        await asyncio.sleep(seconds)
        self.queue.close()
        await asyncio.gather(*tasks)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(scenario())


def test_a_burst_of_additions_is_one_work_after_the_settling_time() -> None:
    async def scenario() -> None:
        bench = Bench(settle=0.2)
        for _ in range(50):
            bench.queue.add("a")
        await bench.run(workers=4, seconds=1)
        assert bench.log == [(0.2, "a")]

    run(scenario)


def test_a_stream_of_additions_does_not_postpone_the_work() -> None:
    async def scenario() -> None:
        bench = Bench(settle=0.5)
        workers = asyncio.create_task(bench.run(workers=1, seconds=3))
        for _ in range(10):
            bench.queue.add("a")
            await asyncio.sleep(0.125)
        await workers
        assert [when for when, _ in bench.log] == [0.5, 1, 1.5]

    run(scenario)


def test_one_worker_at_a_time_per_key_and_once_more_for_what_came_meanwhile() -> None:
    async def scenario() -> None:
        bench = Bench(work_seconds=1.0)
        workers = asyncio.create_task(bench.run(workers=4, seconds=5))
        for _ in range(3):
            bench.queue.add("a")
            bench.queue.add("b")
            await asyncio.sleep(0.25)
        await workers
        assert bench.log == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]

    run(scenario)


def test_work_that_waits_for_nothing_lets_others_run() -> None:
    async def scenario() -> None:
        queue: WorkQueue[int] = WorkQueue(Backoff(1, 60), 0, Metrics())
        done, seen = 0, []

        async def process(key: int) -> None:
            nonlocal done
            done += 1

        for key in range(100):
            queue.add(key)
        workers = [asyncio.create_task(queue.work(process)) for _ in range(4)]
        while done < 100:
            seen.append(done)
            await asyncio.sleep(0)
        queue.close()
        await asyncio.gather(*workers)
        assert max(after - before for before, after in pairwise([*seen, done])) <= 4

    run(scenario)


def test_on_uvloop_as_in_the_operator() -> None:
    """Its handles have less than asyncio's own."""

    async def scenario() -> None:
        bench = Bench()
        for delay in (60, 0, 60):
            bench.queue.add_after("a", delay)
        await bench.run(workers=1, seconds=0.5)
        assert [key for _, key in bench.log] == ["a"]

    uvloop.run(scenario())


def test_the_earliest_of_several_times_counts() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.queue.add_after("a", 10)
        bench.queue.add_after("a", 3)
        bench.queue.add_after("a", 5)
        await bench.run(workers=1, seconds=20)
        assert bench.log == [(3, "a")]

    run(scenario)


def test_work_now_replaces_work_planned_for_later() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.queue.add_after("a", 0)
        workers = asyncio.create_task(bench.run(workers=1, seconds=20))
        await asyncio.sleep(1)
        bench.queue.add_after("a", 10)
        bench.queue.add("a")
        await workers
        assert bench.log == [(0, "a"), (1, "a")]

    run(scenario)


def test_failures_back_off_exponentially_with_jitter_up_to_the_limit() -> None:
    async def scenario() -> None:
        bench = Bench()
        delays = [bench.queue.retry("a") for _ in range(9)]
        for failures, delay in enumerate(delays):
            exact = min(2**failures, 60)
            assert 0.75 * exact <= delay <= 1.25 * exact
        assert bench.metrics.retries == 9
        bench.queue.forget("a")
        assert bench.queue.retry("a") <= 1.25

    run(scenario)


def test_an_event_does_not_wait_for_the_backoff() -> None:
    async def scenario() -> None:
        bench = Bench(settle=0.2)
        for _ in range(6):
            bench.queue.retry("a")
        bench.queue.add("a")
        await bench.run(workers=1, seconds=1)
        assert bench.log == [(0.2, "a")]

    run(scenario)


def test_after_closing_the_present_key_is_finished_and_no_other_begun() -> None:
    async def scenario() -> None:
        bench = Bench(work_seconds=2)
        bench.queue.add("a")
        worker = asyncio.create_task(bench.queue.work(bench.process))
        await asyncio.sleep(1)
        bench.queue.add("a")
        bench.queue.add("b")
        bench.queue.close()
        bench.queue.add("c")
        await worker
        assert bench.log == [(0, "a")]
        assert not bench.running

    run(scenario)


def test_an_exception_in_the_work_ends_the_worker() -> None:
    async def broken(key: str) -> None:
        raise RuntimeError(key)

    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue(Backoff(1, 60), 0, Metrics())
        queue.add("a")
        with pytest.raises(RuntimeError, match="a"):
            await queue.work(broken)

    run(scenario)


def test_depth_and_waiting_time_are_told() -> None:
    async def scenario() -> None:
        bench = Bench(work_seconds=2)
        bench.queue.add("a")
        bench.queue.add("b")
        await bench.run(workers=1, seconds=10)
        assert bench.metrics.waits == [0, 2]
        assert max(bench.metrics.depths) == 2
        assert bench.metrics.depths[-1] == 0

    run(scenario)
