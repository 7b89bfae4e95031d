"""The stream scanner: byte-transparent but for the handle, wherever the reads fall."""

from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvloop.router import sse
from kvloop.router.sse import EventTooLongError, Scanner

HANDLE = {"do_remote_decode": True, "remote_block_ids": [[1, 2]], "guard": {"v": 1}}


def event(body: object, newline: bytes = b"\n") -> bytes:
    return b"data: " + orjson.dumps(body) + newline * 2


def content(text: str, **more: object) -> dict[str, object]:
    return {"id": "1", "choices": [{"index": 0, "delta": {"content": text}}], **more}


def scan(pieces: list[bytes], *, token_ids: bool = False) -> tuple[bytes, object]:
    scanner = Scanner(token_ids=token_ids)
    out = b"".join([scanner.feed(piece) for piece in pieces])
    return out + scanner.finish(), scanner.handle


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(i % (len(data) + 1) for i in at), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


newlines = st.sampled_from([b"\n", b"\r\n", b"\r"])
texts = st.text(max_size=20) | st.sampled_from(
    ["kv_transfer_params", '"kv_transfer_params":{"x":1}', "prompt_token_ids"]
)
untouched = st.one_of(
    st.builds(lambda text, newline: event(content(text), newline), texts, newlines),
    st.sampled_from([b": ping\n\n", b":\r\n\r\n", b"event: x\ndata: [DONE]\n\n", b"data: [DONE]\n\n", b"\n"]),
)
cuts = st.lists(st.integers(0, 1 << 20), max_size=12)


@given(st.lists(untouched, max_size=6), cuts)
def test_what_is_not_ours_passes_byte_for_byte(events: list[bytes], at: list[int]) -> None:
    data = b"".join(events)
    assert scan(cut(data, at)) == (data, None)


@given(st.lists(untouched, max_size=3), st.lists(untouched, max_size=3), newlines, cuts)
def test_the_plugin_s_event_vanishes(before: list[bytes], after: list[bytes], newline: bytes, at: list[int]) -> None:
    handle = event({"id": "1", "object": "chat.completion.chunk", "choices": [], "kv_transfer_params": HANDLE}, newline)
    out, found = scan(cut(b"".join([*before, handle, *after]), at))
    assert out == b"".join([*before, *after])
    assert found == HANDLE


@given(texts, st.none() | st.just(HANDLE), cuts)
def test_only_the_key_is_taken_from_a_chunk_with_content(text: str, value: object, at: list[int]) -> None:
    """As vLLM 0.33 sends it."""
    out, found = scan(cut(event(content(text, kv_transfer_params=value)) + b"data: [DONE]\n\n", at))
    assert out == event(content(text)) + b"data: [DONE]\n\n"
    assert found == value


def test_other_lines_of_an_event_stay() -> None:
    body = {"type": "response.completed", "response": {"id": "r", "kv_transfer_params": HANDLE}}
    raw = b": c\r\nevent: response.completed\r\ndata: " + orjson.dumps(body) + b"\r\nid: 7\r\n\r\n"
    out, found = scan([raw])
    expected = {"type": "response.completed", "response": {"id": "r"}}
    assert out == b": c\r\nevent: response.completed\r\ndata: " + orjson.dumps(expected) + b"\r\nid: 7\r\n\r\n"
    assert found == HANDLE


def test_usage_is_no_empty_event() -> None:
    raw = event({"choices": [], "usage": {"total_tokens": 3}, "kv_transfer_params": HANDLE})
    assert scan([raw]) == (event({"choices": [], "usage": {"total_tokens": 3}}), HANDLE)


@pytest.mark.parametrize("asked", [False, True])
def test_token_ids_pass_only_when_asked_for(asked: bool) -> None:
    first = {"choices": [{"index": 0, "delta": {}, "token_ids": [3]}], "prompt_token_ids": [1, 2]}
    out, _ = scan([event(first)], token_ids=asked)
    assert (b"prompt_token_ids" in out) is asked
    assert b'"token_ids":[3]' in out


def test_what_cannot_be_read_but_names_the_handle_is_dropped() -> None:
    assert scan([b'data: {"kv_transfer_params": {"remote_ho\n\n', b"data: [DONE]\n\n"]) == (b"data: [DONE]\n\n", None)


def test_an_event_that_breaks_off_within_the_handle_is_dropped() -> None:
    assert scan([event(content("a")), b'data: {"choices":[],"kv_transfer_params":{"remote_host":"10.'])[0] == event(
        content("a")
    )


def test_each_complete_event_is_sent_on_at_once() -> None:
    scanner = Scanner(token_ids=False)
    first, second = event(content("a")), event(content("b"))
    assert scanner.feed(first[:7]) == b""
    assert scanner.feed(first[7:] + second[:9]) == first
    assert scanner.feed(b": keep-alive\n") == b""
    assert scanner.feed(second[9:]) == second[:9] + b": keep-alive\n" + second[9:]
    assert scanner.feed(b": keep-alive\n") == b": keep-alive\n"


def test_an_endless_event_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    scanner = Scanner(token_ids=False)
    scanner.feed(b"data: " + b"x" * 90)
    with pytest.raises(EventTooLongError):
        scanner.feed(b"x" * 90)
