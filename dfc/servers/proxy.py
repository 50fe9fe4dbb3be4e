"""The proxy process, `python -m dfc.servers.proxy`: registry, relay, faces, jobs and the duties of a coordinator."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from dfc import metrics
from dfc.api import web
from dfc.api.node import proxy as node
from dfc.api.owners import ProxyPeers
from dfc.api.shared import FigureHandlers
from dfc.api.v1 import proxy as v1
from dfc.config import Settings
from dfc.engine.base import Engine
from dfc.errors import OperatorError
from dfc.filesystem import FileSystem, SmallFileDamaged
from dfc.http.faces import TokenAccess
from dfc.http.node import NodeInfo, node_info, run_node
from dfc.http.peer import ControlClient, PeerPool
from dfc.http.rates import NodeSeconds
from dfc.http.relay import Relay
from dfc.http.server import NodeServer
from dfc.proxy.admin import Administration, ClusterChecks, ProxyServices
from dfc.proxy.buckets import Buckets, Deletions
from dfc.proxy.cluster import Cluster
from dfc.proxy.coordinator import Coordinator, Following, Presence
from dfc.proxy.duties import DiskEpochs, LostDisks, Rebalancing, Registrations, Steps
from dfc.proxy.jobs.log import JobLogs, NoLogs
from dfc.proxy.jobs.service import AnyJobs, JobService, LeaderJobs, Operations
from dfc.proxy.objects import Listings, Objects, ProxyBatches, SampleKeys
from dfc.proxy.rates import ClusterRates, NodeDetails
from dfc.proxy.samples import SampleSearch, ShardViews
from dfc.proxy.status import StateWatch
from dfc.registry.base import Lease, Registry, SharedRegistry
from dfc.registry.embedded import FILE_NAME, MOVED_NAME, MOVING_NAME, EmbeddedRegistry, RegistryFile, lock_directory
from dfc.registry.etcd import EtcdRegistry, etcd_registry
from dfc.registry.gateway import EtcdPlace
from dfc.registry.messages import (
    CLUSTER_FILE,
    new_node_id,
    node_file,
    read_cluster_id,
    read_node_id,
    write_cluster_id,
    write_node_id,
)
from dfc.ui.face import Pages

if TYPE_CHECKING:
    from dfc.engine.link import LinkedEngine

# --- Which registry a proxy uses: the one in etcd, if its settings name that, otherwise a file in its own directory.

_log: Final = logging.getLogger("dfc.proxy")


class ChosenRegistry(NamedTuple):
    """A registry that is to be opened, and the id of the proxy that uses it."""

    registry: Registry
    proxy_id: str


def choose_registry(directory: str, filesystem: FileSystem, etcd: EtcdPlace | None = None) -> ChosenRegistry:
    """The registry of the proxy in this directory. OperatorError; DiskRefused for a file that cannot be used."""
    if etcd is not None:
        return _in_etcd(directory, filesystem, etcd)
    file = open_file(directory, filesystem)
    return ChosenRegistry(EmbeddedRegistry(file), file.node_id)


def _in_etcd(directory: str, filesystem: FileSystem, place: EtcdPlace) -> ChosenRegistry:
    path = f"{directory}/{FILE_NAME}"
    if os.path.exists(path):
        raise OperatorError(
            f"{path} is the registry of a cluster with one proxy, but `etcd_urls` is set: give this proxy a directory of its"
            " own (--dir) to use the registry in etcd, leave out `etcd_urls` to use this one, or move it there with"
            " `dfc registry move`"
        )
    if os.path.exists(f"{directory}/{MOVING_NAME}"):
        raise OperatorError(f"the registry of {directory} is being moved to etcd: run that `dfc registry move` again")
    lock = lock_directory(directory, filesystem)
    try:
        own = read_node_id(directory)
        if own is None:
            write_node_id(directory, own := new_node_id("proxy"), filesystem)
        registry: EtcdRegistry = etcd_registry(place, own)
        registry.belongs_to = known = read_cluster_id(directory) or ""
        registry.belongs_in = f"{directory}/{CLUSTER_FILE}"
    except BaseException:
        os.close(lock)
        raise
    registry.on_close = lambda: os.close(lock)
    registry.on_open = lambda found: None if found == known else write_cluster_id(directory, found, filesystem)
    return ChosenRegistry(registry, own)


def open_file(directory: str, filesystem: FileSystem) -> RegistryFile:
    """Open the registry in a directory, and write the proxy's id, which it contains, to the id file beside it.

    The id file also records that there was a registry here. If the registry is missing then, no new one is created, since all
    disks would lose their cluster. OperatorError.
    """
    own, damage = None, None
    try:
        own = read_node_id(directory)
    except SmallFileDamaged as error:
        damage = error
    for name in (MOVING_NAME, MOVED_NAME):
        if os.path.exists(f"{directory}/{name}") and not os.path.exists(f"{directory}/{FILE_NAME}"):
            raise OperatorError(
                f"the registry of {directory} was moved to etcd: set `etcd_urls`, or move it back with `dfc registry move`"
                if name == MOVED_NAME
                else f"the registry of {directory} is being moved to etcd: run that `dfc registry move` again"
            )
    registry = RegistryFile(directory, filesystem=filesystem, may_create=own is None and damage is None)
    try:
        if not registry.node_id:  # written by a version whose registries did not contain it
            if damage is not None:
                raise damage
            registry.keep_node_id(own or new_node_id("proxy"))
        if own != registry.node_id:
            if own is not None or damage is not None:
                _log.warning(
                    "%s was wrong or damaged: corrected to %s, as the registry says", node_file(directory), registry.node_id
                )
            write_node_id(directory, registry.node_id, filesystem)
    except BaseException:
        registry.close()
        raise
    return registry


# --- The proxy process.

COORDINATOR_ANSWER_S: Final = 3600.0  # while it is the coordinator: some answers take as long as targets need
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
            acknowledged=lambda node_id, step: self.steps.acknowledged(node_id, step),
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
            self.cluster, self.steps, settings.down_after_s, self._scheduler, lambda: self.server.own_urls()[1], epochs.check
        )
        deletions = Deletions(self.cluster, self._lead)
        self.jobs = self._make_jobs(directory, filesystem)
        uses = self.uses = ProxyServices(
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
        peers = ProxyPeers(self.elsewhere, Relay(self._pool, COORDINATOR_ANSWER_S), self.cluster)
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

    def _make_jobs(self, directory: str, filesystem: FileSystem) -> AnyJobs:
        def service(logs: JobLogs) -> JobService:
            return JobService(self.cluster, self.settings, directory, self._make_engine, self._lead, filesystem, logs)

        if isinstance(self.registry, SharedRegistry):
            return LeaderJobs(self.cluster, self.registry, service)
        return service(NoLogs())

    def elsewhere(self) -> str | None:
        """The URL of the coordinator if that is another proxy."""
        return self.coordinator.elsewhere()

    def _told(self, boot: str, after: int) -> NodeSeconds:
        return self.server.rates.told(self.id, boot, after)

    async def _about(self) -> NodeInfo:
        server = self.server
        return node_info(self.id, "proxy", self.settings, server.origins, server.own_urls(), server.stats.connections, [])

    async def _lead(self) -> Lease:
        return await self.coordinator.lead()

    def _make_engine(self) -> Engine:
        """Make the engine that runs the tasks of jobs; called for the first task."""
        # Imported only now, because importing Dask would slow down every start.
        from dfc.engine.link import open_engine

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
