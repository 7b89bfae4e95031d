"""`kvloop-operator`: Kopf and the controller in one process; the end of either ends both."""

import asyncio
import gc
import logging
import sys
from collections.abc import Iterator, Sequence

import kopf
import uvloop

from kvloop.controller.operator import Operator
from kvloop.controller.settings import Settings, parse
from kvloop.handlers.memories import NoMemories
from kvloop.handlers.settings import settings as kopf_settings
from kvloop.handlers.watch import registry
from kvloop.kube.depth import any_depth

log = logging.getLogger(__name__)

GC_THRESHOLD = 10_000
"""Containers between two collections. A watched object has hundreds and mostly dies without the collector: to look for
cycles at each 700th, as Python does by default, takes a tenth of the operator's CPU time; at each 50,000th, 10 MB."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until SIGTERM or SIGINT. Exits with 1 if the operator died of something."""
    settings = parse(arguments)
    gc.freeze()  # what is there now stays
    gc.set_threshold(GC_THRESHOLD)
    configure_logs(settings)
    try:
        with any_depth():
            uvloop.run(serve(settings))
    except Exception as error:
        for cause in causes(error):
            log.critical("the operator ends: %s: %s", type(cause).__name__, cause, exc_info=cause)
        sys.exit(1)


async def serve(settings: Settings) -> None:
    """Watch and reconcile until a signal comes."""
    operator = await Operator.start(settings)
    async with asyncio.TaskGroup() as group:
        group.create_task(operator.run(), name="operator")
        await kopf.operator(
            registry=registry(operator),
            settings=kopf_settings(settings),
            memories=NoMemories(),
            standalone=True,
            clusterwide=not settings.namespace,
            namespaces=settings.namespace,
        )


def configure_logs(settings: Settings) -> None:
    """Write lines of the asked-for format and severity; Kopf's own are of interest from warnings on."""
    level = settings.log_level
    form = kopf.LogFormat.JSON if settings.log_format == "json" else kopf.LogFormat.FULL
    kopf.configure(debug=level == "debug", quiet=level == "warning", log_format=form, log_prefix=None)
    if level != "debug":
        logging.getLogger("kopf").setLevel(logging.WARNING)


def causes(error: BaseException) -> Iterator[BaseException]:
    """What an exception, or a group of them, stands for."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from causes(inner)
    else:
        yield error
