"""The gate, on objects with vLLM's attributes: what goes in is checked, what comes out is signed, nothing stays."""

from __future__ import annotations

import copy
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from kvloop.engine import guard
from kvloop.engine.gate import Gate
from kvloop.engine.spent import Spent
from kvloop.engine.tail import Tail, current

PROMPT = [(i * 7919 + 13) % 150_000 for i in range(300)]
REPLY = [(i * 104_729 + 7) % 150_000 for i in range(40)]
FIRST = {"do_remote_decode": True, "do_remote_prefill": False}


class Engine:
    """A gate, and what passes it."""

    def __init__(self) -> None:
        self.reports: list[guard.Report] = []
        self.gate = Gate(32, Spent(None), self.reports.append)

    def admit(self, params: Any, prompt: list[int] | None = None, **fields: Any) -> Any:
        """What is left of a request's parameters."""
        made = request(params, prompt, **fields)
        self.gate.admit(made)
        return made.sampling_params.extra_args.get("kv_transfer_params")

    def run(self, params: Any, prompt: list[int], reply: list[int], handle: dict[str, Any], **fields: Any) -> Any:
        """A request from its way in to the signed handle on its way out."""
        self.admit(copy.deepcopy(params), prompt, **fields)
        *some, last = reply
        self.gate.deliver([output(some[:7]), output(some[7:])])
        end = output([last], "length", handle)
        self.gate.deliver([output([1], request_id="of another request"), end])
        return end.kv_transfer_params


def request(params: Any, prompt: list[int] | None = None, **fields: Any) -> SimpleNamespace:
    extra = {"other": 1, "kv_transfer_params": params}
    known = {
        "request_id": "chatcmpl-1-ab", "prompt_token_ids": PROMPT if prompt is None else prompt, "prompt_embeds": None,
        "mm_features": None, "sampling_params": SimpleNamespace(extra_args=extra), "lora_request": None,
        "cache_salt": None,
    }  # fmt: skip
    return SimpleNamespace(**{**known, **fields})


def output(
    tokens: list[int],
    finish: str | None = None,
    handle: dict[str, Any] | None = None,
    request_id: str = "chatcmpl-1-ab",
) -> SimpleNamespace:
    return SimpleNamespace(request_id=request_id, new_token_ids=tokens, finish_reason=finish, kv_transfer_params=handle)


