"""What nodes and workers ask of a proxy."""

from __future__ import annotations

from dfc.http.answers import Answer, json_answer
from dfc.http.exchange import Exchange
from dfc.http.face import Authenticate, Face
from dfc.http.router import Endpoint, Handlers, routes_of
from dfc.names import check_bucket_name
from dfc.proxy.uses import ProxyUses
from dfc.registry.registration import Registration
from dfc.wire import JSON


class ProxyNodeHandlers(Handlers):
    """Handlers of internal routes."""

    def __init__(self, uses: ProxyUses) -> None:
        self._admin, self._buckets, self._jobs = uses.admin, uses.buckets, uses.jobs

    async def register(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """A node's registration, which is its heartbeat too."""
        said: Registration = await exchange.json(Registration)
        return json_answer(await self._admin.register(said))

    async def ensure(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """For targets: the map with this bucket in it, made when the settings allow."""
        cluster_map = await self._buckets.ensure(check_bucket_name(parameters[0]))
        return Answer(200, cluster_map.encode(), [("Content-Type", JSON)])

    async def running(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """For workers: whether what they do for this job is of any use."""
        self._jobs.check_running(parameters[0])
        return json_answer({"running": True})

    ENDPOINTS = (
        Endpoint("/v1/nodes", {"POST": register}, internal=True),
        Endpoint("/v1/buckets/{bucket}/ensure", {"POST": ensure}, internal=True),
        Endpoint("/v1/node/jobs/{job}", {"GET": running}, internal=True),
    )


def proxy_face(uses: ProxyUses, may_use: Authenticate) -> Face:
    """Internal routes: they want the token whenever there is one."""
    return Face("node", routes_of(ProxyNodeHandlers(uses)), may_use)
