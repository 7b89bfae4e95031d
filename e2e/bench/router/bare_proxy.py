"""The least that a prefill/decode proxy on aiohttp and uvloop does: no features, no checks."""

import argparse
import itertools
from collections.abc import AsyncIterator

import aiohttp
import orjson
import uvloop
from aiohttp import web

SESSION = web.AppKey("session", aiohttp.ClientSession)
JSON = {"content-type": "application/json"}


def application(prefill: list[str], decode: list[str]) -> web.Application:
    """Two legs, round robin, answers passed on as they come."""
    prefills, decodes = itertools.cycle(prefill), itertools.cycle(decode)

    async def session(app: web.Application) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as app[SESSION]:
            yield

    async def generate(request: web.Request) -> web.StreamResponse:
        body, http = orjson.loads(await request.read()), request.app[SESSION]
        first = {**body, "max_tokens": 1, "stream": False, "kv_transfer_params": {"do_remote_decode": True}}
        async with http.post(next(prefills) + request.path, data=orjson.dumps(first), headers=JSON) as answer:
            params = orjson.loads(await answer.read())["kv_transfer_params"]
        second = orjson.dumps({**body, "kv_transfer_params": params})
        async with http.post(next(decodes) + request.path, data=second, headers=JSON) as answer:
            reply = web.StreamResponse(headers={"content-type": answer.headers["content-type"]})
            await reply.prepare(request)
            async for data in answer.content.iter_any():
                await reply.write(data)
            await reply.write_eof()
            return reply

    app = web.Application(client_max_size=1 << 28)
    app.cleanup_ctx.append(session)
    app.router.add_post("/v1/chat/completions", generate)
    return app


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--prefill", nargs="+", required=True)
    parser.add_argument("--decode", nargs="+", required=True)
    args = parser.parse_args()
    app = application(args.prefill, args.decode)
    web.run_app(app, host="127.0.0.1", port=args.port, access_log=None, print=None, loop=uvloop.new_event_loop())


if __name__ == "__main__":
    main()
