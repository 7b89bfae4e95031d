"""Reading logs and traces: what is right counts, and what is wrong is told with its line."""

import io
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.traces.synthetic import Request, Traffic, bailian, mooncake, requests, router_log
from e2e.traces.write import jsonl
from kvloop.advice.published import QWEN3_32B
from kvloop.advice.turns import Timed
from kvloop.cli.traces import Loaded, TraceError, read_log, read_trace
from kvloop.router import accesslog
from kvloop.router.outcome import Outcome

MADE = requests(Traffic(conversations=60, between_seconds=10), seed=2)


def trace(folder: Path, rows: Iterable[dict[str, Any]] | str | bytes) -> Loaded:
    return read_trace(written(folder, rows), QWEN3_32B)


def log(folder: Path, rows: Iterable[dict[str, Any]] | str | bytes) -> Loaded:
    return read_log(written(folder, rows))


def written(folder: Path, rows: Iterable[dict[str, Any]] | str | bytes) -> str:
    path = folder / "file.jsonl"
    text = rows if isinstance(rows, str | bytes) else jsonl(rows)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def followed(made: Sequence[Request]) -> list[int | None]:
    """Index of the turn that each turn really follows."""
    last: dict[int, int] = {}
    found = []
    for i, each in enumerate(made):
        found.append(last.get(each.conversation))
        last[each.conversation] = i
    return found


@pytest.mark.parametrize("form", [mooncake, bailian])
def test_who_follows_whom_and_after_how_long_is_found(form: Any, tmp_path: Path) -> None:
    loaded = trace(tmp_path, form(MADE))
    assert [turn.before for turn in loaded.turns] == followed(MADE)
    for turn, each in zip(loaded.turns, MADE, strict=True):
        assert turn.gap == pytest.approx(each.gap, abs=0.002)
        assert turn.prompt_tokens == each.prompt
    assert loaded.bad == []
    assert loaded.format.lower().startswith(form.__name__)


def test_prompts_that_only_share_a_system_prompt_do_not_follow_each_other(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 1000 * i, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 100 + i]}
        for i in range(50)
    ]
    assert sum(turn.before is not None for turn in trace(tmp_path, rows).turns) == 0


def test_a_prompt_without_room_for_the_reply_follows_nobody(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 300, "hash_ids": [0, 1, 2]},
        {"timestamp": 60_000, "input_length": 1100, "output_length": 300, "hash_ids": [0, 1, 2]},
    ]
    assert trace(tmp_path, rows).turns[1].before is None


def test_two_branches_have_one_follow_up(tmp_path: Path) -> None:
    rows = [
        {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0, "input_length": 10, "output_length": 10},
        {"chat_id": 2, "parent_chat_id": 1, "timestamp": 60, "input_length": 30, "output_length": 10},
        {"chat_id": 3, "parent_chat_id": 1, "timestamp": 61, "input_length": 30, "output_length": 10},
    ]
    assert [turn.before for turn in trace(tmp_path, rows).turns] == [None, 0, None]


def test_a_system_quicker_than_the_published_one_leaves_gaps_of_nothing(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"chat_id": 1, "parent_chat_id": None, "timestamp": 0, "input_length": 10, "output_length": 1000},
        {"chat_id": 2, "parent_chat_id": 1, "timestamp": 1, "input_length": 2000, "output_length": 10},
    ]
    first, second = trace(tmp_path, rows).turns
    assert second.gap == 0
    assert first.end == second.start


def test_lines_in_any_order(tmp_path: Path) -> None:
    assert trace(tmp_path, reversed(list(mooncake(MADE)))).turns == trace(tmp_path, mooncake(MADE)).turns


def test_the_log_tells_gaps_legs_and_who_follows_whom(tmp_path: Path) -> None:
    loaded = log(tmp_path, router_log(MADE, QWEN3_32B, ttl=470, holdout=0.1, seed=3))
    assert [turn.before for turn in loaded.turns] == followed(MADE)
    for turn, told, each in zip(loaded.turns, loaded.timed, MADE, strict=True):
        assert turn.gap == pytest.approx(each.gap, abs=0.001)
        assert told.computed_tokens + told.fetched_tokens == each.prompt
        assert turn.start == pytest.approx(1_700_000_000 + each.start, abs=0.002)
    arms = {told.arm for told in loaded.timed}
    assert arms == {"first", "reused", "holdout"}


def line(**changed: Any) -> dict[str, Any]:
    whole = {"time": 1000.0, "status": 200, "arm": "first", "promptTokens": 100, "totalMs": 500.0, "stream": True}
    return {name: value for name, value in (whole | changed).items() if value is not None}


def test_what_the_router_writes_is_what_is_read(tmp_path: Path) -> None:
    turn = Outcome(
        stream=True, status=200, follow_up=True, turn=2, gap_seconds=4.5, prompt_tokens=900, reused_tokens=700
    )
    turn.offered_tokens, turn.computed_tokens, turn.pinned_tokens, turn.ends = 700, 150, 950, False
    turn.leg_seconds, turn.first_byte_seconds, turn.total_seconds = 0.25, 0.3, 2.0
    out = io.BytesIO()
    accesslog.write(out, turn)
    loaded = log(tmp_path, out.getvalue())
    assert loaded.timed == [Timed("reused", 0.25, 150, 700, 50, 0.3)]
    read = loaded.turns[0]
    assert (read.gap, read.prompt_tokens, read.held_tokens, read.history_tokens) == (4.5, 900, 950, 700)
    assert read.end - read.start == pytest.approx(2.0)


