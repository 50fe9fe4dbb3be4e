"""`/ui`, `/ui/nodes/…` and `/ui/rates`: the cluster and its nodes.

`/ui`: how the cluster is, what is wrong and what to do about it, its targets and disks, and the jobs that run."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dfc.errors import DfcError, Unavailable
from dfc.http.answers import Answer, StreamAnswer, flag
from dfc.http.budget import PAGES, STREAMS
from dfc.http.exchange import Exchange
from dfc.http.faces import ALL_METHODS, Endpoint, Handlers
from dfc.http.node import SettingInfo
from dfc.limits import STATS_KEPT_S, format_size
from dfc.placement.map import ClusterMap, NodeEntry, usage_of
from dfc.proxy.admin import ProxyServices
from dfc.ui import words
from dfc.ui.pages.jobs import FOLLOWED_MAX, GOING_ON, progress_of
from dfc.ui.plots import Figures, LiveFeed, rates_shown, recent_words
from dfc.ui.rendering import Rendering
from dfc.wire import JSON
from dfc.wire.jobs import Job
from dfc.wire.status import ClusterStatus, NodeFigures

COUNT_EVERY_S: Final = 5.0  # every target is asked
COUNT_S_MAX: Final = 2.0
RECENT_S: Final = 10  # of the figures beside each node
EVENTS: Final = (("Content-Type", "text/event-stream"), ("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))
HEALTH: Final = {
    "ok": "All is well",
    "degraded": "Something is wrong, but everything works",
    "read_only": "Nothing can be written at the moment",
    "unavailable": "The cluster cannot be used at the moment",
}


class Contents(NamedTuple):
    """How much is in all buckets together; not `exact` while some targets cannot be asked."""

    buckets: int
    objects: int
    size: int
    exact: bool


class Snapshot(NamedTuple):
    """What the page shows."""

    state: ClusterStatus
    map: ClusterMap
    jobs: Sequence[Job]
    contents: Contents | None
    doing: Mapping[str, NodeFigures]


class OverviewPage(Handlers):
    """Handlers of the first page, and of the figures that all pages show live."""

    def __init__(self, uses: ProxyServices, rendering: Rendering, elsewhere: Callable[[], str | None]) -> None:
        self._admin, self._buckets, self._jobs, self._rates = uses.admin, uses.buckets, uses.jobs, uses.rates
        self._rendering = rendering
        self._contents: Contents | None = None
        self._counted_s = -COUNT_EVERY_S
        self.feed = LiveFeed(self._figures, elsewhere)

    async def page(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Show the cluster."""
        snapshot = await self._snapshot()
        figures = await asyncio.to_thread(figures_of, snapshot)
        series = await self._rates.series(STATS_KEPT_S)
        return await self._rendering.page(
            exchange,
            "overview.html",
            state=snapshot.state,
            targets=snapshot.map.targets(),
            jobs=snapshot.jobs,
            contents=snapshot.contents,
            health=HEALTH[snapshot.state.health],
            values=figures.values,
            rates=await asyncio.to_thread(rates_shown, series),
            shape=figures.shape,
        )

    async def live(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Send the figures every second, as server-sent events; with `once=1`, those of now as JSON."""
        if flag(exchange.query_parameters(frozenset(("once",))), "once"):
            return Answer(200, await self.feed.now(), [("Content-Type", JSON), ("Cache-Control", "no-store")])
        await exchange.enter(STREAMS)
        return StreamAnswer(200, self.feed.stream(), EVENTS)

    ENDPOINTS = (
        Endpoint("/ui", {"GET": page}, by_coordinator=ALL_METHODS, budget=PAGES),
        Endpoint("/ui/live", {"GET": live}, frozenset(("once",)), by_coordinator=ALL_METHODS),
    )

    async def _figures(self) -> Figures:
        # In a thread: there may be thousands of disks.
        return await asyncio.to_thread(figures_of, await self._snapshot())

    async def _snapshot(self) -> Snapshot:
        state, contents = await self._admin.state(), await self._counted()
        try:
            jobs = (await self._jobs.page(GOING_ON, None, FOLLOWED_MAX)).jobs
        except Unavailable:  # they are being taken over
            jobs = ()
        doing = {node.id: node for node in (await self._rates.series(RECENT_S)).nodes}
        return Snapshot(state, self._admin.cluster_map(), jobs, contents, doing)

    async def _counted(self) -> Contents | None:
        """How much there is; what was counted last if not everybody can be asked now, and None if nothing ever was."""
        if time.monotonic() - self._counted_s >= COUNT_EVERY_S:
            self._counted_s = time.monotonic()
            try:
                async with asyncio.timeout(COUNT_S_MAX):
                    found = await self._buckets.all()
                self._contents = Contents(
                    len(found), sum(b.objects for b in found), sum(b.size for b in found), all(b.exact for b in found)
                )
            except (DfcError, TimeoutError):
                if self._contents is not None:
                    self._contents = self._contents._replace(exact=False)
        return self._contents


def figures_of(snapshot: Snapshot) -> Figures:
    """Return the figures of the page, as texts."""
    return Figures(shape_of(snapshot), values_of(snapshot))


def values_of(snapshot: Snapshot) -> dict[str, str]:
    """The figures by the names of their places on the page."""
    state, targets, contents = snapshot.state, snapshot.map.targets(), snapshot.contents
    used, capacity = usage_of(targets)
    values = {
        "targets": f"{sum(node.state == 'up' for node in targets)} of {len(targets)}",
        "used": format_size(used),
        "free": format_size(max(0, capacity - used)),
        "fill": words.percent(used, capacity),
        "step": words.count(state.step),
    }
    if contents is not None:
        about = "" if contents.exact else "about "
        values |= {
            "buckets": words.count(contents.buckets),
            "objects": about + words.count(contents.objects),
            "stored": about + format_size(contents.size),
        }
    for node in targets:
        for disk in node.disks:
            values |= {
                f"disk.{disk.id}.used": format_size(disk.used),
                f"disk.{disk.id}.fill": words.percent(disk.used, disk.capacity),
                f"disk.{disk.id}.objects": words.count(disk.objects),
            }
    for node_id in (*(node.id for node in targets), *(proxy.id for proxy in state.proxies)):
        values[f"node.{node_id}.does"] = recent_words(snapshot.doing.get(node_id))
    for job in snapshot.jobs:
        values |= progress_of(job)
    for problem in state.problems:
        values[f"problem.{problem.code}.{problem.subject}"] = words.visible(problem.message)
    return values


def shape_of(snapshot: Snapshot) -> str:
    """What is shown besides figures: if that changes, the page is rendered anew."""
    state = snapshot.state
    shown = (
        state.health,
        state.coordinator,
        [(problem.code, problem.subject, problem.since) for problem in state.problems],
        [
            (node.id, node.state, [(disk.id, disk.state, disk.use, disk.evicted) for disk in node.disks])
            for node in snapshot.map.targets()
        ],
        [(job.id, job.state) for job in snapshot.jobs],
        snapshot.contents is None,
        [proxy.id for proxy in state.proxies],
    )
    return hashlib.sha256(repr(shown).encode("utf-8", "surrogatepass")).hexdigest()[:16]


# --- `/ui/nodes/…`: what a node is and does; and `/ui/rates`, the plots of the first page.

DEFAULT: Final = "default"


class NodePages(Handlers):
    """Handlers of these pages."""

    def __init__(self, uses: ProxyServices, rendering: Rendering) -> None:
        self._admin, self._nodes, self._rates = uses.admin, uses.nodes, uses.rates
        self._rendering = rendering

    async def rates(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Show what all nodes have done in the last minutes: a part of a page, for scripts."""
        series = await self._rates.series(STATS_KEPT_S)
        return await self._rendering.page(exchange, "rates.html", rates=await asyncio.to_thread(rates_shown, series))

    async def node(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Show a node. Of one that does not answer, what is known of it."""
        (node_id,) = parameters
        series = await self._rates.series(STATS_KEPT_S, node_id)
        wrong, about = "", None
        try:
            about = await self._nodes.about(node_id)
        except Unavailable as error:
            wrong = error.message
        entry = next((each for each in self._admin.cluster_map().nodes if each.id == node_id), None)
        (stats,) = series.nodes
        silent_for = words.seconds(stats.silent_s) if stats.silent_s is not None else ""
        settings = about.settings if about is not None else []
        return await self._rendering.page(
            exchange,
            "node.html",
            node_id=node_id,
            kind=stats.kind,
            about=about,
            entry=entry,
            disks=disks_of(entry),
            up_for=words.seconds(about.uptime_s) if about is not None else "",
            wrong=f"{wrong}; it has been silent for {silent_for}" if wrong and silent_for else wrong,
            rates=rates_shown(series),
            given=[(each, text_of(each)) for each in settings if each.origin != DEFAULT],
            defaults=[(each, text_of(each)) for each in settings if each.origin == DEFAULT],
        )

    ENDPOINTS = (
        Endpoint("/ui/rates", {"GET": rates}, by_coordinator=ALL_METHODS, budget=PAGES),
        Endpoint("/ui/nodes/{node}", {"GET": node}, by_coordinator=ALL_METHODS, budget=PAGES),
    )


def text_of(setting: SettingInfo) -> str:
    """The value of a setting as it stands in a file of settings, but for quotes around a text."""
    return words.text_or_json(setting.value)


def disks_of(entry: NodeEntry | None) -> dict[str, Any]:
    """What the map says of the disks of a node, by their ids."""
    return {disk.id: disk for disk in entry.disks} if entry is not None else {}
