"""`/ui/nodes/…`: what a node is and does; and `/ui/rates`, the plots of the first page."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from dfc.errors import Unavailable
from dfc.http.answers import Answer
from dfc.http.budget import PAGES
from dfc.http.exchange import Exchange
from dfc.http.rates.about import AboutSetting
from dfc.http.router import ALL_METHODS, Endpoint, Handlers
from dfc.limits import STATS_KEPT_S
from dfc.placement.map import NodeEntry
from dfc.proxy.uses import ProxyUses
from dfc.ui import words
from dfc.ui.rates import rates_shown
from dfc.ui.rendering import Rendering

DEFAULT: Final = "default"


class NodePages(Handlers):
    """Handlers of these pages."""

    def __init__(self, uses: ProxyUses, rendering: Rendering) -> None:
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


def text_of(setting: AboutSetting) -> str:
    """The value of a setting as it stands in a file of settings, but for quotes around a text."""
    value: Any = setting.value
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def disks_of(entry: NodeEntry | None) -> dict[str, Any]:
    """What the map says of the disks of a node, by their ids."""
    return {disk.id: disk for disk in entry.disks} if entry is not None else {}
