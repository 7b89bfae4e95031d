"""The guard against edits, limits, hostile handles, and its own clock."""

from __future__ import annotations

import base64
import copy
import json
import math
from array import array
from hashlib import blake2b
from timeit import repeat
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvloop.engine import guard
from kvloop.engine.spent import Spent

KEY = guard.seed("", "")
TOKENS = [(i * 7919 + 13) % 150_000 for i in range(2000)]


def handle_of(tokens: list[int], bs: int = 32, key: bytes = KEY, **changes: Any) -> dict[str, Any]:
    """A handle as a decode engine with the plugin gives it, holding all `tokens`."""
    handle = {
        "do_remote_prefill": False,
        "do_remote_decode": True,
        "remote_block_ids": [list(range(1, math.ceil(len(tokens) / bs) + 1))],
        "remote_engine_id": "5f0c3a2e-0000-4000-8000-000000000001",
        "remote_request_id": "chatcmpl-8671a3c8742cf08d-b4d71f58",
        "remote_host": "10.0.3.17",
        "remote_port": 5600,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": len(tokens),
        "remote_blocks_expiry_time": 1516.903401532,
        "transfer_mode": "pull",
        "guard": guard.make(tokens, len(tokens), bs, key),
    }
    return {**handle, **changes}


def shrink(handle: dict[str, Any], prompt: list[int], **options: Any) -> guard.Report:
    report = guard.shrink(handle, prompt, options.pop("key", KEY), **options)
    assert report is not None
    return report


