"""Keys: found again by the next turn, never by another tenant."""

from hypothesis import given
from hypothesis import strategies as st

from kvloop.router import keys

ALICE, BOB = keys.tenant("Bearer a"), keys.tenant("Bearer b")
messages = st.lists(st.binary(min_size=1, max_size=8), min_size=1, max_size=12)


def derive(
    parts: list[bytes], boundaries: list[int], whose: bytes = ALICE, scope: tuple[bytes, ...] = (b"m",)
) -> keys.Keys:
    return keys.derived(whose, scope, parts, boundaries)


@given(messages, messages)
def test_the_next_turn_looks_where_this_one_put(first: list[bytes], more: list[bytes]) -> None:
    put = derive(first, []).put
    follow_up = derive([*first, *more], [len(first)])
    assert follow_up.take == (put,)
    assert follow_up.root == derive(first, []).root
    assert follow_up.put != put


@given(messages, messages)
def test_tenants_and_scopes_never_meet(first: list[bytes], more: list[bytes]) -> None:
    theirs = derive(first, [])
    other = derive([*first, *more], [len(first)], whose=BOB)
    assert theirs.put not in (*other.take, other.put)
    other = derive([*first, *more], [len(first)], scope=(b"m", b"salt"))
    assert theirs.put not in (*other.take, other.put)


def test_the_last_replies_are_tried_first_and_eight_at_most() -> None:
    parts = [b"%d" % i for i in range(40)]
    found = derive(parts, list(range(1, 40, 2)))
    expected = [derive(parts[:end], []).put for end in range(39, 23, -2)]
    assert list(found.take) == expected
    assert len(found.take) == keys.MAX_TRIES


@given(st.text(), st.text())
def test_a_named_conversation_is_the_tenant_s_own(name: str, other: str) -> None:
    named = keys.explicit(ALICE, name)
    assert named.take == (named.put,)
    assert named.put != keys.explicit(BOB, name).put
    assert (named.put == keys.explicit(ALICE, other).put) is (name == other)


def test_scope_pieces_cannot_be_shifted_into_each_other() -> None:
    assert derive([b"x"], [], scope=(b"ab", b"c")) != derive([b"x"], [], scope=(b"a", b"bc"))


def test_no_credentials_are_a_tenant_too() -> None:
    assert keys.tenant(None) == keys.tenant("")
    assert keys.tenant(None) != ALICE


def test_credentials_do_not_pass_for_a_gateway_s_word() -> None:
    named = keys.of_request({"x-tenant": "alice", "authorization": "Bearer gateway"}, "X-Tenant")
    assert named == keys.of_request({"x-tenant": "alice"}, "X-Tenant")
    assert named != keys.of_request({"authorization": "alice"}, "X-Tenant")