def decode_handle(tokens: int = 339, request_id: str = "chatcmpl-1-ab") -> dict[str, Any]:
    return {
        "do_remote_prefill": False, "do_remote_decode": True, "remote_block_ids": [list(range(-(-tokens // 32)))],
        "remote_engine_id": "decode", "remote_request_id": request_id, "remote_host": "10.0.0.1", "remote_port": 5600,
        "remote_num_tokens": tokens, "remote_blocks_expiry_time": 1.5,
    }  # fmt: skip


def prefill_handle() -> dict[str, Any]:
    return {**decode_handle(300), "do_remote_prefill": True, "do_remote_decode": False}


def test_a_turn_goes_round() -> None:
    decode, prefill = Engine(), Engine()
    handle = decode.run(prefill_handle(), PROMPT, REPLY, decode_handle())
    assert handle["guard"]["n"] == 339
    answer = prefill.run(handle, [*PROMPT, *REPLY, 1, 2], [5], prefill_handle())
    assert answer["guard"] == {"offered": 339, "verified": 339, "reason": "match"}
    assert prefill.reports == [guard.Report(339, 339, "match")]
    assert decode.reports == []


def test_adapter_and_salt_are_part_of_it() -> None:
    lora: Any = {"lora_request": SimpleNamespace(lora_name="adapter", lora_path="/adapters/1")}
    anew: Any = {"lora_request": SimpleNamespace(lora_name="adapter", lora_path="/adapters/2")}
    handle = Engine().run(prefill_handle(), PROMPT, REPLY, decode_handle(), **lora)
    for fields, verified in ((lora, 339), ({}, 0), (anew, 0), ({**lora, "cache_salt": "salt"}, 0)):
        engine = Engine()
        engine.run(handle, [*PROMPT, *REPLY, 1, 2], [5], prefill_handle(), **fields)
        assert engine.reports[0].verified == verified


def test_a_request_without_a_handle_is_not_looked_at() -> None:
    engine = Engine()
    extras: list[Any] = [None, {}, {"kv_transfer_params": None}, {"kv_transfer_params": {}}]
    for extra in extras:
        made = request(None)
        made.sampling_params.extra_args = extra
        engine.gate.admit(made)
        assert made.sampling_params.extra_args is extra
    engine.gate.admit(request(None, sampling_params=None))  # pooling
    assert engine.gate._open == {}


def test_what_several_requests_share_is_replaced_and_not_changed() -> None:
    engine, handle = Engine(), Engine().run(prefill_handle(), PROMPT, REPLY, decode_handle())
    before = copy.deepcopy(handle)
    prompt = [*PROMPT, *REPLY, 1, 2]
    assert engine.admit(handle, prompt)["remote_num_tokens"] == 339
    assert engine.admit(handle, prompt) == FIRST  # read once, by the first
    assert handle == before
    assert [r.reason for r in engine.reports] == ["match", "already_read"]


@pytest.mark.parametrize("params", ["words", "", 7, 0, False, 0.0, [1], [], {"do_remote_decode": True, 7: 7}])
def test_what_is_no_handle_does_not_reach_the_engine(params: Any) -> None:
    left = Engine().admit(params)
    assert left in (None, {"do_remote_decode": True})


def test_a_check_that_fails_drops_the_handle(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    monkeypatch.setattr(guard, "shrink", lambda *_, **__: 1 / 0)
    with caplog.at_level(logging.ERROR, "vllm.kvloop"):
        assert engine.admit(decode_handle()) is None
    assert "chatcmpl-1-ab" in caplog.text


@pytest.mark.parametrize(
    "fields",
    [{"mm_features": ["image"]}, {"prompt_embeds": "tensor"}, {"resumable": True}],
    ids=lambda f: next(iter(f)),
)
def test_a_sequence_that_its_tokens_do_not_tell_gets_no_guard(fields: dict[str, Any]) -> None:
    assert "guard" not in Engine().run(prefill_handle(), PROMPT, REPLY, decode_handle(), **fields)


def test_an_image_keeps_prefill_from_reading_and_says_so() -> None:
    engine, handle = Engine(), decode_handle()  # as it comes from a decode engine that saw the image, too
    assert engine.admit(handle, mm_features=["image"])["remote_num_tokens"] == 0
    assert engine.reports == [guard.Report(339, 0, "multimodal")]


def test_a_handle_that_cannot_be_signed_goes_without(caplog: pytest.LogCaptureFixture) -> None:
    handle = decode_handle()
    del handle["remote_num_tokens"]
    assert Engine().run(prefill_handle(), PROMPT, REPLY, dict(handle)) == handle
    assert "could not sign" in caplog.text


def test_tokens_of_steps_under_way_and_blocks_for_drafts_are_not_offered() -> None:
    """As vLLM counts with asynchronous scheduling and speculative decoding."""
    handle = Engine().run(prefill_handle(), PROMPT, REPLY, decode_handle(343 + 32))
    assert (handle["remote_num_tokens"], handle["guard"]["n"], len(handle["remote_block_ids"][0])) == (339, 339, 11)


def test_aborted_requests_are_forgotten() -> None:
    engine = Engine()
    engine.admit(dict(FIRST))
    engine.gate.forget(["chatcmpl-1-ab", "unknown"])
    assert engine.gate._open == {}
    end = output([1], "length", decode_handle())
    engine.gate.deliver([end])
    assert "guard" not in end.kv_transfer_params


def test_ended_and_refused_requests_leave_nothing_behind() -> None:
    engine = Engine()
    engine.run(prefill_handle(), PROMPT, REPLY, decode_handle())
    engine.admit(dict(FIRST))
    engine.gate.deliver([output([1], "abort")])
    assert engine.admit(prefill_handle(), abort_immediately=True) is None  # that handle was used above
    assert engine.admit({**prefill_handle(), "remote_request_id": "2"}, abort_immediately=True)["remote_num_tokens"]
    assert engine.gate._open == {}


def test_a_refused_decode_leg_lets_the_prefills_blocks_go_although_it_has_no_prompt() -> None:
    handle = Engine().run(dict(FIRST), PROMPT, [5], prefill_handle())
    assert handle["prompt_digest"]
    left = Engine().admit(handle, [0], abort_immediately=True)
    assert left == prefill_handle()


async def test_the_handle_reaches_the_stream_that_the_request_belongs_to() -> None:
    async def stream() -> Any:
        yield "data: {}\n\n"

    tail = Tail(stream())
    await anext(tail)
    engine = Engine()
    handle = engine.run(prefill_handle(), PROMPT, REPLY, decode_handle())
    assert tail.handle is handle
    current.set(None)