def common_prefix(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


# What may be read.


def test_a_prompt_that_extends_the_sequence_reads_all_of_it_and_the_handle_stays_as_it_is() -> None:
    handle = handle_of(TOKENS[:339])
    before = {k: v for k, v in copy.deepcopy(handle).items() if k != "guard"}
    assert shrink(handle, TOKENS[:390]) == guard.Report(339, 339, "match")
    assert handle == before


@pytest.mark.parametrize(
    ("prompt", "verified"),
    [
        pytest.param([*TOKENS[:334], 1, 2, 3, 4, 5, *TOKENS[339:390]], 320, id="end of the reply rendered otherwise"),
        pytest.param(TOKENS[:300] + TOKENS[330:400], 288, id="thinking left out"),
        pytest.param([*TOKENS[:10], 1, *TOKENS[11:390]], 0, id="changing head"),
        pytest.param([*TOKENS[:200], 1, *TOKENS[201:390]], 192, id="one token in the middle"),
        pytest.param([1, *TOKENS[:390]], 0, id="shifted by one"),
        pytest.param(TOKENS[:300], 288, id="regenerate"),
        pytest.param(TOKENS[:150], 128, id="rewind"),
        pytest.param(TOKENS[1000:1400], 0, id="another conversation"),
        pytest.param(TOKENS[:339], 320, id="exactly what is held: the last token is computed"),
        pytest.param(TOKENS[:340], 339, id="one more than what is held"),
        pytest.param(TOKENS[:320], 288, id="the prompt ends with a link"),
        pytest.param(TOKENS[:32], 0, id="nothing but the first link"),
        pytest.param(TOKENS[:1], 0, id="one token"),
        pytest.param([], 0, id="no token"),
    ],
)
def test_a_prompt_that_diverges_reads_whole_blocks_before_the_change(prompt: list[int], verified: int) -> None:
    handle = handle_of(TOKENS[:339])
    report = shrink(handle, prompt)
    assert (report.offered, report.verified) == (339, verified)
    assert report.reason == ("mismatch" if verified == 0 else "match" if verified == 339 else "partial")
    assert handle["remote_num_tokens"] == verified
    # vLLM reads the last blocks of the list, so the list must end with the last verified one.
    assert handle["remote_block_ids"] == [list(range(1, max(1, math.ceil(verified / 32)) + 1))]
    assert handle["do_remote_decode"] is True


token_lists = st.lists(st.integers(0, 5), min_size=1, max_size=120)


@given(held=token_lists, prompt=token_lists, bs=st.sampled_from([1, 2, 3, 16]), data=st.data())
def test_what_is_verified_is_common_maximal_and_in_whole_links(
    held: list[int], prompt: list[int], bs: int, data: st.DataObject
) -> None:
    if data.draw(st.booleans(), "share a prefix"):
        cut = data.draw(st.integers(0, len(held)), "cut")
        prompt = held[:cut] + prompt
    handle = handle_of(held, bs)
    blocks = handle["remote_block_ids"][0]
    k = shrink(handle, prompt).verified

    common = min(common_prefix(held, prompt), len(prompt) - 1)
    assert k <= common
    assert k == (len(held) if common >= len(held) else common // bs * bs)  # short sequences: a link is a block
    assert handle["remote_num_tokens"] == k
    if k:
        assert handle["remote_block_ids"] == [blocks[: math.ceil(k / bs)]]


@settings(max_examples=30)
@given(length=st.integers(1, 40_000), bs=st.sampled_from([16, 32, 64, 100, 128]), at=st.floats(0, 1))
def test_links_cover_long_sequences_within_the_size_limit(length: int, bs: int, at: float) -> None:
    tokens = list(range(length))
    wire = guard.make(tokens, length, bs, KEY)
    stride = wire["stride"]
    assert stride % bs == 0
    assert length // stride <= guard.MAX_LINKS
    assert stride == bs or length // (stride - bs) >= guard.MAX_LINKS  # no coarser than it must be
    assert len(json.dumps(wire)) < 12 * 1024

    edited = int(at * (length - 1))
    prompt = [*tokens[:edited], 999_999, *tokens[edited + 1 :], 7]
    assert guard.verify(guard.parse(wire), prompt, KEY) == edited // stride * stride
    assert guard.verify(guard.parse(wire), [*tokens, 7], KEY) == length


@pytest.mark.parametrize(("lora", "salt"), [("adapter", ""), ("", "salt"), ("salt", ""), (None, "x")])
def test_another_adapter_or_salt_shares_nothing(lora: str | None, salt: str) -> None:
    handle = handle_of(TOKENS[:339], key=guard.seed("", ""))
    assert shrink(handle, TOKENS[:390], key=guard.seed(lora, salt)) == guard.Report(339, 0, "mismatch")


def test_the_seed_tells_adapter_from_salt_and_takes_nothing_for_empty() -> None:
    assert guard.seed(None, None) == guard.seed("", "")
    assert len({guard.seed("a", "b"), guard.seed("b", "a"), guard.seed("ab", ""), guard.seed("", "ab")}) == 4


def test_swapped_links_do_not_verify() -> None:
    handle = handle_of(TOKENS[:339])
    chain = base64.b64decode(handle["guard"]["chain"])
    handle["guard"]["chain"] = base64.b64encode(chain[16:32] + chain[:16] + chain[32:]).decode()
    assert shrink(handle, TOKENS[:390]).verified == 0


def test_a_wrong_tail_leaves_the_whole_links() -> None:
    handle = handle_of(TOKENS[:339])
    handle["guard"]["tail"] = base64.b64encode(bytes(16)).decode()
    assert shrink(handle, TOKENS[:390]) == guard.Report(339, 320, "partial")


# All or nothing.


def test_multimodal_prompts_read_nothing_and_end_the_lease() -> None:
    handle = handle_of(TOKENS[:339])
    assert shrink(handle, TOKENS[:390], text_only=False) == guard.Report(339, 0, "multimodal")
    assert (handle["remote_num_tokens"], handle["remote_block_ids"]) == (0, [[1]])


def test_several_kv_groups_are_read_whole_or_not_at_all() -> None:
    groups = [list(range(1, 12)), [20, 21]]  # full attention, and a sliding window's last two blocks
    handle = handle_of(TOKENS[:339], remote_block_ids=copy.deepcopy(groups))
    assert shrink(handle, TOKENS[:390]) == guard.Report(339, 339, "match")
    assert handle["remote_block_ids"] == groups

    handle = handle_of(TOKENS[:339], remote_block_ids=copy.deepcopy(groups))
    assert shrink(handle, TOKENS[:330] + [1] * 60) == guard.Report(339, 0, "kv_groups")
    assert handle["remote_block_ids"] == [[1], [20]]


def test_blocks_spread_over_context_parallel_ranks_are_read_whole_or_not_at_all() -> None:
    spread: dict[str, Any] = {"dcp_size": 2, "remote_block_ids": [[1, 2, 3, 4, 5, 6]]}  # 339 tokens in blocks of 2 x 32
    assert shrink(handle_of(TOKENS[:339], **spread), TOKENS[:390]).verified == 339
    assert shrink(handle_of(TOKENS[:339], **spread), TOKENS[:330] + [1] * 60) == guard.Report(339, 0, "dcp")


@pytest.mark.parametrize("blocks", [[[1] * 10], [[1] * 12], [[1] * 11, [1] * 12]])
def test_block_counts_that_do_not_fit_read_nothing(blocks: list[list[int]]) -> None:
    report = shrink(handle_of(TOKENS[:339], remote_block_ids=blocks), TOKENS[:390])
    assert report == guard.Report(339, 0, "block_count")


def test_blocks_of_another_size_than_the_engines_read_nothing() -> None:
    """A guard that claims large blocks would make few of them pass for many tokens, of which vLLM dies."""
    large = handle_of(TOKENS[:339], 1024)
    assert shrink(copy.deepcopy(large), TOKENS[:390], block_size=32) == guard.Report(339, 0, "block_count")
    assert shrink(large, TOKENS[:390]).verified == 339
    assert shrink(handle_of(TOKENS[:339]), TOKENS[:390], block_size=32).verified == 339


def test_another_number_of_groups_than_the_engine_has_reads_nothing() -> None:
    assert shrink(handle_of(TOKENS[:339]), TOKENS[:390], groups=1).verified == 339
    assert shrink(handle_of(TOKENS[:339]), TOKENS[:390], groups=2) == guard.Report(339, 0, "block_count")


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (None, "no_guard"),
        ({"v": 2}, "unknown_version"),
        ({"v": 0}, "unknown_version"),
        ({}, "malformed"),
        ([], "malformed"),
        ("guard", "malformed"),
    ],
)
def test_without_a_guard_of_this_version_nothing_is_read(wire: Any, reason: str) -> None:
    handle = handle_of(TOKENS[:339], guard=wire)
    assert shrink(handle, TOKENS[:390]) == guard.Report(339, 0, reason)  # type: ignore[arg-type]  # parametrised
    assert handle["remote_num_tokens"] == 0


