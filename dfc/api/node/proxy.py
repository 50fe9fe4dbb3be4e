"""The internal routes of a proxy, for targets and workers: registration, buckets, running jobs."""

from __future__ import annotations

from dfc.api.owners import ProxyPeers
from dfc.api.shared import FigureHandlers
from dfc.http.answers import Answer, json_answer
from dfc.http.exchange import Exchange
from dfc.http.faces import ALL_METHODS, Authenticate, Endpoint, Face, Handlers
from dfc.names import check_bucket_name
from dfc.proxy.admin import ProxyServices
from dfc.registry.messages import CleanReport, ClearedReport, OutOfSyncReport, RaisedReport, Registration, SlicesReport
from dfc.wire import JSON


class ProxyNodeHandlers(Handlers):
    """Handlers of internal routes."""

    def __init__(self, uses: ProxyServices) -> None:
        self._admin, self._buckets, self._jobs = uses.admin, uses.buckets, uses.jobs

    async def register(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Take a node's registration, which is also its heartbeat."""
        return json_answer(await self._admin.register(await exchange.json(Registration)))

    async def ensure(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """For targets: return the map with this bucket in it, creating the bucket if the settings allow."""
        cluster_map = await self._buckets.ensure(check_bucket_name(parameters[0]))
        return Answer(200, cluster_map.encode(), [("Content-Type", JSON)])

    async def newest_map(self, _exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """For other proxies: what this one, if it is the coordinator, has heard of targets."""
        return json_answer(self._admin.heard())

    async def running(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """For workers: whether the job is still running, so that their work is of use."""
        self._jobs.check_running(parameters[0])
        return json_answer({"running": True})

    async def mark_out_of_sync(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """For targets: mark a disk out of sync with one whose writes it cannot be given, and return the map in which it is."""
        request: OutOfSyncReport = await exchange.json(OutOfSyncReport)
        cluster_map = await self._admin.steps.mark_out_of_sync(request.primary, request.disk)
        return Answer(200, cluster_map.encode(), [("Content-Type", JSON)])

    async def clean(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """For targets: take the report that a disk has caught up with another one."""
        self._admin.steps.report_clean(await exchange.json(CleanReport))
        return json_answer({"taken": True})

    async def raised(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """For targets: take the report that the new replicas of a bucket's objects have everything that a disk has."""
        report: RaisedReport = await exchange.json(RaisedReport)
        self._admin.steps.report_raised(report.disk, report.bucket_id, report.copies, report.step)
        return json_answer({"taken": True})

    async def ready(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """For targets: take the report that the future replicas of some slices have everything that a disk has."""
        self._admin.steps.report_ready(await exchange.json(SlicesReport))
        return json_answer({"taken": True})

    async def cleared(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """For targets: take the report that a disk which was evicted may get objects again."""
        await self._admin.lost.report_cleared(await exchange.json(ClearedReport))
        return json_answer({"taken": True})

    ENDPOINTS = (
        Endpoint("/v1/node/registration", {"POST": register}, by_coordinator=ALL_METHODS),
        Endpoint("/v1/node/out-of-sync", {"POST": mark_out_of_sync}, by_coordinator=ALL_METHODS),
        Endpoint("/v1/node/reports/clean", {"POST": clean}, by_coordinator=ALL_METHODS),
        Endpoint("/v1/node/reports/raised", {"POST": raised}, by_coordinator=ALL_METHODS),
        Endpoint("/v1/node/reports/cleared", {"POST": cleared}, by_coordinator=ALL_METHODS),
        Endpoint("/v1/node/reports/ready", {"POST": ready}, by_coordinator=ALL_METHODS),
        Endpoint("/v1/node/buckets/{bucket}/ensure", {"POST": ensure}),
        Endpoint("/v1/node/newest-map", {"GET": newest_map}),
        Endpoint("/v1/node/jobs/{job}", {"GET": running}, by_coordinator=ALL_METHODS),
    )


def proxy_face(uses: ProxyServices, figures: FigureHandlers, peers: ProxyPeers, may_use: Authenticate) -> Face:
    """Make the face of internal routes, which require the token whenever one is set."""
    return Face("node", peers.routes(ProxyNodeHandlers(uses), figures), may_use)
