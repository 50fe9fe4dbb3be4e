"""A proxy, assembled: registry, relay, control client, routes; and its watch over silent targets."""

from __future__ import annotations

import asyncio
import logging
import secrets
from pathlib import Path
from typing import Final

from dfc import metrics
from dfc.config import Settings
from dfc.engine.base import Engine
from dfc.http.answers import Answer
from dfc.http.batch import BATCH_QUERY
from dfc.http.common import LISTING_QUERY, OBJECT_QUERY
from dfc.http.exchange import Exchange
from dfc.http.peer import ControlClient, PeerPool
from dfc.http.relay import Relay
from dfc.http.router import Handler, Route
from dfc.http.server import NodeServer
from dfc.membership.embedded import EmbeddedRegistry
from dfc.proxy.admin import AdminRoutes
from dfc.proxy.batch import BatchRoutes
from dfc.proxy.buckets import BucketRoutes
from dfc.proxy.cluster import Cluster
from dfc.proxy.deletions import Deletions
from dfc.proxy.jobs import LIST_QUERY, JobRoutes
from dfc.proxy.jobservice import JobService
from dfc.proxy.web import WebRoutes

_log: Final = logging.getLogger("dfc.proxy")
DEFAULT_DIRECTORY: Final = "dfc-data"
WATCH_S: Final = 0.5
OBJECT_METHODS: Final = ("GET", "PUT", "DELETE")


class ProxyNode:
    """Start with `start`, end with `stop`."""

    def __init__(self, settings: Settings) -> None:
        directory = settings.dir or DEFAULT_DIRECTORY
        self.settings = settings
        self.id = _node_id(directory)
        self.registry = EmbeddedRegistry(directory)
        self._pool = PeerPool(settings.peer_timeout_s)
        self._control = ControlClient(settings.token, settings.peer_timeout_s)
        self.cluster = Cluster(self.registry, self._control, settings.auto_create, settings.expected_targets)
        self._deletions = Deletions(self.cluster)
        self.jobs = JobService(self.cluster, settings, directory, self._make_engine)
        self._admin = AdminRoutes(self.cluster, self.id)
        web = WebRoutes(self.cluster, Relay(self._pool, settings.peer_timeout_s))
        self.server = NodeServer(settings, self._routes(web), Route("/", self._when_ready(web.web), query=None))
        self._admin.metrics = metrics.make_registry(self.server.stats, self._admin.families, self.jobs.families)
        self._watch: asyncio.Task[None] | None = None

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

    def _routes(self, web: WebRoutes) -> list[Route]:
        buckets, admin, jobs = BucketRoutes(self.cluster, self._deletions), self._admin, JobRoutes(self.jobs)
        named = {"GET": buckets.get, "PUT": buckets.put, "PATCH": buckets.patch, "DELETE": buckets.delete}
        return [
            Route("/v1/objects/{bucket}/{object…}", self._when_ready(web.object), query=OBJECT_QUERY),
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
        self._deletions.start()
        self._watch = asyncio.create_task(self._watch_nodes())
        return self.server.own_urls()[1]

    async def _watch_nodes(self) -> None:
        """Mark targets down whose heartbeats are missing."""
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                for node_id in await self.cluster.change(self.registry.mark_silent_nodes, self.settings.down_after_s):
                    _log.warning("target %s sends no heartbeat: marked down, its objects answer 503", node_id)
            except Exception:
                _log.exception("the watch over the targets failed; it goes on")

    async def stop(self) -> None:
        """Drain and close; safe to call when `start` failed half-way."""
        if self._watch is not None:
            self._watch.cancel()
        await self._deletions.stop()
        # Jobs first: event streams end with them, or the drain would wait for those.
        await asyncio.gather(self.jobs.stop(), self.server.stop())
        self._pool.close()
        await self._control.close()
        await asyncio.gather(self.jobs.close(), self.cluster.close())


def _node_id(directory: str) -> str:
    """The identity of this proxy, kept in its directory."""
    path = Path(directory) / "dfc-node-id"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(f"proxy-{secrets.token_hex(4)}\n")
    return path.read_text().strip()
