"""The memory store: taken once, forgotten in time, bounded."""

import asyncio
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from kvloop.router.store import Entry, Found
from kvloop.router.store.memory import MemoryStore


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def entry(name: str) -> Entry:
    return Entry(name.encode(), "10.0.0.1:8000", "boot", "rev", "", 10)


A, B = entry("a"), entry("b")


async def test_an_entry_is_taken_once() -> None:
    store = MemoryStore(10, Clock())
    await store.put(b"k", A, 60)
    assert await store.take([b"k"]) == Found(A, key=b"k")
    assert await store.take([b"k"]) == Found(reason="used", key=b"k")


async def test_the_first_key_with_an_entry_counts_and_the_others_stay() -> None:
    store = MemoryStore(10, Clock())
    await store.put(b"old", A, 60)
    await store.put(b"older", B, 60)
    assert await store.take([b"new", b"old", b"older"]) == Found(A, key=b"old")
    assert await store.take([b"older"]) == Found(B, key=b"older")


async def test_an_unknown_conversation_has_not_been_seen() -> None:
    found = await MemoryStore(10, Clock()).take([b"k"])
    assert not found.seen


async def test_it_expires_and_says_so() -> None:
    clock = Clock()
    store = MemoryStore(10, clock)
    await store.put(b"k", A, 60)
    clock.now += 60
    assert await store.take([b"k"]) == Found(reason="expired", key=b"k")
    assert len(store) == 0


async def test_expired_handles_free_their_memory_with_the_next_put() -> None:
    clock = Clock()
    store = MemoryStore(1000, clock)
    for i in range(100):
        await store.put(b"%d" % i, A, 60)
    clock.now += 61
    await store.put(b"k", B, 60)
    assert len(store) == 1
    assert await store.take([b"7"]) == Found(reason="expired", key=b"7")


async def test_a_mark_takes_the_entry_s_place() -> None:
    store = MemoryStore(10, Clock())
    await store.put(b"k", A, 60)
    await store.mark(b"k", "holdout")
    assert await store.take([b"k"]) == Found(reason="holdout", key=b"k")
    await store.put(b"k", B, 60)
    assert await store.take([b"k"]) == Found(B, key=b"k")


async def test_the_oldest_is_evicted() -> None:
    store = MemoryStore(2, Clock())
    for key in (b"1", b"2", b"1", b"3"):
        await store.put(key, entry(key.decode()), 60)
    assert await store.take([b"2"]) == Found(reason="evicted", key=b"2")
    assert await store.take([b"1"]) == Found(entry("1"), key=b"1")


async def test_what_nobody_can_take_any_more_is_returned() -> None:
    clock = Clock()
    store = MemoryStore(2, clock)
    assert await store.put(b"1", A, 60) == []
    assert await store.put(b"1", B, 60) == [(b"1", A)]
    assert await store.put(b"2", A, 60) == []
    assert await store.put(b"3", A, 60) == [(b"1", B)]
    clock.now += 61
    assert await store.put(b"3", B, 60) == []


actions = st.lists(
    st.tuples(st.sampled_from(["put", "take", "mark", "wait"]), st.integers(0, 5), st.integers(1, 40)), max_size=60
)


@given(actions)
def test_it_is_bounded_and_never_gives_twice_or_late(steps: list[tuple[str, int, int]]) -> None:
    async def run() -> None:
        clock, given_out = Clock(), set()
        store = MemoryStore(3, clock)
        deadlines = {}
        for number, (action, key, seconds) in enumerate(steps):
            name = b"%d" % key
            if action == "put":
                await store.put(name, entry(str(number)), 30)
                deadlines[str(number).encode()] = clock.now + 30
            elif action == "mark":
                await store.mark(name, "x")
            elif action == "wait":
                clock.now += seconds
            elif (found := (await store.take([name])).entry) is not None:
                assert found.handle not in given_out
                assert clock.now < deadlines[found.handle]
                given_out.add(found.handle)
            assert len(store) <= 3
            assert len(store._traces) <= 3

    asyncio.run(run())
