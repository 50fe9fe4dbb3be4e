"""The target process, `python -m dfc.servers.target`: disks, use cases and their faces, workers of jobs, metrics."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from dfc import metrics
from dfc.api import objects as web
from dfc.api.node import target as node
from dfc.api.node.copies import CompareHandlers, CopyHandlers
from dfc.api.node.target import HoldingHandlers, JobInputHandlers, OwnBatchHandlers, OwnSearchHandlers, StagingHandlers
from dfc.api.objects import Elsewhere, StoredHandlers
from dfc.api.shared import FigureHandlers
from dfc.api.v1 import target as v1
from dfc.clock import HybridClock
from dfc.config import COORDINATOR, Settings
from dfc.engine.link import WorkersBeside
from dfc.filesystem import FileSystem
from dfc.http.faces import Face, TokenAccess
from dfc.http.node import NodeInfo, node_info, run_node
from dfc.http.peer import ControlClient, PeerPool
from dfc.http.rates import Device, NodeSeconds
from dfc.http.relay import Relay
from dfc.http.server import NodeServer
from dfc.http.shutdown import in_time
from dfc.limits import STOP_CLOSE_S
from dfc.registry.base import boot_s
from dfc.target.batch import OwnBatches
from dfc.target.copies.service import TargetCopies
from dfc.target.disks import Scrubbers, open_disks
from dfc.target.jobs import JobInputs, JobStaging
from dfc.target.listing import OwnListings, OwnSearches, ShardSelection
from dfc.target.local import TargetState
from dfc.target.membership import MapKeeper, Membership
from dfc.target.objects import Members, OwnObjects
from dfc.target.threads import DiskReport, Membered, copy_families, disk_families, membership_families
from dfc.target.uploads import OwnUploads
from dfc.ui import target as ui


class TargetNode:
    """A target: `start` it, then `stop` it."""

    def __init__(self, settings: Settings, filesystem: FileSystem | None = None) -> None:
        self.settings = settings
        self._filesystem = filesystem or FileSystem()
        self.id = ""
        self._pool = PeerPool(settings.peer_timeout_s)
        self._control = ControlClient(settings.token, settings.peer_timeout_s)
        self.local = TargetState(self._control, settings.proxy_url, settings.transfer_threads)
        self._membership = Membership(self.local, settings, self._filesystem)
        self._map_keeper = MapKeeper(self.local, self._filesystem)
        self.local.until_kept = self._map_keeper.until_kept
        self._scrubbers = Scrubbers(self.local)
        self._uploads = OwnUploads(self.local, settings.object_size_max_bytes)
        self._members = Members()
        self._copies = TargetCopies(self.local, self._control, settings)
        self._batches = OwnBatches(
            self.local,
            self._pool,
            settings.token,
            self._members.slots,
            self._copies.objects,
            refuses_stale=settings.reads_without_lease == "refuse",
        )
        self.server = NodeServer(settings, self._faces())
        self._registry = metrics.make_registry(self.server.stats, self._families)
        self._reports: list[DiskReport] = []
        self._heart: asyncio.Task[None] | None = None
        self._workers: WorkersBeside | None = None
        self._url = ""

    def _faces(self) -> list[Face]:
        local, may_use = self.local, TokenAccess(self.settings).check
        objects = OwnObjects(local, self._uploads, self._copies.objects)
        selection = ShardSelection(local, self._copies.listed, self._copies.objects)
        elsewhere = Elsewhere(local, Relay(self._pool, self.settings.peer_timeout_s, redirects=True))
        stored = StoredHandlers(local, objects, self._members, elsewhere)
        return [
            v1.target_face(local, stored, self._batches, elsewhere, self._metrics, may_use),
            node.target_face(
                HoldingHandlers(local, objects, OwnListings(local, self._copies.listed), selection, self._scrubbers),
                StagingHandlers(JobStaging(local, self._uploads, self._copies.receiver, self._copies.publications)),
                JobInputHandlers(JobInputs(local, selection, self._copies.objects)),
                OwnBatchHandlers(self._batches),
                OwnSearchHandlers(OwnSearches(local, self._copies.objects)),
                CopyHandlers(self._copies.receiver, self._copies.publications),
                CompareHandlers(self._copies.answers, self._copies.comparer),
                FigureHandlers(self._told, self._about),
                may_use,
            ),
            web.target_face(stored, may_use),
            ui.target_face(lambda: local.proxy_for_clients),
        ]

    async def start(self) -> str:
        """Register, open the disks, start serving and return the URL at which clients reach this target."""
        self.server.bind()
        self._url, advertised = self.server.own_urls()
        cluster_id, number = await self._membership.join(self._url, advertised)
        self.id, clock = self.local.node_id, HybridClock(number)
        await self.local.call(open_disks, self.local, self._scrubbers, self.settings, cluster_id, clock, self._filesystem)
        self.server.rates.devices = await self.local.call(self._devices)
        self._copies.start()
        await self.server.serve()
        self._heart = asyncio.create_task(self._membership.beat())
        self._map_keeper.start()
        if self.settings.jobs_scheduler:
            self._workers = WorkersBeside(self.settings, self.settings.dir or self.settings.disks[0], self.id)
            self._workers.start()
            if self.settings.jobs_scheduler == COORDINATOR:
                self._membership.on_scheduler = self._workers.follow
        return advertised

    async def stop(self) -> None:
        """Finish running requests, then close everything; safe to call when `start` failed half-way. Hanging disks are
        abandoned."""
        if self._heart is not None and self._membership.leaves:
            self._heart.cancel()
            await asyncio.wait((self._heart,))
            await self._membership.leave()
        # Else the heart goes on meanwhile: without a lease, running uploads could not be committed.
        pictures = self._members.thumbnails
        await asyncio.gather(self.server.stop(), self._stop_workers(), self._scrubbers.stop(), pictures.close())
        await self._map_keeper.stop()
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.wait((self._heart,))
        await self._copies.stop()
        self.local.lease.end()
        self._pool.close()
        await self._control.close()
        await in_time(self.local.close, "the disks", 2.5 * STOP_CLOSE_S)

    def _devices(self) -> dict[str, Device]:
        return {disk.id: Device(disk.path) for disk in self.local.in_order()}

    def _told(self, boot: str, after: int) -> NodeSeconds:
        return self.server.rates.told(self.id, boot, after)

    async def _about(self) -> NodeInfo:
        server = self.server
        disks = await self._scrubbers.about()
        return node_info(self.id, "target", self.settings, server.origins, server.own_urls(), server.stats.connections, disks)

    async def _stop_workers(self) -> None:
        if self._workers is not None:
            await self._workers.stop()

    async def _metrics(self) -> CollectorRegistry:
        """Return the metrics with fresh reports of the disks."""
        self._reports = await self.local.reports()
        return self._registry

    def _families(self) -> Iterable[Metric]:
        local = self.local
        lease_left_s = local.lease.left_s(boot_s())
        versions = local.map.version, local.decides_by.step
        yield from membership_families(Membered(*versions, lease_left_s, local.lease_refusals, local.fenced_writes))
        yield from copy_families(local.counted)
        yield from disk_families(self._reports)
        yield from self.server.bulk.budgets.families()


if __name__ == "__main__":
    sys.exit(run_node("target", TargetNode, sys.argv[1:]))
