"""The operator's own HTTP: /metrics for Prometheus and /healthz for the kubelet, on every address, IPv4 and IPv6."""

import socket
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from kvloop.controller.canary import DeafError


class Endpoints:
    """Both paths on both ports; a port of 0 lets the system choose one."""

    def __init__(self, registry: CollectorRegistry, check: Callable[[], float], ports: tuple[int, ...]) -> None:
        self._registry = registry
        self._check = check
        self._ports = ports
        application = web.Application()
        application.add_routes([web.get("/metrics", self._metrics), web.get("/healthz", self._health)])
        self._runner = web.AppRunner(application, access_log=None)

    async def start(self) -> tuple[int, ...]:
        """Begin to serve; gives the ports."""
        await self._runner.setup()
        for port in dict.fromkeys(self._ports):
            await web.SockSite(self._runner, _listener(port)).start()
        return tuple(address[1] for address in self._runner.addresses)

    async def stop(self) -> None:
        """Close the ports."""
        await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _health(self, _: web.Request) -> web.Response:
        try:
            return web.json_response({"canaryAgeSeconds": round(self._check(), 1)})
        except DeafError as error:
            return web.json_response({"error": str(error)}, status=503)


def _listener(port: int) -> socket.socket:
    """One socket for IPv4 and IPv6, where there is both."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
