"""What the guard adds to a turn: both engines' gates on a long prompt, and the path of each token."""

import argparse
import asyncio
import copy
import gc
from array import array
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from hashlib import blake2b
from itertools import count
from time import perf_counter
from types import SimpleNamespace
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from kvloop.engine import guard
from kvloop.engine.gate import Gate
from kvloop.engine.spent import Spent
from kvloop.engine.tail import Tail

TOKENS: Final = 32_768
BLOCK: Final = 16
LIMIT_MS: Final = 3.0
LIMIT_DIGESTS: Final = 20.0
_REPEATS: Final = 100
_STREAM: Final = 20_000


def main(arguments: Sequence[str]) -> None:
    """Measure and print: the best of many runs, so that a busy machine disturbs little."""
    argparse.ArgumentParser("guard", description=__doc__).parse_args(arguments)
    tokens = [(i * 7919 + 13) % 150_000 for i in range(TOKENS)]
    packed = b"".join(token.to_bytes(4, "little") for token in tokens)
    digest = _best(lambda: None, lambda _: blake2b(packed).digest())
    steps = _turn(tokens)
    total = sum(steps.values())
    table = Table("step", "ms", title=f"The guard on {TOKENS:,} tokens, blocks of {BLOCK}")
    for name, seconds in steps.items():
        table.add_row(name, f"{seconds * 1e3:.2f}")
    table.add_row("one turn", f"{total * 1e3:.2f}", style="bold")
    table.add_row("one BLAKE2b over the same bytes", f"{digest * 1e3:.2f}")
    console = Console()
    console.print(table)
    console.print(f"{total * 1e3:.2f} ms (limit {LIMIT_MS}), {total / digest:.1f} digests (limit {LIMIT_DIGESTS})")
    append, deliver = _per_token()
    bare, tail = asyncio.run(_streamed(Tail)), asyncio.run(_streamed(lambda events: events))
    console.print(
        f"Each token: {deliver * 1e9:.0f} ns in the gate, of which a list append takes {append * 1e9:.0f} ns;"
    )
    console.print(f"a streamed event takes {bare * 1e9:.0f} ns with its tail, {tail * 1e9:.0f} ns without.")


def _turn(tokens: list[int]) -> dict[str, float]:
    """Seconds of each step of a follow-up whose history is all shared."""
    ids = (str(i) for i in count())
    prefill, decode = (Gate(BLOCK, Spent(None), lambda _: None) for _ in range(2))
    held, prompt = tokens[:-1], [*tokens, 1]
    offer = _handle(ids, len(held), "do_remote_decode")
    offer["guard"] = guard.make(held, len(held), BLOCK, guard.seed("", ""))
    first = _handle(ids, len(prompt), "do_remote_prefill")
    guard.sign(first, array("I", prompt), [], BLOCK, guard.seed("", ""))

    def asking(handle: dict[str, Any]) -> SimpleNamespace:
        return _request(next(ids), prompt, {**copy.deepcopy(handle), "remote_request_id": next(ids)})

    def ending(gate: Gate, handle: dict[str, Any], answer: dict[str, Any]) -> SimpleNamespace:
        request = asking(handle)
        gate.admit(request)
        output = {"request_id": request.request_id, "new_token_ids": [7], "finish_reason": "length"}
        return SimpleNamespace(**output, kv_transfer_params=copy.deepcopy(answer))

    p_answer, d_answer = _handle(ids, len(prompt), "do_remote_prefill"), _handle(ids, len(prompt), "do_remote_decode")
    return {
        "prefill checks decode's handle": _best(partial(asking, offer), prefill.admit),
        "prefill signs its own": _best(partial(ending, prefill, offer, p_answer), lambda o: prefill.deliver([o])),
        "decode checks prefill's handle": _best(partial(asking, first), decode.admit),
        "decode signs its own": _best(partial(ending, decode, first, d_answer), lambda o: decode.deliver([o])),
    }


def _handle(ids: Any, tokens: int, direction: str) -> dict[str, Any]:
    flags = {"do_remote_prefill": False, "do_remote_decode": False, direction: True}
    where = {"remote_engine_id": "engine", "remote_request_id": next(ids), "remote_host": "10.0.0.1"}
    blocks = [list(range(-(-tokens // BLOCK)))]
    return {
        **flags, **where, "remote_port": 5600, "remote_block_ids": blocks, "remote_num_tokens": tokens,
        "remote_blocks_expiry_time": 1.5,
    }  # fmt: skip


def _request(request_id: str, prompt: list[int], handle: dict[str, Any]) -> SimpleNamespace:
    sampling = SimpleNamespace(extra_args={"kv_transfer_params": handle})
    fields = {"prompt_embeds": None, "mm_features": None, "lora_request": None, "cache_salt": None}
    return SimpleNamespace(request_id=request_id, prompt_token_ids=prompt, sampling_params=sampling, **fields)


def _best(prepare: Callable[[], Any], run: Callable[[Any], object]) -> float:
    best = float("inf")
    gc.disable()  # as timeit does: what it collects is the preparation's
    for _ in range(_REPEATS):
        argument = prepare()
        began = perf_counter()
        run(argument)
        best = min(best, perf_counter() - began)
    gc.enable()
    return best


def _per_token() -> tuple[float, float]:
    """Seconds of a list append, and of the gate for one token of one request."""
    gate, tokens = Gate(BLOCK, Spent(None), lambda _: None), list[int]()
    gate.admit(_request("r", [1, 2, 3], {"do_remote_decode": True}))
    output = SimpleNamespace(request_id="r", new_token_ids=[7], finish_reason=None, kv_transfer_params=None)

    def each(step: Callable[[Any], object], argument: Any) -> float:
        def run(_: None) -> None:
            for _repeat in range(1000):
                step(argument)

        return _best(lambda: None, run) / 1000

    return each(tokens.append, 7), each(gate.deliver, [output])


async def _streamed(wrap: Callable[[AsyncGenerator[str, None]], Any]) -> float:
    async def events() -> AsyncGenerator[str, None]:
        for _ in range(_STREAM):
            yield "data: {}\n\n"

    best = float("inf")
    for _ in range(10):
        began = perf_counter()
        async for _ in wrap(events()):
            pass
        best = min(best, perf_counter() - began)
    return best / _STREAM
