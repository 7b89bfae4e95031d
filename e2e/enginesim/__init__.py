"""A simulated vLLM engine that is as unforgiving as the real one.

It speaks vLLM's HTTP protocol, holds KV *content* and moves it between processes, so that whoever reads a wrong block
answers a wrong text. What it yields in time is simulated; see `speed`.
"""

from e2e.enginesim.clock import ManualClock, RealClock
from e2e.enginesim.config import Config, Knobs, Transfer
from e2e.enginesim.server import EngineSim

__all__ = ["Config", "EngineSim", "Knobs", "ManualClock", "RealClock", "Transfer"]
