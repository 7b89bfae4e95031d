"""The body of `GET /reuse`."""

from kvloop.api.contract import EngineSummary, ReuseSummary
from kvloop.api.contract.summary import VERSION, first_token_by_arm
from kvloop.api.labels import Role
from kvloop.router.core import Core
from kvloop.router.pool import Engine
from kvloop.router.tally import Tally


class Summary:
    """Puts the summary together when it is asked for."""

    def __init__(self, tally: Tally, core: Core) -> None:
        self._tally = tally
        self._core = core

    def make(self) -> ReuseSummary:
        self._core.conversations.sweep()
        window = self._tally.window()
        return ReuseSummary(
            version=VERSION,
            resource_uid=self._core.config.resource_uid,
            since=round(self._tally.since, 3),
            window_seconds=round(self._tally.window_seconds(), 3),
            counters=self._tally.counters(),
            window=window,
            first_token=first_token_by_arm(window),
            engines=[self._engine(engine) for engine in self._core.pool.all()],
        )

    def _engine(self, engine: Engine) -> EngineSummary:
        return EngineSummary(
            address=engine.address,
            role=engine.role,
            revision=engine.revision,
            probed=engine.info.probed,
            boot_id=engine.info.boot_id,
            guard_active=engine.info.guard_active,
            healthy=engine.healthy,
            draining=engine.endpoint.terminating,
            pinned_tokens=self._core.leases.pinned(engine.address) if engine.role is Role.DECODE else 0,
        )
