import io
import json
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from rich.console import Console

from e2e.demo.cold import differences
from e2e.demo.table import ttft_table
from e2e.enginesim import EngineSim
from e2e.router.sim import Fleet, engine_config
from kvloop.cli.load import Client, LoadError, Turn, Workload

SMALL = Workload(conversations=3, turns=4, clients=2, system_tokens=(300, 600), user_tokens=50, reply_tokens=20)


async def test_conversations_through_the_router_reuse_and_answer_as_a_cold_engine_does() -> None:
    cold_config = replace(engine_config("kv_both", "fail"), transfer=None)
    async with (
        Fleet(prefills=2, decodes=2) as fleet,
        EngineSim(cold_config, plugin=None) as cold,
        Client(fleet.router.url, "tiny") as client,
        Client(cold.url, "tiny") as engine,
    ):
        counted: list[None] = []
        turns = await client.run(SMALL, on_turn=lambda: counted.append(None))
        assert len(turns) == len(counted) == 12
        assert sorted((turn.conversation, turn.number) for turn in turns) == [
            (c, n) for c in range(3) for n in range(4)
        ]
        for turn in turns:
            assert turn.reply
            assert turn.ttft_s > 0
            assert turn.prompt_tokens == pytest.approx(
                turn.system_tokens + 50 + turn.number * 70, rel=0.15
            )  # and what the chat template adds
        counters = (await fleet.router.reuse()).counters
        assert (counters.turns, counters.follow_ups, counters.reused_turns) == (12, 9, 9)
        assert counters.reused_tokens > 0.8 * counters.prompt_tokens

        assert await differences(engine, turns) == []
        wrong = replace(turns[5], reply=turns[4].reply)
        (difference,) = await differences(engine, [*turns[:5], wrong])
        assert (difference.turn, difference.cold) == (wrong, turns[5].reply)


async def test_the_same_workload_asks_the_same_again() -> None:
    async with (
        Fleet() as fleet,
        Client(fleet.router.url, "tiny") as client,
    ):
        workload = replace(SMALL, conversations=1)
        first, second = await client.run(workload), await client.run(workload)
        assert [(turn.body, turn.reply) for turn in first] == [(turn.body, turn.reply) for turn in second]


class Script:
    """Counts four tokens for every text, and streams the given events; so many seconds pass before each of them."""

    def __init__(self, events: Sequence[tuple[float, str]], status: int = 200) -> None:
        self._events, self._status, self.now = events, status, 0.0
        self.bodies: list[dict[str, Any]] = []

    async def run(self) -> list[Turn]:
        async with Client("http://server", "tiny", lambda: self.now, httpx.MockTransport(self._answer)) as client:
            return await client.run(Workload(conversations=1, turns=1, system_tokens=(1,)))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/tokenize":
            return httpx.Response(200, json={"count": 4})
        self.bodies.append(json.loads(request.content))
        return httpx.Response(self._status, content=self._stream())

    async def _stream(self) -> AsyncIterator[bytes]:
        for seconds, event in self._events:
            self.now += seconds
            yield f"data: {event}\n\n".encode()


def _event(text: str | None) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]})


USAGE = json.dumps({"choices": [], "usage": {"prompt_tokens": 9}})


async def test_the_first_token_is_the_first_text() -> None:
    events = [(1, _event("")), (2, _event(None)), (4, _event("a")), (8, _event("b")), (16, USAGE), (32, "[DONE]")]
    (turn,) = await Script(events).run()
    assert (turn.ttft_s, turn.reply, turn.prompt_tokens) == (7, "ab", 9)


async def test_a_request_has_nothing_but_what_openai_defines() -> None:
    script = Script([(1, _event("a")), (1, "[DONE]")])
    await script.run()
    assert [set(body) for body in script.bodies] == [
        {"model", "messages", "max_tokens", "temperature", "stream", "stream_options"}
    ]


@pytest.mark.parametrize(
    ("events", "status", "message"),
    [
        ([(0, "no engine")], 503, "answered 503: .*no engine"),
        ([(0, _event("a")), (0, '{"error": {"message": "transfer failed"}}')], 200, "broke off: .*transfer failed"),
        ([(0, _event("a"))], 200, "connection was cut"),
    ],
)
async def test_failures_are_told(events: list[tuple[float, str]], status: int, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        await Script(events, status).run()


def test_the_table_compares_follow_ups_of_equal_length() -> None:
    def turn(number: int, system_tokens: int, ttft_s: float) -> Turn:
        return Turn(0, number, system_tokens, system_tokens + 500, ttft_s, {}, "")

    without = [turn(0, 2000, 9), turn(1, 2000, 0.1), turn(2, 2000, 0.3), turn(3, 2000, 0.2), turn(1, 24_000, 0.6)]
    with_reuse = [turn(0, 2000, 9), turn(1, 2000, 0.05), turn(1, 24_000, 0.2)]
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(ttft_table(without, with_reuse, time_scale=0.5))
    text = console.export_text()
    assert "SIMULATED" in text
    rows = [re.split(r" *│ *", line)[1:-1] for line in text.splitlines() if " ms " in line]
    assert rows == [
        ["2,000", "2,500", "3+1", "400, 580 ms", "100, 100 ms", "4.0x"],
        ["24,000", "24,500", "1+1", "1,200, 1,200 ms", "400, 400 ms", "3.0x"],
    ]
