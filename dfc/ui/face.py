"""The face `/ui` at a proxy."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import GaugeMetricFamily, Metric

from dfc.api.owners import ProxyPeers
from dfc.http.answers import Answer
from dfc.http.exchange import Exchange
from dfc.http.faces import Endpoint, Face, Handlers, TokenAccess
from dfc.proxy.admin import ProxyServices
from dfc.ui.pages.buckets import BucketPages, SearchPage
from dfc.ui.pages.dataset import DatasetPages
from dfc.ui.pages.jobs import JobPages, NewJobPages
from dfc.ui.pages.overview import NodePages, OverviewPage
from dfc.ui.pages.samples import MemberPages, SamplePages
from dfc.ui.rendering import LoginPage, PageAccess, PageFiles, Rendering
from dfc.ui.target import SEGMENTS


class _Files(Handlers):
    def __init__(self, files: PageFiles) -> None:
        self._files = files

    async def file(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        return self._files.answer(exchange, *parameters)

    async def icon(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Browsers ask for it whatever the page says."""
        return self._files.icon(exchange)

    ENDPOINTS = (
        Endpoint("/ui/static/{version}/{name}", {"GET": file}),
        Endpoint("/favicon.ico", {"GET": icon}),
    )


class Pages:
    """The pages of a proxy."""

    def __init__(
        self, uses: ProxyServices, peers: ProxyPeers, access: TokenAccess, elsewhere: Callable[[], str | None]
    ) -> None:
        """`elsewhere`: the URL of the coordinator, if that is another proxy."""
        files, may = PageFiles(), PageAccess(access)
        rendering = Rendering(may, files)
        overview = OverviewPage(uses, rendering, elsewhere)
        self._feed, self._rendering = overview.feed, rendering
        handlers = (
            overview,
            LoginPage(access, rendering),
            BucketPages(uses, rendering),
            SamplePages(uses, rendering),
            MemberPages(uses, rendering),
            DatasetPages(uses, rendering),
            SearchPage(uses, rendering),
            JobPages(uses, rendering, overview.feed),
            NewJobPages(uses, rendering),
            NodePages(uses, rendering),
            _Files(files),
        )
        self.face = Face("ui", peers.routes(*handlers), may.check, rendering.error, segments=SEGMENTS, checks_host=True)

    def end(self) -> None:
        """End what streams to browsers: the node stops."""
        self._feed.end()

    async def close(self) -> None:
        """Close everything, after the last request."""
        await self._feed.stop()
        self._rendering.close()

    def families(self) -> Iterable[Metric]:
        """Return the metrics of the pages."""
        yield GaugeMetricFamily("dfc_ui_streams", "Browsers that follow the figures of the pages", self._feed.streams)
