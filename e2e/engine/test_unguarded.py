"""A prefill engine that VLLM_PLUGINS keeps our plugin out of: what the guard is for. Needs no other prefill engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from e2e.contract.client import FIRST, Client
from e2e.contract.engines import Setup
from e2e.contract.test_histories import HISTORIES
from e2e.contract.test_unguarded import HARMLESS, first_turn

if TYPE_CHECKING:
    from e2e.engine.fleet import RealEngines

pytestmark = [pytest.mark.engine, pytest.mark.parametrize("setup", [Setup(guarded=False)])]


@pytest.mark.parametrize("name", ["extended", "reply rendered otherwise", "thinking left out", "regenerated"])
async def test_without_the_guard_edited_histories_are_answered_wrongly(
    engines: RealEngines, client: Client, name: str
) -> None:
    first, reply, handle = await first_turn(engines, client)
    prompt = HISTORIES[name].edit(first, reply, client.tokens)
    leg = await client.complete(engines.prefill, prompt, handle, 12)
    assert leg.status == 200
    assert (leg.tokens == await client.cold(engines.prefill, prompt, 12)) is (name in HARMLESS)
    assert leg.report is None


async def test_the_plugin_stays_out_where_it_is_not_wanted(engines: RealEngines, client: Client) -> None:
    assert "kvloop" not in (await client.get(engines.prefill, "/metrics")).text
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Read."}], "max_tokens": 3, "stream": True}
    answer = await client.post(
        engines.prefill, "/v1/chat/completions", {**body, "kv_transfer_params": dict(FIRST), "ignore_eos": True}
    )
    assert answer.events[-1] == "[DONE]"
    assert answer.handle is None
