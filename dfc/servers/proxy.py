"""The proxy process, `python -m dfc.servers.proxy`: registry, relay, faces, jobs and the coordinator's duties."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Final

from dfc import metrics
from dfc.api.node import proxy as node
from dfc.api.node.figures import FigureHandlers
from dfc.api.peers import ProxyPeers
from dfc.api.v1 import proxy as v1
from dfc.api.web import proxy as web
from dfc.config import Settings
from dfc.engine.base import Engine
from dfc.filesystem import FileSystem
from dfc.http.access import TokenAccess
from dfc.http.calls.peer import ControlClient, PeerPool
from dfc.http.rates.about import NodeAbout, about_node
from dfc.http.rates.ring import NodeSeconds
from dfc.http.relay import Relay
from dfc.http.run import run_node
from dfc.http.server import NodeServer
from dfc.proxy.admin import Administration
from dfc.proxy.batch import ProxyBatches
from dfc.proxy.buckets import Buckets
from dfc.proxy.checking import ClusterChecks
from dfc.proxy.cluster import Cluster
from dfc.proxy.coordinator import Coordinator
from dfc.proxy.deletions import Deletions
from dfc.proxy.duties.epochs import DiskEpochs
from dfc.proxy.duties.lost import LostDisks
from dfc.proxy.duties.rebalancing import Rebalancing
from dfc.proxy.duties.steps import Steps
from dfc.proxy.jobs.log.base import JobLogs, NoLogs
from dfc.proxy.jobs.operations import Operations
from dfc.proxy.jobs.reigns import JobUses, ReigningJobs
from dfc.proxy.jobs.service import JobService
from dfc.proxy.keys import SampleKeys
from dfc.proxy.listing import Listings
from dfc.proxy.objects import Objects
from dfc.proxy.others.details import NodeDetails
from dfc.proxy.others.following import Following
from dfc.proxy.others.presence import Presence
from dfc.proxy.others.rates import ClusterRates
from dfc.proxy.registrations import Registrations
from dfc.proxy.search.service import SampleSearch
from dfc.proxy.shardviews import ShardViews
from dfc.proxy.state.watch import StateWatch
from dfc.proxy.uses import ProxyUses
from dfc.registry.base import SharedRegistry
from dfc.registry.choice import choose_registry
from dfc.registry.leases import Lease
from dfc.registry.place import EtcdPlace
from dfc.ui.face import Pages

COORDINATOR_ANSWER_S: Final = 3600.0  # while it is the coordinator: some answers take as long as targets need
if TYPE_CHECKING:
    from dfc.engine.link import LinkedEngine

DEFAULT_DIRECTORY: Final = "dfc-data"


class ProxyNode:
    """A proxy: `start` it, then `stop` it."""

    def __init__(self, settings: Settings, filesystem: FileSystem | None = None) -> None:
        directory, filesystem = os.path.abspath(settings.dir or DEFAULT_DIRECTORY), filesystem or FileSystem()
        self.settings = settings
        self.registry, self.id = choose_registry(directory, filesystem, EtcdPlace.of(settings))
        registry = self.registry
        self._pool = PeerPool(settings.peer_timeout_s)
        self._control = ControlClient(settings.token, settings.peer_timeout_s)
        self.cluster = Cluster(
            registry,
            self._control,
            settings.auto_create,
            settings.expected_targets,
            acknowledged=self._acknowledged,
            default_copies=settings.default_copies,
        )
        self.steps = Steps(self.cluster, settings.down_after_s)
        epochs = DiskEpochs(registry, lambda: self.cluster.map)
        self.steps.before_leading = epochs.begin
        lost = LostDisks(self.cluster, settings.out_after_s)
        self.state = StateWatch(self.cluster, self.steps, self.id, registry, self.elsewhere)
        self.presence = Presence(registry, self.id, lambda: self.server.own_urls()[0])
        self.following = Following(self.cluster, self.elsewhere)
        self.rates = ClusterRates(self.cluster, self.presence, self._told, self.id)
        self._engine: LinkedEngine | None = None
        registrations = Registrations(
            self.cluster,
            self.steps,
            settings.down_after_s,
            self._scheduler,
            lambda: self.server.own_urls()[1],
            epochs.check,
        )
        deletions = Deletions(self.cluster, self._lead)
        self.jobs = self._make_jobs(directory, filesystem)
        uses = self.uses = ProxyUses(
            Objects(self.cluster, self._pool.refusals),
            Buckets(self.cluster, deletions, self.steps),
            Listings(self.cluster),
            SampleKeys(self.cluster),
            ProxyBatches(self.cluster, self._pool, settings.token),
            self.jobs,
            Administration(self.cluster, registrations, self.steps, lost, self.state, self.id),
            ClusterChecks(self.cluster),
            ShardViews(self.cluster, self._pool.refusals),
            Operations(settings),
            self.rates,
            NodeDetails(self.cluster, self.rates, self._about, self.id),
            SampleSearch(self.cluster, self._pool.refusals),
        )
        relay, access = Relay(self._pool, settings.peer_timeout_s), TokenAccess(settings)
        may_use = access.check
        peers = ProxyPeers(self, Relay(self._pool, COORDINATOR_ANSWER_S), self.cluster)
        self._pages = Pages(uses, peers, access, self.elsewhere)
        faces = [
            v1.proxy_face(uses, relay, peers, lambda: self._metrics, may_use),
            node.proxy_face(uses, FigureHandlers(self._told, self._about), peers, may_use),
            web.proxy_face(uses, relay, peers, may_use),
            self._pages.face,
        ]
        self.server = NodeServer(settings, faces)
        families = uses.admin.families, self.jobs.families, self._pages.families, self.server.bulk.budgets.families
        self._metrics = metrics.make_registry(self.server.stats, *families)
        # Outputs of a job are where its bucket's objects belong, and are not moved.
        self.steps.may_move = lambda: not self.jobs.has_active
        join_wait_s = settings.join_wait_s if settings.rebalance == "auto" else None
        self.coordinator = Coordinator(
            registry,
            self.id,
            {
                "steps of placement": self.steps.run,
                "pushes of maps": self.cluster.push_maps,
                "new disks": Rebalancing(self.cluster, join_wait_s).run,
                "lost disks": lost.run,
                "epochs of disks": epochs.run,
                "deletions of buckets": deletions.finish_begun,
                **self.jobs.duties,
            },
            url=lambda: self.server.own_urls()[0],
        )

    def _make_jobs(self, directory: str, filesystem: FileSystem) -> JobUses:
        def service(logs: JobLogs) -> JobService:
            return JobService(self.cluster, self.settings, directory, self._make_engine, self._lead, filesystem, logs)

        if isinstance(self.registry, SharedRegistry):
            return ReigningJobs(self.cluster, self.registry, service)
        return service(NoLogs())

    def elsewhere(self) -> str | None:
        """The URL of the coordinator if that is another proxy."""
        return self.coordinator.elsewhere()

    def _told(self, boot: str, after: int) -> NodeSeconds:
        return self.server.rates.told(self.id, boot, after)

    async def _about(self) -> NodeAbout:
        server = self.server
        return about_node(self.id, "proxy", self.settings, server.origins, server.own_urls(), server.stats.connections, [])

    async def _lead(self) -> Lease:
        return await self.coordinator.lead()

    def _acknowledged(self, node_id: str, step: int) -> None:
        self.steps.acknowledged(node_id, step)

    def _make_engine(self) -> Engine:
        """Make the engine that runs the tasks of jobs; called for the first task."""
        # Imported only now, because importing Dask would slow down every start.
        from dfc.engine.choice import open_engine

        self._engine = open_engine(self.settings, self.settings.dir or DEFAULT_DIRECTORY, self.server.own_urls()[0])
        return self._engine

    def _scheduler(self) -> str:
        """By what workers beside targets reach the scheduler that runs here."""
        return "" if self._engine is None else self._engine.address

    async def start(self) -> str:
        """Start serving and return the URL at which clients reach this proxy."""
        self.server.bind()
        await self.registry.open()
        await self.jobs.open()
        await self.server.serve()
        self.cluster.begin()
        self.jobs.start()
        self.coordinator.start()
        self.presence.start()
        self.state.start()
        if self.registry.is_shared:
            self.following.start()
        return self.server.own_urls()[1]

    async def stop(self) -> None:
        """Finish running requests, then close everything; safe to call when `start` failed half-way."""
        is_last = all(grant.holder == self.id for grant in self.presence.proxies())
        if is_last:
            self.steps.end_with_all()
        await asyncio.gather(self.state.stop(), self.following.stop(), self.rates.stop())
        # The last proxy stays the coordinator until running uploads have ended: without a lease, targets could not commit them.
        if not is_last:
            await self._resign()
        self._pages.end()
        # The jobs stop at the same time, since that ends event streams, which the drain would otherwise wait for.
        await asyncio.gather(self.jobs.stop(), self.server.drain())
        await self._resign()
        await self.server.stop()
        await self._pages.close()
        self._pool.close()
        await self._control.close()
        await asyncio.gather(self.jobs.close(), self.cluster.close())

    async def _resign(self) -> None:
        """Leave it to others to be the coordinator."""
        await self.presence.stop()
        await self.coordinator.stop()


if __name__ == "__main__":
    sys.exit(run_node("proxy", ProxyNode, sys.argv[1:]))
