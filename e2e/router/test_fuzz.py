"""Whatever a client sends: no 500, no handle into an engine, and nothing of the engines' own in an answer."""

import asyncio
import json as careless
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from e2e.router.fake import FakeEngine
from e2e.router.harness import Router, config
from kvloop.router.dialects import BY_PATH

SECRETS = (b"kv_transfer_params", b"remote_host", b"127.0.0.1", b"remote_block_ids", b"424242")

scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=12)
names = st.sampled_from(
    [
        "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "extra_args", "sampling_params", "request_id", "n",
        "role", "content", "type", "text", "tool_calls", "name", "messages", "guard", "remote_host", "choices",
    ]
)  # fmt: skip
json = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=20
)
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", "alien"]) | json, "content": json}
)
fields = {
    "messages": st.lists(message, max_size=6) | json,
    "prompt": st.text(max_size=20) | st.lists(st.integers(0, 9), max_size=5) | json,
    "input": st.text(max_size=20) | st.lists(message, max_size=6) | json,
    "system": json,
    "stream": st.booleans() | json,
    "conversation_id": json,
    "tool_choice": json,
    "tools": json,
    "max_tokens": json,
    "return_token_ids": st.just(False),
    "kv_transfer_params": json,
    "vllm_xargs": json,
    "sampling_params": json,
    "previous_response_id": json,
    "model": json,
    "cache_salt": json,
}
bodies = st.fixed_dictionaries({}, optional=fields)
headers = st.dictionaries(
    st.sampled_from(
        ["x-conversation-id", "x-session-id", "authorization", "x-request-id", "traceparent", "x-conversation-end"]
    ),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20),
    max_size=3,
)
quick = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=150)


ALLOWED = {
    "do_remote_decode", "do_remote_prefill",
    "remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size",
    "remote_num_tokens", "transfer_mode", "some_future_key", "remote_blocks_expiry_time", "guard",
}  # fmt: skip


class Bench:
    """A router and its engines on a loop that outlives an example."""

    def __init__(self, runner: asyncio.Runner, router: Router, engines: list[FakeEngine]) -> None:
        self.runner, self.router, self.engines = runner, router, engines

    def post(self, raw: bytes, path: str, sent: dict[str, str]) -> tuple[int, bytes]:
        return self.runner.run(self.router.post(raw, path=path, headers=sent))

    def legs(self) -> list[dict[str, Any]]:
        """Bodies that the engines got since this was last asked."""
        seen = [request.body for engine in self.engines for request in engine.seen]
        for engine in self.engines:
            engine.seen.clear()
        return seen


@contextmanager
def bench() -> Iterator[Bench]:
    with asyncio.Runner() as runner:
        prefill, decode = FakeEngine("prefill"), FakeEngine("decode", token_ids=[424242])
        for engine in (prefill, decode):
            runner.run(engine.__aenter__())
        router = Router(config([prefill.url], [decode.url], probeSeconds=300))
        runner.run(router.__aenter__())
        try:
            yield Bench(runner, router, [prefill, decode])
        finally:
            for thing in (router, prefill, decode):
                runner.run(thing.__aexit__(None, None, None))


def test_any_json_in_any_dialect() -> None:
    with bench() as made:

        @quick
        @given(bodies, st.sampled_from(sorted(BY_PATH)), headers)
        def check(body: dict[str, Any], path: str, sent: dict[str, str]) -> None:
            status, answer = made.post(_dump(body), path, sent)
            assert status in (200, 400), answer
            assert not [secret for secret in SECRETS if secret in answer]
            for leg in made.legs():
                kv = leg.pop("kv_transfer_params", None)
                assert kv is None or kv.keys() >= {"do_remote_decode", "do_remote_prefill"}
                assert kv is None or set(kv) <= set(ALLOWED)
                for container in ("vllm_xargs", "sampling_params", "extra_args"):
                    assert b"transfer_params" not in orjson.dumps(leg.get(container))

        check()


def test_any_bytes_on_any_path() -> None:
    paths = st.sampled_from(
        [*sorted(BY_PATH), "/v1/models", "/tokenize", "/v1/conversations/x", "/metrics", "/v1/x/../y"]
    )
    with bench() as made:

        @quick
        @given(st.binary(max_size=60) | st.just(b'{"a":' * 600), paths, headers)
        def check(raw: bytes, path: str, sent: dict[str, str]) -> None:
            status, answer = made.post(raw, path, sent)
            assert status in (200, 400, 404), answer
            assert not [secret for secret in SECRETS if secret in answer]

        check()


def test_any_bytes_at_all() -> None:
    """Not even HTTP."""
    starts = st.sampled_from(
        [b"", b"GET / HTTP/1.1\r\n", b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n"]
    )

    async def talk(port: int, raw: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw)
        writer.write_eof()
        try:
            return await asyncio.wait_for(reader.read(), 10)
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    with bench() as made:

        @quick
        @given(starts, st.binary(max_size=200))
        def check(start: bytes, raw: bytes) -> None:
            answer = made.runner.run(talk(made.router.app.port, start + raw))
            assert b"HTTP/1.1 500" not in answer
            assert not [secret for secret in SECRETS if secret in answer]

        check()
        status, _ = made.post(b'{"messages":[{"role":"user","content":"still there?"}]}', "/v1/chat/completions", {})
        assert status == 200


def _dump(body: dict[str, Any]) -> bytes:
    """As a careless client would: NaN and huge numbers included."""
    return careless.dumps(body).encode("utf-8", "surrogatepass")
