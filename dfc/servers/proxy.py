"""`python -m dfc.servers.proxy`: a proxy, assembled: registry, relay, faces, and its duties while it is the coordinator."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Final

from dfc import metrics
from dfc.batch.answer import BATCH_QUERY
from dfc.config import Settings
from dfc.engine.base import Engine
from dfc.filesystem import FileSystem
from dfc.http.access import TokenAccess
from dfc.http.answers import Answer
from dfc.http.calls.peer import ControlClient, PeerPool
from dfc.http.common import LISTING_QUERY, OBJECT_QUERY
from dfc.http.exchange import Exchange
from dfc.http.face import Face
from dfc.http.relay import Relay
from dfc.http.router import Handler, Route
from dfc.http.run import run_node
from dfc.http.server import NodeServer
from dfc.proxy.admin import AdminRoutes
from dfc.proxy.batch import BatchRoutes
from dfc.proxy.buckets import BucketRoutes
from dfc.proxy.cluster import Cluster
from dfc.proxy.coordinator import Coordinator
from dfc.proxy.deletions import Deletions
from dfc.proxy.jobs.routes import LIST_QUERY, JobRoutes
from dfc.proxy.jobs.service import JobService
from dfc.proxy.web import WebRoutes
from dfc.registry.embedded import EmbeddedRegistry
from dfc.registry.file import RegistryFile
from dfc.registry.identity import new_node_id, node_file, read_node_id, write_node_id
from dfc.smallfile import SmallFileDamaged

_log: Final = logging.getLogger("dfc.proxy")
DEFAULT_DIRECTORY: Final = "dfc-data"
OBJECT_METHODS: Final = ("GET", "PUT", "DELETE")


class ProxyNode:
    """Start with `start`, end with `stop`."""

    def __init__(self, settings: Settings, filesystem: FileSystem | None = None) -> None:
        directory, filesystem = os.path.abspath(settings.dir or DEFAULT_DIRECTORY), filesystem or FileSystem()
        self.settings = settings
        file = open_registry(directory, filesystem)
        registry = EmbeddedRegistry(file)
        self.id = file.node_id
        self._pool = PeerPool(settings.peer_timeout_s)
        self._control = ControlClient(settings.token, settings.peer_timeout_s)
        self.cluster = Cluster(registry, self._control, settings.auto_create, settings.expected_targets)
        deletions = Deletions(self.cluster)
        self.jobs = JobService(self.cluster, settings, directory, self._make_engine, filesystem)
        self._admin = AdminRoutes(self.cluster, self.id)
        web = WebRoutes(self.cluster, Relay(self._pool, settings.peer_timeout_s))
        self.server = NodeServer(settings, self._faces(web, deletions))
        self._admin.metrics = metrics.make_registry(self.server.stats, self._admin.families, self.jobs.families)
        self.coordinator = Coordinator(
            registry,
            self.id,
            {
                "watch over targets": lambda lease: self.cluster.watch_nodes(lease, settings.down_after_s),
                "pushes of maps": self.cluster.push_maps,
                "deletions of buckets": deletions.finish_begun,
                "sweep of staged objects": self.jobs.sweep,
            },
        )

    def _make_engine(self) -> Engine:
        """Where tasks of jobs run; called by the first of them."""
        # Dask is imported by then only: it would make every start slower.
        from dfc.engine.choice import open_engine

        return open_engine(self.settings, self.settings.dir or DEFAULT_DIRECTORY, self.server.own_urls()[0])

    def _when_ready(self, handler: Handler) -> dict[str, Handler]:
        async def checked(exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
            self.cluster.check_ready()
            return await handler(exchange, parameters)

        return dict.fromkeys(OBJECT_METHODS, checked)

    def _faces(self, web: WebRoutes, deletions: Deletions) -> list[Face]:
        may_use = TokenAccess(self.settings).check
        routes = self._routes(web, deletions)
        return [
            Face("v1", [route for route in routes if not route.internal], may_use, segments=frozenset(("v1",))),
            Face("node", [route for route in routes if route.internal], may_use),
            Face("web", [], may_use, rest=Route("/", self._when_ready(web.web), query=None)),
        ]

    def _routes(self, web: WebRoutes, deletions: Deletions) -> list[Route]:
        buckets, admin, jobs = BucketRoutes(self.cluster, deletions), self._admin, JobRoutes(self.jobs)
        named = {"GET": buckets.get, "PUT": buckets.put, "PATCH": buckets.patch, "DELETE": buckets.delete}
        return [
            Route(
                "/v1/objects/{bucket}/{object…}",
                self._when_ready(web.object),
                query=OBJECT_QUERY,
                at_once=web.object_at_once,
            ),
            Route("/v1/buckets", {"GET": buckets.list}),
            Route("/v1/buckets/{bucket}/objects", {"GET": buckets.objects}, query=LISTING_QUERY),
            Route("/v1/buckets/{bucket}/samples", {"GET": buckets.samples}, query=frozenset(("shards", "fields"))),
            Route("/v1/buckets/{bucket}/ensure", {"POST": buckets.ensure}, internal=True),
            Route("/v1/buckets/{bucket}", named, query=frozenset(("force",))),
            Route("/v1/jobs", {"GET": jobs.list, "POST": jobs.submit}, query=LIST_QUERY),
            Route("/v1/jobs/{job}", {"GET": jobs.show, "DELETE": jobs.cancel}),
            Route("/v1/jobs/{job}/events", {"GET": jobs.events}),
            Route("/v1/node/jobs/{job}", {"GET": jobs.running}, internal=True),
            Route(
                "/v1/batch", {"POST": BatchRoutes(self.cluster, self._pool, self.settings.token).batch}, BATCH_QUERY, reads=True
            ),
            Route("/v1/cluster", {"GET": admin.cluster_map}),
            Route("/v1/cluster/scrub", {"GET": admin.scrub_status, "POST": admin.start_scrub}),
            Route("/v1/nodes", {"POST": admin.register}, internal=True),
            Route("/v1/health", {"GET": admin.health}),
            Route("/metrics", {"GET": admin.prometheus}),
        ]

    async def start(self) -> str:
        """Listen; the URL under which clients reach this proxy."""
        self.server.bind()
        await self.jobs.open()
        await self.server.serve()
        self.jobs.start()
        self.coordinator.start()
        return self.server.own_urls()[1]

    async def stop(self) -> None:
        """Drain and close; safe to call when `start` failed half-way."""
        await self.coordinator.stop()
        # Jobs first: event streams end with them, or the drain would wait for those.
        await asyncio.gather(self.jobs.stop(), self.server.stop())
        self._pool.close()
        await self._control.close()
        await asyncio.gather(self.jobs.close(), self.cluster.close())


def open_registry(directory: str, filesystem: FileSystem) -> RegistryFile:
    """The file of the registry; the id of this proxy, which it has, is in the file beside it when this returns.

    The file also tells that there has been a registry here. One that is gone then is not made anew, since all disks would be
    left without their cluster. Raises OperatorError.
    """
    own, damage = None, None
    try:
        own = read_node_id(directory)
    except SmallFileDamaged as error:
        damage = error
    registry = RegistryFile(directory, filesystem=filesystem, may_create=own is None and damage is None)
    try:
        if not registry.node_id:  # it is of a time when registries did not know
            if damage is not None:
                raise damage
            registry.keep_node_id(own or new_node_id("proxy"))
        if own != registry.node_id:
            if own is not None or damage is not None:
                _log.warning("%s is put right: this is %s, as the registry says", node_file(directory), registry.node_id)
            write_node_id(directory, registry.node_id, filesystem)
    except BaseException:
        registry.close()
        raise
    return registry


if __name__ == "__main__":
    sys.exit(run_node("proxy", ProxyNode, sys.argv[1:]))