def test_a_handle_that_offers_nothing_ends_the_lease_whatever_the_prompt() -> None:
    handle = handle_of(TOKENS[:339], remote_num_tokens=0)
    assert shrink(handle, [5], text_only=False) == guard.Report(0, 0, "released")
    assert (handle["remote_num_tokens"], handle["remote_block_ids"]) == (0, [[1]])


@pytest.mark.parametrize("expiry", [None, "absent"])
def test_a_lease_without_an_end_is_not_read(expiry: Any) -> None:
    handle = handle_of(TOKENS[:339], remote_blocks_expiry_time=None)
    if expiry == "absent":
        del handle["remote_blocks_expiry_time"]
    assert shrink(handle, TOKENS[:390]) == guard.Report(339, 0, "no_expiry")


# What is not a decode engine's offer.


@pytest.mark.parametrize(
    "handle",
    [
        {"do_remote_decode": True, "do_remote_prefill": False},
        {"do_remote_decode": True, "do_remote_prefill": False, "remote_block_ids": None, "remote_host": None},
    ],
)
def test_a_first_turn_passes_untouched(handle: dict[str, Any]) -> None:
    before = copy.deepcopy(handle)
    assert guard.shrink(handle, TOKENS[:300], KEY) is None
    assert handle == before


@pytest.mark.parametrize("handle", [{"do_remote_prefill": False, "do_remote_decode": False}, {"x": 1}])
def test_parameters_for_neither_direction_would_pin_blocks_for_ever_and_are_emptied(handle: dict[str, Any]) -> None:
    assert guard.shrink(handle, TOKENS[:300], KEY) is None
    assert handle == {}


