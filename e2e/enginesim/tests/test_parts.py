"""The simulator's parts, each by itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.enginesim import ManualClock, content, template, tokenizer
from e2e.enginesim.api.reply import Delta, ParseError, ReplyParser
from e2e.enginesim.blocks import BlockPool
from e2e.enginesim.clock import pause
from e2e.enginesim.config import Knobs
from e2e.enginesim.model import Sampler, Style
from e2e.enginesim.speed import PRESETS

if TYPE_CHECKING:
    from collections.abc import Iterable

# Tokens.


@given(st.text())
def test_every_text_comes_back_from_its_tokens(text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_template_tags_are_one_token_and_special_ones_do_not_show() -> None:
    ids = tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n<think>")
    assert [tokenizer.PIECES[ids[0]], tokenizer.PIECES[ids[-1]]] == [b"<|im_start|>", b"<think>"]
    assert tokenizer.decode(ids) == "user\nhi\n<think>"
    assert tokenizer.EOS in ids


@given(st.lists(st.integers(0, tokenizer.VOCAB_SIZE - 1), max_size=60), st.randoms())
def test_a_growing_reply_ends_as_the_text_of_all_its_tokens(ids: list[int], random: np.random.Generator) -> None:
    stream, text, at = tokenizer.Detokenizer(), "", 0
    while at < len(ids):
        step = random.randint(1, 4)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
        text += stream.push(ids[at : at + step])
        at += step
    assert text + stream.push([], final=True) == tokenizer.decode(ids)


def reply(knobs: Knobs, count: int, start: int = 1) -> list[int]:
    sampler, fold = Sampler(knobs, Style(), may_end=False), start
    ids: list[int] = []
    for _ in range(count):
        fold = content.mix(fold)
        ids.append(sampler.next(fold, (ids or [ord("\n")])[-1]))
    return ids


@pytest.mark.parametrize("start", range(20))
def test_generated_text_encodes_to_the_tokens_it_was_generated_with(start: int) -> None:
    ids = reply(Knobs(), 200, start)
    assert tokenizer.encode(tokenizer.decode(ids)) == ids


def test_drift_makes_it_encode_to_others() -> None:
    ids = reply(Knobs(drift_percent=20), 200)
    assert tokenizer.encode(tokenizer.decode(ids)) != ids


# Content.

tokens = st.lists(st.integers(0, tokenizer.VOCAB_SIZE - 1), min_size=1, max_size=80)


@given(tokens)
def test_content_computed_token_by_token_is_content_computed_at_once(ids: list[int]) -> None:
    whole, last = content.cold(np.array(ids, dtype=np.uint32), 7), 7
    for position, token in enumerate(ids):
        last = content.extend(last, token, position)
        assert last == int(whole[position])
    folded = sum(int(slot) * content.weight(i) for i, slot in enumerate(whole)) & content.MASK
    assert folded == content.fold(whole)


@given(tokens, st.data())
def test_any_other_content_taints(ids: list[int], data: st.DataObject) -> None:
    truth = content.cold(np.array(ids, dtype=np.uint32), 7)
    assert content.taint(truth.copy(), truth) == 0
    at = data.draw(st.integers(0, len(ids) - 1))
    read = truth.copy()
    read[at : at + 1] += np.uint64(data.draw(st.integers(1, content.MASK)))
    assert content.taint(read, truth) != 0


def test_a_shifted_context_taints() -> None:
    ids = np.array([5] * 64, dtype=np.uint32)
    truth = content.cold(ids, 7)
    assert content.taint(np.roll(truth, 1), truth) != 0


# Blocks.


def test_freed_blocks_keep_their_content_until_they_are_handed_out_again() -> None:
    pool = BlockPool(4, 2, prefix_caching=True)
    blocks = pool.allocate(2)
    pool.write(blocks, 1, np.array([11, 12, 13], dtype=np.uint64))
    pool.cache(blocks[0], 99)
    pool.free(blocks)
    assert pool.used == 0
    assert pool.read(blocks, 4).tolist()[1:] == [11, 12, 13]
    assert pool.lookup([99]) == blocks[:1]

    assert pool.allocate(2)[1] == blocks[1]  # the tail of a sequence goes first
    assert pool.lookup([99]) == blocks[:1]
    assert pool.allocate(1) == blocks[:1]
    assert pool.lookup([99]) == []


def test_block_0_is_never_handed_out_and_blocks_in_use_are_not_evicted() -> None:
    pool = BlockPool(3, 2, prefix_caching=True)
    assert not pool.allocatable(3, [])
    held = pool.allocate(2)
    assert 0 not in held
    assert not pool.allocatable(1, [])
    pool.hold(held[:1])
    pool.free(held)
    assert pool.used == 1
    assert not pool.allocatable(1, held[1:])  # the only free one is the one to be reused


def test_blocks_go_over_the_wire_whole() -> None:
    one, other = (BlockPool(4, 2, prefix_caching=False) for _ in range(2))
    source = one.allocate(2)
    one.write(source, 0, np.arange(4, dtype=np.uint64))
    other.load([2, 1], one.export(source))
    assert other.read([2, 1], 4).tolist() == [0, 1, 2, 3]
    with pytest.raises(IndexError):
        one.export([4])


# Time.


async def test_a_clock_moved_by_hand_runs_what_has_come_due_in_order() -> None:
    clock, ran = ManualClock(), []
    clock.call_later(3, lambda: ran.append("c"))
    clock.call_later(1, lambda: ran.append("a"))
    clock.call_later(2, lambda: ran.append("b")).cancel()
    waiting = asyncio.create_task(pause(clock, 2))
    await asyncio.sleep(0)
    clock.advance(2.5)
    await waiting
    assert ran == ["a"]
    clock.advance(1)
    assert ran == ["a", "c"]


@pytest.mark.parametrize(
    ("model", "tokens", "prefill_ms", "reused_ms", "transfer_ms", "first_token_ms"),
    [("qwen3-32b", 24_000, 744, 414, 130, 778), ("glm-5-fp8", 20_000, 2331, 541, 110, 2334)],
)
def test_speed_models_pass_through_the_published_longest_points(
    model: str, tokens: int, prefill_ms: float, reused_ms: float, transfer_ms: float, first_token_ms: float
) -> None:
    speed, history, new = PRESETS[model], 2250, 450
    total = tokens + history
    assert speed.prefill(total, 0) * 1e3 == pytest.approx(prefill_ms, rel=0.05)
    assert speed.transfer(total - new) * 1e3 == pytest.approx(transfer_ms, rel=0.05)
    reused = speed.transfer(total - new) + speed.prefill(new, total - new)
    # One turn in ten of the published average is a first one, which reuses nothing.
    assert (0.9 * reused * 1e3 + 0.1 * prefill_ms) == pytest.approx(reused_ms, rel=0.05)
    first_token = speed.prefill(total, 0) + speed.hand_over(total) + speed.prefill(1, total)
    assert first_token * 1e3 == pytest.approx(first_token_ms, rel=0.05)


# Messages.


def parse(parser: ReplyParser, text: str, cuts: Iterable[int]) -> Delta:
    whole, at = Delta(), 0
    for cut in [*sorted(cuts), len(text)]:
        new = parser.push(text[at:cut], final=cut == len(text))
        whole.reasoning += new.reasoning
        whole.content += new.content
        whole.tool_calls += new.tool_calls
        at = cut
    return whole


@given(st.sets(st.integers(1, 80)))
def test_a_reply_is_taken_apart_alike_however_it_is_cut(cuts: set[int]) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    text = f"<think>\nWhy < not\n</think>\n\nSo <be it\n{call}\n{call}"
    whole = parse(ReplyParser(reasoning=True, form="native"), text, {c for c in cuts if c < len(text)})
    assert whole.reasoning == "\nWhy < not\n"
    assert whole.content.strip() == "So <be it"
    assert [c["function"] for c in whole.tool_calls] == [{"name": "f", "arguments": '{"a":1}'}] * 2


def test_guided_calls_are_whole_or_an_error() -> None:
    assert parse(ReplyParser(form="list"), '[{"name": "f", "parameters": {}}]', ()).tool_calls[0]["index"] == 0
    assert parse(ReplyParser(form="named", name="g"), '{"a": 2}', ()).tool_calls[0]["function"]["name"] == "g"
    with pytest.raises(ParseError):
        parse(ReplyParser(form="list"), '[{"name"', ())


def test_the_template_drops_old_thoughts_and_marks_where_none_is_wanted() -> None:
    asked = {"role": "user", "content": "q"}
    answered = {"role": "assistant", "content": "<think>\nt\n</think>\n\na"}
    assert "<think>" not in template.render([asked, answered, asked], None, {})
    assert "<think>\nt\n</think>\n\na" in template.render([asked, answered], None, {"add_generation_prompt": False})
    assert template.render([asked], None, {"enable_thinking": False}).endswith("<think>\n\n</think>\n\n")


def test_messages_that_cannot_be_rendered_are_refused() -> None:
    for bad in ({"content": "no role"}, {"role": "user", "content": 5}):
        with pytest.raises(template.TemplateError):
            template.render([bad], None, {})
