"""`python -m dfc.servers.target`: a target, assembled: disks, registration and heartbeats, routes, scrubbers, metrics."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec
from prometheus_client.core import Metric

from dfc import metrics
from dfc.batch.answer import BATCH_QUERY
from dfc.clock import HybridClock
from dfc.config import Settings
from dfc.engine.beside import WorkersBeside
from dfc.errors import DfcError, OperatorError, Unavailable
from dfc.filesystem import FileSystem
from dfc.http.access import TokenAccess
from dfc.http.answers import Answer, json_answer
from dfc.http.calls.peer import ControlClient, PeerPool
from dfc.http.calls.problems import RemoteError
from dfc.http.common import LISTING_QUERY, OBJECT_QUERY, health_answer, metrics_answer
from dfc.http.exchange import Exchange
from dfc.http.face import Face
from dfc.http.relay import Relay
from dfc.http.router import Route
from dfc.http.run import run_node
from dfc.http.server import NodeServer
from dfc.http.shutdown import in_time
from dfc.limits import GIB, STOP_CLOSE_S
from dfc.placement.map import ClusterMap, DiskEntry, Labels
from dfc.registry.registration import Registered, Registration
from dfc.storage.disk import Disk
from dfc.storage.identity import require_identity
from dfc.storage.rows import DiskOptions
from dfc.storage.upkeep.scrub import Scrubber
from dfc.target.batch.routes import BatchRoutes
from dfc.target.families import DiskReport, disk_families
from dfc.target.identity import settle_identity
from dfc.target.job_inputs import INDEX_QUERY, LOCATE_QUERY, SHARDS_QUERY, SourceRoutes
from dfc.target.local import Local
from dfc.target.members import MemberRoutes
from dfc.target.node_routes import InternalRoutes, ShardSelection
from dfc.target.objects import ObjectRoutes
from dfc.target.staging import SITE_QUERY, STAGED_QUERY, StagingRoutes
from dfc.wire import MSGPACK

_log: Final = logging.getLogger("dfc.target")
RESERVE_FRACTION: Final = 0.05  # the reserve is at most so much of a disk
RETRY_S: Final = 0.25  # while the registry cannot be reached at the start
RETRY_MAX_S: Final = 2.0
BEAT_ANSWER_S: Final = 2.0  # for one of several addresses; a target that is not heard of for twice as long is down


class TargetNode:
    """Start with `start`, end with `stop`."""

    def __init__(self, settings: Settings, filesystem: FileSystem | None = None) -> None:
        self.settings = settings
        self._filesystem = filesystem or FileSystem()
        self.id = ""
        self._pool = PeerPool(settings.peer_timeout_s)
        self._control = ControlClient(settings.token, settings.peer_timeout_s)
        self.local = Local(self._control, settings.proxy_url, settings.transfer_threads)
        self._scrubbers: dict[str, Scrubber] = {}
        self._members = MemberRoutes(self.local)
        relay = Relay(self._pool, settings.peer_timeout_s)
        self._objects = ObjectRoutes(self.local, relay, self._members, settings.object_size_max_bytes)
        self.server = NodeServer(settings, self._faces())
        self._registry = metrics.make_registry(self.server.stats, self._families)
        self._reports: list[DiskReport] = []
        self._heart: asyncio.Task[None] | None = None
        self._workers: WorkersBeside | None = None
        self._url = self._advertised = ""

    def _faces(self) -> list[Face]:
        may_use, routes = TokenAccess(self.settings).check, self._routes()
        web = dict.fromkeys(("GET", "PUT", "DELETE"), self._objects.web)
        return [
            Face("v1", [route for route in routes if not route.internal], may_use, segments=frozenset(("v1",))),
            Face("node", [route for route in routes if route.internal], may_use),
            Face("web", [], may_use, rest=Route("/", web, query=None, at_once=self._objects.web_at_once)),
        ]

    def _routes(self) -> list[Route]:
        selection = ShardSelection(self.local)
        objects, internal = self._objects, InternalRoutes(self.local, self._scrubbers, selection)
        staging = StagingRoutes(self.local, objects.slots, self.settings.object_size_max_bytes)
        sources = SourceRoutes(self.local, selection)
        batch = BatchRoutes(self.local, self._pool, self.settings.token, self._members.slots)
        here = dict.fromkeys(("GET", "PUT", "DELETE"), objects.object)
        away = objects.elsewhere
        named = dict.fromkeys(("GET", "PUT", "PATCH", "DELETE"), away)
        listing = frozenset(("bucket_id", "prefix", "start_after", "delimiter", "limit"))
        return [
            Route("/v1/objects/{bucket}/{object…}", here, query=OBJECT_QUERY, at_once=objects.object_at_once),
            Route("/v1/node/objects", {"GET": internal.objects}, query=listing, internal=True),
            Route("/v1/node/buckets", {"GET": internal.buckets}, internal=True),
            Route("/v1/node/buckets/{id}", {"DELETE": internal.remove_bucket}, internal=True),
            Route(
                "/v1/node/samples", {"GET": internal.samples}, query=frozenset(("bucket", "shards", "fields")), internal=True
            ),
            Route("/v1/batch", {"POST": batch.batch}, BATCH_QUERY, reads=True),
            Route("/v1/node/batch", {"POST": batch.own_batch}, internal=True),
            Route("/v1/node/staged", {"GET": staging.totals}, internal=True),
            Route("/v1/node/staged/{job}", {"DELETE": staging.discard}, internal=True),
            Route("/v1/node/staged/{job}/prepare", {"POST": staging.prepare}, internal=True),
            Route("/v1/node/staged/{job}/publish", {"POST": staging.publish}, internal=True),
            Route(
                "/v1/node/staged/{job}/{bucket}/{object…}",
                {"GET": staging.get, "PUT": staging.put},
                query=STAGED_QUERY,
                internal=True,
            ),
            Route("/v1/node/deposits", {"GET": staging.site}, query=SITE_QUERY, internal=True),
            Route("/v1/node/shards", {"GET": sources.shards}, query=SHARDS_QUERY, internal=True),
            Route("/v1/node/locate", {"GET": sources.locate}, query=LOCATE_QUERY, internal=True),
            Route("/v1/node/index", {"GET": sources.index}, query=INDEX_QUERY, internal=True),
            Route("/v1/node/map", {"POST": internal.take_map}, internal=True),
            Route("/v1/node/scrub", {"GET": internal.scrub_status, "POST": internal.start_scrub}, internal=True),
            Route("/v1/health", {"GET": self._health}),
            Route("/metrics", {"GET": self._metrics}),
            Route("/v1/cluster", {"GET": self._cluster}),
            Route("/v1/cluster/scrub", {"GET": away, "POST": away}),
            Route("/v1/jobs", {"GET": away, "POST": away}, query=frozenset(("state", "limit", "token"))),
            Route("/v1/jobs/{job}", {"GET": away, "DELETE": away}),
            Route("/v1/jobs/{job}/events", {"GET": away}),
            Route("/v1/buckets", {"GET": away}),
            Route("/v1/buckets/{bucket}/objects", {"GET": away}, query=LISTING_QUERY),
            Route("/v1/buckets/{bucket}/samples", {"GET": away}, query=frozenset(("shards", "fields"))),
            Route("/v1/buckets/{bucket}", named, query=frozenset(("force",))),
        ]

    # --- life

    async def start(self) -> str:
        """Register, open the disks, serve; the URL under which clients reach this target."""
        self.server.bind()
        self._url, self._advertised = self.server.own_urls()
        known = await self._cluster_map()
        cluster_id, directory = known.cluster_id, os.path.abspath(self.settings.dir or self.settings.disks[0])
        self.id = self.local.node_id = await self.local.call(
            settle_identity, directory, self.settings.disks, known, self._filesystem
        )
        entries = await self.local.call(_describe_unopened, self.settings.disks)
        number = await self._first_registration(cluster_id, entries)
        await self.local.call(self._open_disks, cluster_id, HybridClock(number))
        await self.server.serve()
        self._heart = asyncio.create_task(self._beat())
        if self.settings.jobs_scheduler:
            self._workers = WorkersBeside(self.settings, self.settings.dir or self.settings.disks[0], self.id)
            self._workers.start()
        return self._advertised

    async def _cluster_map(self) -> ClusterMap:
        """The registry's, asked for until it answers."""
        wait_s = RETRY_S
        while True:
            try:
                return await self.local.ask_registry("GET", "/v1/cluster", ClusterMap)
            except (Unavailable, RemoteError) as error:
                if not _may_be_asked_again(error):
                    raise OperatorError(f"the registry at {self.local.proxies} refuses: {error.message}") from error
                _log.info("waiting for the registry at %s: %s", self.local.proxies, error.message)
            await asyncio.sleep(wait_s)
            wait_s = min(RETRY_MAX_S, wait_s * 2)

    async def _first_registration(self, cluster_id: str, entries: tuple[DiskEntry, ...]) -> int:
        while True:
            try:
                return (await self._register(cluster_id, entries)).node_number
            except (Unavailable, RemoteError) as error:
                if not _may_be_asked_again(error):
                    raise OperatorError(f"the registry refuses this target: {error.message}") from error
                _log.info("the registry takes no registration yet: %s", error.message)
                await asyncio.sleep(RETRY_S)

    async def _register(self, cluster_id: str, entries: tuple[DiskEntry, ...]) -> Registered:
        said = Registration(
            node_id=self.id,
            role="target",
            url=self._url,
            advertise_url=self._advertised,
            cluster_id=cluster_id,
            map_version=self.local.map.version,
            disks=entries,
            labels=Labels(zone=self.settings.zone, host=self.settings.host_label),
        )
        answer = await self.local.ask_registry("POST", "/v1/nodes", Registered, said, answer_s=BEAT_ANSWER_S)
        if answer.map is not None:
            self.local.take_map(answer.map)
        return answer

    def _open_disks(self, cluster_id: str, clock: HybridClock) -> None:
        settings = self.settings
        for path in settings.disks:
            disk = Disk.open(path, cluster_id, clock, _disk_options(settings, path), self._filesystem)
            self.local.add(disk)
            scrubber = Scrubber(
                disk, bytes_per_s=settings.scrub_rate_bytes_per_s, interval_s=settings.scrub_interval_s or math.inf
            )
            scrubber.start()
            self._scrubbers[disk.id] = scrubber

    async def _beat(self) -> None:
        """Heartbeats for ever; a registry that is away is tried again, serving goes on meanwhile."""
        failing = False
        while True:
            await asyncio.sleep(self.settings.heartbeat_s)
            try:
                await self._register(self.local.map.cluster_id, self._describe(await self.local.reports()))
                failing = False
            except (Unavailable, RemoteError) as error:
                if not failing:
                    _log.warning("no heartbeat: %s", error.message)
                failing = True
            except Exception:
                _log.exception("a heartbeat failed; they go on")

    def _describe(self, reports: Iterable[DiskReport]) -> tuple[DiskEntry, ...]:
        known = {d.id: d for node in self.local.map.nodes if node.id == self.id for d in node.disks}
        entries = []
        for report in reports:
            was = known.get(report.disk_id)
            weight = was.weight if was else 1.0
            entry = DiskEntry(id=report.disk_id, weight=weight, state=report.state, objects=report.objects)
            if report.space is not None:
                entry = msgspec.structs.replace(entry, capacity=report.space.capacity, used=report.space.used)
            entries.append(entry)
        return tuple(entries)

    async def stop(self) -> None:
        """Drain and close; safe to call when `start` failed half-way. A disk that hangs is left behind."""
        if self._heart is not None:
            self._heart.cancel()
        scrubbers = (in_time(scrubber.stop, "a scrubber") for scrubber in self._scrubbers.values())
        await asyncio.gather(self.server.stop(), self._stop_workers(), *scrubbers)
        if self._heart is not None:
            await asyncio.wait((self._heart,))
        self._pool.close()
        await self._control.close()
        await in_time(self.local.close, "the disks", 2.5 * STOP_CLOSE_S)

    async def _stop_workers(self) -> None:
        if self._workers is not None:
            await self._workers.stop()

    # --- what every node answers

    async def _health(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        node = self.local.map.node(self.id)
        state = node.state if node else "joining"
        return health_answer(bool(self.local.disks), role="target", id=self.id, map_version=self.local.map.version, state=state)

    async def _cluster(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """The registry's map, with the use of all disks; while it is away, the map that this target works by."""
        with suppress(Unavailable):
            return await self._objects.elsewhere(exchange)
        if MSGPACK in exchange.headers.get("Accept", ""):
            return Answer(200, msgspec.msgpack.encode(self.local.map), [("Content-Type", MSGPACK)])
        return json_answer(self.local.map)

    async def _metrics(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        self._reports = await self.local.reports()
        return await asyncio.to_thread(metrics_answer, self._registry)

    def _families(self) -> Iterable[Metric]:
        return disk_families(self.local.map.version, self._reports)


def _may_be_asked_again(error: DfcError) -> bool:
    """Whether the registry cannot be reached, or has said that it is to be asked again: it has too much to do now."""
    return error.status == 503


def _disk_options(settings: Settings, path: str) -> DiskOptions:
    capacity = _capacity(path)
    return DiskOptions(
        reserve_bytes=min(settings.disk_reserve_bytes, int(capacity * RESERVE_FRACTION)),
        ballast_bytes=settings.disk_ballast_bytes,
        error_budget=settings.disk_error_budget,
        sync_relaxed_s=settings.sync_relaxed_s,
        orphan_keep_s=settings.orphan_keep_s,
        object_bytes_max=settings.object_size_max_bytes,
        row_cache_rows=settings.row_cache_rows,
    )


def _capacity(path: str) -> int:
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize


def weight_of(capacity_bytes: int) -> float:
    """A disk's weight when it joins: its capacity in GiB with two significant digits, so that equal disks weigh the same."""
    gib = max(capacity_bytes / GIB, 0.01)
    return float(f"{gib:.2g}")


def _describe_unopened(paths: tuple[str, ...]) -> tuple[DiskEntry, ...]:
    """The disks as they are registered before they are open."""
    entries = []
    for path in paths:
        identity, capacity = require_identity(path, None), _capacity(path)
        entries.append(DiskEntry(id=identity.disk_id, weight=weight_of(capacity), capacity=capacity))
    return tuple(entries)


if __name__ == "__main__":
    sys.exit(run_node("target", TargetNode, sys.argv[1:]))