def decode_leg(**changes: Any) -> dict[str, Any]:
    leg = {"do_remote_prefill": True, "do_remote_decode": False, "remote_blocks_expiry_time": None}
    return handle_of(TOKENS[:339], **{**leg, "guard": guard.Report(300, 300, "match").as_dict(), **changes})


def test_a_decode_leg_passes_and_loses_only_the_prefills_report() -> None:
    handle = decode_leg()
    before = {k: v for k, v in handle.items() if k != "guard"}
    assert guard.shrink(handle, TOKENS[:339], KEY) is None
    assert handle == before


@pytest.mark.parametrize(
    "changes",
    [
        {"remote_block_ids": None},
        {"remote_block_ids": [[]]},
        {"remote_host": None},
        {"do_remote_decode": True},
        {"do_remote_prefill": False},
    ],
)
def test_half_a_decode_leg_computes_by_itself(changes: dict[str, Any]) -> None:
    handle = decode_leg(**changes)
    assert guard.shrink(handle, TOKENS[:339], KEY) is None
    assert handle == {}


@pytest.mark.parametrize("other", [TOKENS[:338], [*TOKENS[:339], 1], [TOKENS[0] + 1, *TOKENS[1:339]], [], [-1]])
def test_a_decode_leg_of_another_prompt_computes_by_itself(other: list[int]) -> None:
    handle = decode_leg()
    guard.sign(handle, array("I", TOKENS[:339]), [7], 32, KEY)
    assert guard.shrink(dict(handle), TOKENS[:339], KEY) is None
    salted = guard.seed("", "salt")
    assert guard.shrink(dict(handle), TOKENS[:339], salted) == guard.Report(339, 0, "other_prompt")
    assert guard.shrink(handle, other, KEY) == guard.Report(len(other), 0, "other_prompt")
    assert handle == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"remote_block_ids": [list(range(3))]},
        {"remote_block_ids": [list(range(12))]},
        {"remote_num_tokens": 338},
        {"remote_num_tokens": 64, "remote_block_ids": [[1, 2]]},
    ],
)
def test_a_decode_leg_with_other_blocks_than_its_prompt_takes_computes_by_itself(changes: dict[str, Any]) -> None:
    """Of a list that is too long vLLM takes the last blocks, and of one that is too short it dies."""
    handle = decode_leg(**changes)
    assert guard.shrink(handle, TOKENS[:339], KEY, block_size=32) == guard.Report(339, 0, "block_count")
    assert handle == {}


@pytest.mark.parametrize(
    "changes", [{}, {"remote_block_ids": [[1], [2]]}, {"remote_block_ids": [[1] * 6], "dcp_size": 2}]
)
def test_a_decode_leg_whose_blocks_fit_or_cannot_be_counted_passes(changes: dict[str, Any]) -> None:
    handle = decode_leg(**changes)
    assert guard.shrink(handle, TOKENS[:339], KEY, block_size=32) is None
    assert handle["remote_num_tokens"] == 339


def test_a_prefills_blocks_are_read_once_too() -> None:
    spent, first, second = Spent(None), decode_leg(), decode_leg()
    guard.shrink(first, TOKENS[:339], KEY, spent=spent)
    guard.shrink(second, TOKENS[:339], KEY, spent=spent)
    assert first["remote_num_tokens"] == 339
    assert second == {}


def test_the_engines_own_bookkeeping_does_not_come_from_outside() -> None:
    handle = handle_of(
        TOKENS[:339], _remote_blocks_processed=True, _p_side_truncated=1, remote_registration_generation=3
    )
    assert shrink(handle, TOKENS[:390]).verified == 339
    assert not [key for key in handle if key.startswith("_")]
    assert handle["remote_registration_generation"] == 3  # unknown keys of a newer vLLM are kept


# Hostile handles.

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True, allow_infinity=True) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = sorted(handle_of([1, 2, 3], 1))
GUARD_FIELDS = ["v", "bs", "stride", "n", "chain", "tail"]