def test_failed_and_ineligible_turns_are_left_out(tmp_path: Path) -> None:
    rows = [line(), line(status=503), line(notEligible="n", arm="not_eligible"), line(status=499, time=1001.0)]
    loaded = log(tmp_path, rows)
    assert [turn.held_tokens for turn in loaded.turns] == [100, 0]
    assert loaded.bad == []


def test_what_decode_computed_alone_is_no_prefill_leg(tmp_path: Path) -> None:
    assert log(tmp_path, [line(legMs=30.0, decodeOnly="no_prefill")]).timed[0].leg_seconds is None


def test_a_history_that_had_expired_is_as_long_as_what_decode_had_held(tmp_path: Path) -> None:
    rows = [
        line(pinnedTokens=140),
        line(time=1500.0, gapMs=499_500.0, promptTokens=200, arm="recomputed", miss="expired"),
    ]
    assert log(tmp_path, rows).turns[1].history_tokens == 140


def test_other_output_of_the_pod_is_passed_over(tmp_path: Path) -> None:
    text = "2027-01-01 12:00:00 INFO router listens\n\n" + jsonl([line()]) + "Traceback (most recent call last):\n"
    loaded = log(tmp_path, text)
    assert len(loaded.turns) == 1
    assert list(loaded.warnings()) == ["2 lines are no lines of the access log and were passed over"]


BAD = [
    ("{", "line 2: it is no JSON"),
    ("[1]", "line 2: it is no JSON object but list"),
    ('{"timestamp": 1}', "line 2: input_length is missing"),
    ('{"timestamp": 1, "input_length": 5, "output_length": 1}', "line 2: neither hash_ids nor chat_id is there"),
    ('{"timestamp": "x", "input_length": 5, "output_length": 1, "hash_ids": []}', "line 2: timestamp is 'x'"),
    ('{"timestamp": 1, "input_length": -5, "output_length": 1, "hash_ids": []}', "line 2: input_length is -5"),
    ('{"timestamp": 1, "input_length": 5.5, "output_length": 1, "hash_ids": []}', "which is no whole number"),
    ('{"timestamp": NaN, "input_length": 5, "output_length": 1, "hash_ids": []}', "timestamp is nan"),
    ('{"timestamp": 1, "input_length": true, "output_length": 1, "hash_ids": []}', "input_length is True"),
    ('{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": ["a"]}', "line 2: hash_ids is ['a']"),
    ("[" * 100_000, "line 2: it is no JSON"),
]


@pytest.mark.parametrize(("bad", "told"), BAD, ids=range(len(BAD)))
def test_a_bad_line_is_told_and_the_others_count(bad: str, told: str, tmp_path: Path) -> None:
    good = jsonl(mooncake(MADE)).splitlines()
    loaded = trace(tmp_path, "\n".join([good[0], bad, *good[1:]]))
    assert len(loaded.turns) == len(MADE)
    assert told in next(loaded.warnings())


def test_a_cut_last_line_loses_only_itself(tmp_path: Path) -> None:
    loaded = trace(tmp_path, jsonl(mooncake(MADE)).encode()[:-20])
    assert len(loaded.turns) == len(MADE) - 1
    assert f"line {len(MADE)}: it is no JSON" in loaded.bad[0]


def test_many_bad_lines_are_not_all_told(tmp_path: Path) -> None:
    loaded = trace(tmp_path, jsonl(mooncake(MADE)) + "{\n" * 100)
    assert list(loaded.warnings())[-1] == "95 more lines could not be used"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty; wanted is a line of JSON a request"),
        ("\n\n", "is empty"),
        ('{"a": 1}\n', "no line of"),
        (b"\xff\xfe{", "line 1: it is no JSON"),
    ],
)
def test_a_file_without_a_good_line_is_refused(text: str | bytes, told: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"file\.jsonl") as caught:
        trace(tmp_path, text)
    assert told in str(caught.value)


def test_a_log_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="has no line of it; wanted is the router's access log"):
        log(tmp_path, "hello\n")
    with pytest.raises(TraceError, match="arm is missing; it has hash_ids, input_length, output_length, timestamp"):
        log(tmp_path, mooncake(MADE))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(str(tmp_path / "none"), QWEN3_32B)
    with pytest.raises(TraceError, match="Is a directory"):
        read_log(str(tmp_path))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: st.lists(each, max_size=3),
    max_leaves=5,
)
names = st.sampled_from([
    "timestamp", "input_length", "output_length", "hash_ids", "chat_id", "parent_chat_id", "time", "status", "arm",
    "miss", "promptTokens", "gapMs", "totalMs", "legMs", "notEligible", "endOfConversation", "stream", "firstByteMs",
])  # fmt: skip


@settings(max_examples=200)
@given(st.lists(st.dictionaries(names, json_values).map(json.dumps) | st.text(), max_size=5))
def test_no_file_is_too_strange(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "strange.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    for read in (read_log, lambda file: read_trace(file, QWEN3_32B)):
        with suppress(TraceError):
            assert read(str(path)).turns
