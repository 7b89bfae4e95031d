"""Turns from files: the router's access log, and public traces."""

from kvloop.cli.traces.loaded import Loaded, TraceError
from kvloop.cli.traces.public import read_trace
from kvloop.cli.traces.routerlog import read_log

__all__ = ["Loaded", "TraceError", "read_log", "read_trace"]