def assert_harmless(handle: dict[str, Any], report: guard.Report | None, prompt: list[int]) -> None:
    """The engine can take the handle, and reads no more than the prompt allows."""
    assert "guard" not in handle
    if report is None or not handle.get("remote_block_ids"):
        assert report is None or report.verified == 0
        assert not handle.get("do_remote_prefill") or handle.get("remote_block_ids")
        return
    assert handle["do_remote_decode"] is True
    assert handle["do_remote_prefill"] is False
    assert report.verified == handle["remote_num_tokens"] <= max(0, len(prompt) - 1)
    assert all(type(b) is int and b >= 0 for group in handle["remote_block_ids"] for b in group)
    assert isinstance(handle["remote_host"], str)
    assert 1 <= handle["remote_port"] <= 65535
    assert max(map(len, handle["remote_block_ids"])) <= max(1, len(prompt))


@given(field=st.sampled_from(FIELDS), value=junk, extra=st.dictionaries(st.text(max_size=8), junk, max_size=2))
def test_any_value_of_any_field_is_harmless(field: str, value: Any, extra: dict[str, Any]) -> None:
    prompt = TOKENS[:390]
    handle = {**extra, **handle_of(TOKENS[:339]), field: value}
    if field == "do_remote_prefill" and value is True:
        handle["do_remote_decode"] = False
    assert_harmless(handle, guard.shrink(handle, prompt, KEY), prompt)


@given(field=st.sampled_from(GUARD_FIELDS), value=junk)
def test_any_value_of_any_guard_field_reads_no_more_than_the_truth(field: str, value: Any) -> None:
    prompt = TOKENS[:300] + [1] * 90
    handle = handle_of(TOKENS[:339])
    handle["guard"][field] = value
    report = guard.shrink(handle, prompt, KEY)
    assert_harmless(handle, report, prompt)
    assert report is not None
    assert report.verified <= 288


@given(handle=st.dictionaries(st.sampled_from([*FIELDS, "x"]), junk))
def test_any_dictionary_is_harmless(handle: dict[str, Any]) -> None:
    if handle.get("do_remote_prefill") and not handle.get("do_remote_decode"):
        handle["do_remote_prefill"] = False  # the decode leg is vLLM's own affair and has its test above
    assert_harmless(handle, guard.shrink(handle, TOKENS[:50], KEY), TOKENS[:50])


@pytest.mark.parametrize(
    "changes",
    [
        {"remote_port": True},
        {"remote_port": 0},
        {"remote_port": 65536},
        {"remote_port": "5600"},
        {"remote_host": "10.0.0.1/../"},
        {"remote_host": "a b"},
        {"remote_host": ""},
        {"remote_host": ["10.0.0.1"]},
        {"remote_engine_id": ""},
        {"remote_engine_id": 7},
        {"remote_request_id": "x" * 513},
        {"remote_blocks_expiry_time": math.nan},
        {"remote_blocks_expiry_time": math.inf},
        {"remote_blocks_expiry_time": True},
        {"remote_blocks_expiry_time": "1516.9"},
        {"tp_size": 0},
        {"tp_size": 1.0},
        {"dcp_size": -1},
        {"remote_num_tokens": -339},
        {"remote_num_tokens": 339.0},
        {"remote_block_ids": [["1"] * 11]},
        {"remote_block_ids": [[-1] * 11]},
        {"remote_block_ids": [[True] * 11]},
        {"remote_block_ids": [[2**40] * 11]},
        {"remote_block_ids": [[]]},
        {"remote_block_ids": [1, 2]},
        {"remote_block_ids": "blocks"},
        {"remote_block_ids": [[1]] * 65},
        {"do_remote_decode": 1, "remote_port": None},
    ],
)
def test_a_handle_that_could_break_the_engine_is_dropped_whole(changes: dict[str, Any]) -> None:
    handle = handle_of(TOKENS[:339], **changes)
    assert shrink(handle, TOKENS[:390]).reason == "malformed"
    assert handle == {"do_remote_decode": True, "do_remote_prefill": False}


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 400},
        {"n": 10**30},
        {"n": -1},
        {"n": True},
        {"bs": 0},
        {"bs": -32},
        {"stride": 33},
        {"stride": 0},
        {"chain": "!!!!"},
        {"chain": "A" * 10**7},
        {"chain": base64.b64encode(bytes(16 * 600)).decode()},
        {"chain": ""},
        {"tail": "AAAA"},
        {"tail": None},
        {"v": True},
    ],
)
def test_a_malformed_guard_reads_nothing_and_still_ends_the_lease(changes: dict[str, Any]) -> None:
    handle = handle_of(TOKENS[:339])
    handle["guard"].update(changes)
    assert shrink(handle, TOKENS[:390]) == guard.Report(339, 0, "malformed")
    assert (handle["remote_num_tokens"], handle["remote_block_ids"]) == (0, [[1]])


