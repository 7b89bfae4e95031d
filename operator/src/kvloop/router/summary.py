"""The body of `GET /reuse`."""

import time

from kvloop.api.contract import EngineSummary, ReuseSummary
from kvloop.router.pool import Pool
from kvloop.router.tally import Tally


class Summary:
    """Puts the summary together when it is asked for."""

    def __init__(self, tally: Tally, pool: Pool) -> None:
        self._tally = tally
        self._pool = pool
        self._since = time.time()

    def make(self) -> ReuseSummary:
        return ReuseSummary(
            since=round(self._since, 3),
            window_seconds=round(self._tally.window_seconds(), 3),
            counters=self._tally.counters(),
            window=self._tally.window(),
            first_token=self._tally.first_token(),
            engines=[
                EngineSummary(
                    address=engine.address,
                    role=engine.role,
                    revision=engine.revision,
                    probed=engine.info.probed,
                    boot_id=engine.info.boot_id,
                    guard_active=engine.info.guard_active,
                    healthy=engine.healthy,
                    draining=engine.endpoint.terminating,
                )
                for engine in self._pool.all()
            ],
        )
