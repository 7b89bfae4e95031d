"""Everything that is not generation: models, tokens, health, metrics."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from e2e.enginesim import tokenizer
from e2e.enginesim.api import common
from e2e.enginesim.api.chat import prompt_of
from e2e.enginesim.api.common import ApiError, field_of, json_response


async def health(http: web.Request) -> web.Response:
    return web.Response(status=503 if http.app[common.FRONTEND].engine.death else 200)


async def load(http: web.Request) -> web.Response:
    return json_response({"server_load": http.app[common.FRONTEND].engine.load})


async def version(http: web.Request) -> web.Response:
    return json_response({"version": http.app[common.FRONTEND].engine.config.knobs.vllm_version})


async def metrics(http: web.Request) -> web.Response:
    body = http.app[common.FRONTEND].engine.metrics.render()
    return web.Response(body=body, headers={"Content-Type": "text/plain; version=1.0.0; charset=utf-8"})


async def models(http: web.Request) -> web.Response:
    config = http.app[common.FRONTEND].engine.config
    cards = [_card(name, config.model, None, config.max_model_len) for name in config.names]
    cards += [_card(name, name, config.names[0], None) for name in config.lora_modules]
    return json_response({"object": "list", "data": cards})


async def tokenize(http: web.Request) -> web.Response:
    body = await common.read_body(http)
    frontend = http.app[common.FRONTEND]
    common.check_model(frontend, body)
    if "messages" in body:
        tokens = prompt_of(body)
    else:
        prompt = field_of(body, "prompt", str)
        if prompt is None:
            raise ApiError(400, "1 validation error:\n  prompt: Field required", "Bad Request", "body.prompt")
        tokens = tokenizer.encode(prompt)
    strings = (
        [tokenizer.PIECES[t].decode("utf-8", "replace") for t in tokens] if body.get("return_token_strs") else None
    )
    return json_response(
        {
            "count": len(tokens),
            "max_model_len": frontend.engine.config.max_model_len,
            "tokens": tokens,
            "token_strs": strings,
        }
    )


async def detokenize(http: web.Request) -> web.Response:
    body = await common.read_body(http)
    return json_response({"prompt": tokenizer.decode(common.check_tokens(field_of(body, "tokens", list, [])))})


async def reset_prefix_cache(http: web.Request) -> web.Response:
    running = http.query.get("reset_running_requests") == "true"
    http.app[common.FRONTEND].engine.reset_prefix_cache(running=running)
    return web.Response()


def _card(name: str, root: str, parent: str | None, max_model_len: int | None) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": common.now(),
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [],
    }