def test_a_list_of_blocks_is_not_walked_further_than_it_is_used() -> None:
    class Watched(list[int]):
        seen = 0

        def __getitem__(self, key: Any) -> Any:
            if isinstance(key, slice):
                self.seen = len(range(*key.indices(len(self))))
            return super().__getitem__(key)

    blocks = Watched(range(1_000_000))
    assert shrink(handle_of(TOKENS[:339], remote_block_ids=[blocks]), TOKENS[:390]).reason == "block_count"
    assert blocks.seen == 1


def test_prompt_tokens_that_are_no_tokens_read_nothing() -> None:
    assert shrink(handle_of(TOKENS[:339]), [-1] * 390) == guard.Report(339, 0, "malformed")
    texts: Any = ["a"] * 390
    assert shrink(handle_of(TOKENS[:339]), texts) == guard.Report(339, 0, "malformed")


# Making one.


@pytest.mark.parametrize("n", [0, -1, 340])
def test_a_guard_covers_tokens_that_are_there(n: int) -> None:
    with pytest.raises(ValueError, match="cannot be made"):
        guard.make(TOKENS[:339], n, 32, KEY)


@pytest.mark.parametrize(
    ("told", "blocks", "named"),
    [
        pytest.param(339, 11, 339, id="as it is"),
        pytest.param(339, 12, 339, id="a block kept for drafts"),
        pytest.param(340, 11, 339, id="the step after the last token is under way"),
        pytest.param(353, 12, 339, id="with drafts in it, into the next block"),
        pytest.param(300, 10, 300, id="less than there is"),
    ],
)
def test_a_decode_engine_offers_what_surely_has_kv_in_the_blocks_that_hold_it(
    told: int, blocks: int, named: int
) -> None:
    handle = handle_of(TOKENS[:339], remote_num_tokens=told, remote_block_ids=[list(range(blocks))])
    guard.sign(handle, array("I", TOKENS[:300]), TOKENS[300:340], 32, KEY)
    assert (handle["remote_num_tokens"], handle["guard"]["n"]) == (named, named)
    assert handle["remote_block_ids"] == [list(range(math.ceil(named / 32)))]
    assert shrink(handle, TOKENS[:390]) == guard.Report(named, named, "match")


@pytest.mark.parametrize(("told", "signed"), [(339, True), (340, True), (341, False)])
@pytest.mark.parametrize("spread", [{"remote_block_ids": [[1], [2]]}, {"dcp_size": 2}])
def test_what_cannot_be_cut_is_offered_as_it_is_or_not_at_all(told: int, signed: bool, spread: dict[str, Any]) -> None:
    handle = handle_of(TOKENS[:339], guard=None, **{"remote_num_tokens": told, **spread})
    before = {k: v for k, v in copy.deepcopy(handle).items() if k != "guard"}
    guard.sign(handle, array("I", TOKENS[:300]), TOKENS[300:340], 32, KEY)
    assert {k: v for k, v in handle.items() if k != "guard"} == before
    assert (handle["guard"] is not None) is signed


