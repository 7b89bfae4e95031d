"""The store's wire format, wherever the reads fall."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvloop.router.store.resp import IncompleteError, StoreDownError, encode, parse

replies = st.recursive(
    st.none() | st.integers() | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=10,
)


def written(reply: Any) -> bytes:
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n" % len(reply) + b"".join(map(written, reply))


@given(replies, st.binary(max_size=10))
def test_replies_are_understood(reply: Any, rest: bytes) -> None:
    raw = written(reply)
    assert parse(b"xx" + raw + rest, 2) == (reply, len(raw) + 2)


@given(replies, st.data())
def test_a_part_of_a_reply_is_incomplete(reply: Any, data: st.DataObject) -> None:
    raw = written(reply)
    with pytest.raises(IncompleteError):
        parse(raw[: data.draw(st.integers(0, len(raw) - 1))], 0)


def test_simple_strings_and_errors() -> None:
    assert parse(b"+OK\r\n", 0) == (b"OK", 5)
    error, end = parse(b"-NOAUTH no\r\n", 0)
    assert isinstance(error, StoreDownError)
    assert end == 12


@pytest.mark.parametrize("raw", [b"HTTP/1.1 400\r\n", b"$x\r\n", b"*y\r\n", b":\r\n"])
def test_nonsense_is_an_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse(raw, 0)


def test_commands() -> None:
    assert encode([b"SET", b"k", b"a\r\nb"]) == b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n"
