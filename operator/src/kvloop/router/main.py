"""The command `kvloop-router`."""

import argparse
import asyncio
import gc
import logging
import signal
import sys
from pathlib import Path

import uvloop

from kvloop import __version__
from kvloop.api.contract import ContractError, RouterConfig
from kvloop.router.app import App
from kvloop.router.config import load
from kvloop.router.reload import Reloader

GC_THRESHOLD = 20_000
"""Containers between two collections; a turn of many messages makes some hundred, which die without the collector."""
EPILOG = """\
example, without Kubernetes: a router.yaml of

  endpoints:
    static:
      prefill: [{url: "http://10.0.0.7:8000"}]
      decode: [{url: "http://10.0.0.8:8000"}]

SIGTERM: not ready from then on; running streams are finished, then the process ends.
"""


def main() -> None:
    """Run the router until SIGTERM or SIGINT; exits 2 where the configuration is wrong."""
    parser = argparse.ArgumentParser(
        prog="kvloop-router",
        description="Routes conversations between vLLM prefill and decode engines, and returns their KV cache.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="configuration, YAML or JSON")
    parser.add_argument("--check", action="store_true", help="check the configuration and exit")
    parser.add_argument("--version", action="version", version=__version__)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = load(args.config)
    except ContractError as error:
        parser.error(str(error))
    if not args.check:
        uvloop.run(_run(config, args.config))


async def _run(config: RouterConfig, path: Path) -> None:
    app, ended = App(config), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await app.start()
    # What is there now stays: the collector need not look at it, nor as often at what comes and goes with each turn.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    reloader = Reloader(app, path)
    loop.add_signal_handler(signal.SIGHUP, reloader.look)
    watching = asyncio.ensure_future(reloader.run())
    await ended.wait()
    watching.cancel()
    await app.stop()