def prefill_answer(told: int, **changes: Any) -> dict[str, Any]:
    """A prefill engine's handle for 300 tokens, signed, that went on to `told` ones."""
    handle = decode_leg(remote_num_tokens=told, remote_block_ids=[list(range(math.ceil(told / 32)))], **changes)
    guard.sign(handle, array("I", TOKENS[:300]), TOKENS[300 : told + 1], 32, KEY)
    return handle


def test_blocks_that_do_not_reach_back_to_the_first_token_are_offered_as_they_are() -> None:
    handle = handle_of(TOKENS[:339], guard=None, remote_block_ids=[[7, 8, 9]])
    guard.sign(handle, array("I", TOKENS[:300]), TOKENS[300:340], 32, KEY, whole=False)
    assert (handle["remote_num_tokens"], handle["remote_block_ids"]) == (339, [[7, 8, 9]])
    assert shrink(handle, TOKENS[:390]).reason == "block_count"


@pytest.mark.parametrize("told", [299, 300, 304, 330])
def test_a_prefill_engine_that_went_on_hands_over_its_prompt_alone(told: int) -> None:
    handle = prefill_answer(told)
    assert guard.shrink(handle, TOKENS[:300], KEY) is None
    assert (handle["remote_num_tokens"], handle["remote_block_ids"]) == (min(told, 300), [list(range(10))])


@pytest.mark.parametrize(("told", "taken"), [(299, True), (300, True), (304, False)])
def test_what_cannot_be_cut_to_the_prompt_is_not_taken_for_it(told: int, taken: bool) -> None:
    handle = prefill_answer(told, dcp_size=2)
    assert (guard.shrink(handle, TOKENS[:300], KEY) is None) is taken
    assert bool(handle) is taken


def test_the_wire_format_is_frozen() -> None:
    """Other implementations and older engines rely on these very bytes; a change is a new version."""
    assert guard.make(list(range(10)), 10, 4, guard.seed("adapter", "salt")) == {
        "v": 1,
        "bs": 4,
        "stride": 4,
        "n": 10,
        "chain": "lq51f5OsnCeMMhkmZG0eO6JJ4pvar30d8Gok6uU4kQI=",
        "tail": "cmFv08YGDrkC4qVQYgtLRg==",
    }


# What it costs.


def test_both_ends_of_a_long_turn_cost_less_than_twenty_plain_digests_of_the_same_tokens() -> None:
    tokens = TOKENS * 16 + TOKENS[:768]
    assert len(tokens) == 32_768
    prompt, data = [*tokens, 5], array("I", tokens).tobytes()
    wire = guard.parse(guard.make(tokens, len(tokens), 16, KEY))
    decode = min(repeat(lambda: guard.make(tokens, len(tokens), 16, KEY), number=1, repeat=30))
    prefill = min(repeat(lambda: guard.verify(wire, prompt, KEY), number=1, repeat=30))
    digest = min(repeat(lambda: blake2b(data).digest(), number=1, repeat=30))
    assert decode + prefill < 20 * digest, (
        f"{decode * 1e3:.2f} + {prefill * 1e3:.2f} ms; a digest {digest * 1e3:.2f} ms"
    )


# Once only.


def test_a_handle_is_used_once_whatever_came_of_it() -> None:
    spent = Spent(None)
    for first in (TOKENS[:390], TOKENS[1000:1400]):
        handle = handle_of(TOKENS[:339], remote_request_id=f"chatcmpl-{len(first)}")
        again = copy.deepcopy(handle)
        assert shrink(handle, first, spent=spent).reason != "already_read"
        assert shrink(again, TOKENS[:390], spent=spent) == guard.Report(339, 0, "already_read")
        assert again == {"do_remote_decode": True, "do_remote_prefill": False}  # no second notification either


def test_another_engines_request_of_the_same_id_is_another_handle() -> None:
    spent = Spent(None)
    assert shrink(handle_of(TOKENS[:339]), TOKENS[:390], spent=spent).verified == 339
    assert shrink(handle_of(TOKENS[:339], remote_engine_id="other"), TOKENS[:390], spent=spent).verified == 339
