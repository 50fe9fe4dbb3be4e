"""`/v1/cluster…`, `/v1/health` and `/metrics` at a proxy: the map, comparing and scrubbing, health, metrics."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from prometheus_client import CollectorRegistry

from dfc.api.shared import msgpack_answer, wants
from dfc.errors import BadRequest
from dfc.http.answers import Answer, flag, health_answer, json_answer, metrics_answer
from dfc.http.exchange import Exchange
from dfc.http.faces import ALL_METHODS, Endpoint, Handlers
from dfc.limits import CHECKED_BUCKETS_MAX, EXPECT_DOWN_S_MAX, MOVE_BYTES_PER_S_MAX, WEIGHT_MAX, WEIGHT_MIN

if TYPE_CHECKING:
    from dfc.placement.map import RebalanceEntry
    from dfc.proxy.admin import Administration, ClusterChecks
    from dfc.proxy.rates import ClusterRates, NodeDetails

MAP_QUERY: Final = frozenset({"newest"})
REMOVE_QUERY: Final = frozenset({"accept_loss"})
STATS_QUERY: Final = frozenset({"seconds", "node"})
STATS_SECONDS: Final = 60  # unless it is said
_SECONDS: Final = re.compile("[0-9]{1,9}")


class _Use(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a disk is to be used for, or its weight."""

    state: Literal["active", "draining"] | None = None
    weight: Annotated[float, msgspec.Meta(ge=WEIGHT_MIN, le=WEIGHT_MAX)] | None = None


class _UseOfNode(_Use, frozen=True, forbid_unknown_fields=True):
    """The same for all disks of a target; or for how many seconds it will be down."""

    expect_down_s: Annotated[int, msgspec.Meta(ge=0, le=EXPECT_DOWN_S_MAX)] | None = None


class _Rebalance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How objects are moved; what is not said stays."""

    paused: bool | None = None
    rate_bytes_per_s: Annotated[int, msgspec.Meta(ge=0, le=MOVE_BYTES_PER_S_MAX)] | None = None


class _Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of which buckets copies are compared; none: of all."""

    buckets: Annotated[tuple[str, ...], msgspec.Meta(max_length=CHECKED_BUCKETS_MAX)] = ()


class ClusterHandlers(Handlers):
    """Handlers of `/v1/cluster…`, `/v1/health` and `/metrics`."""

    def __init__(
        self,
        admin: Administration,
        checks: ClusterChecks,
        rates: ClusterRates,
        nodes: NodeDetails,
        metrics: Callable[[], CollectorRegistry],
    ) -> None:
        self._admin = admin
        self._checks = checks
        self._rates = rates
        self._nodes = nodes
        self._metrics = metrics

    async def cluster_map(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        if flag(exchange.query_parameters(MAP_QUERY), "newest"):
            await self._admin.see_newest()
        render = msgpack_answer if wants(exchange) == "msgpack" else json_answer
        return render(self._admin.cluster_map())

    async def status(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """How the cluster is, what is wrong with it, and what is being done."""
        return json_answer(await self._admin.state())

    async def problems(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """What is wrong with the cluster."""
        return json_answer({"problems": (await self._admin.state()).problems})

    async def stats(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """What all nodes have done in the last seconds."""
        query = exchange.query_parameters(STATS_QUERY)
        text = query.get("seconds", str(STATS_SECONDS))
        if not _SECONDS.fullmatch(text):
            raise BadRequest("seconds must be a number")
        return json_answer(await self._rates.series(int(text), query.get("node")))

    async def node(self, _exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """What a node is: its version, settings, memory and disks."""
        return json_answer(await self._nodes.about(parameters[0]))

    async def use_disk(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        asked: _Use = await exchange.json(_Use)
        if (asked.state is None) == (asked.weight is None):
            raise BadRequest("say either `state` or `weight`")
        return await self._use("disk", parameters[0], asked)

    async def use_node(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        asked: _UseOfNode = await exchange.json(_UseOfNode)
        if sum(each is not None for each in (asked.state, asked.weight, asked.expect_down_s)) != 1:
            raise BadRequest("say one of `state`, `weight` and `expect_down_s`")
        if asked.expect_down_s is not None:
            return json_answer({"expected_by": await self._admin.expect_down(parameters[0], asked.expect_down_s)})
        return await self._use("node", parameters[0], asked)

    async def _use(self, kind: Literal["disk", "node"], subject: str, asked: _Use) -> Answer:
        if asked.weight is not None:
            weights = await self._admin.weigh(kind, subject, asked.weight)
            return json_answer({"disks": sorted(weights), "weights": weights}, 202)
        disks = await self._admin.use(kind, subject, "in" if asked.state == "active" else "out")
        return json_answer({"disks": disks, "state": asked.state}, 202)

    async def remove_disk(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        return await self._remove("disk", parameters[0], exchange)

    async def remove_node(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        return await self._remove("node", parameters[0], exchange)

    async def _remove(self, kind: Literal["disk", "node"], subject: str, exchange: Exchange) -> Answer:
        accept_loss = flag(exchange.query_parameters(REMOVE_QUERY), "accept_loss")
        removing = await self._admin.remove(kind, subject, accept_loss=accept_loss)
        return json_answer({"disks": removing}, 202) if removing else Answer(204)

    async def rebalance_status(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        return _shown(self._admin.cluster_map().rebalance)

    async def rebalance(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        asked: _Rebalance = await exchange.json(_Rebalance)
        return _shown(await self._admin.rebalance(asked.paused, asked.rate_bytes_per_s))

    async def start_scrub(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        await self._admin.start_scrub()
        return json_answer({"started": True}, 202)

    async def scrub_status(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        return json_answer({"disks": await self._admin.scrub_status()})

    async def start_check(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        asked: _Check = await exchange.json(_Check)
        return json_answer({"check": await self._checks.begin(asked.buckets)}, 202)

    async def check_status(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        return json_answer(await self._checks.status())

    async def health(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        found = self._admin.health()
        return health_answer(found.ready, role="proxy", id=found.node_id, map_version=found.map_version, targets=found.targets)

    async def without(self, _exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Whether everything can be read without a node."""
        found = await self._admin.without(parameters[0])
        return json_answer({"node": found.node, "ok": True})

    async def prometheus(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        return metrics_answer(self._metrics())

    ENDPOINTS = (
        Endpoint("/v1/cluster", {"GET": cluster_map}, MAP_QUERY),
        Endpoint("/v1/cluster/status", {"GET": status}, by_coordinator=ALL_METHODS),
        Endpoint("/v1/cluster/problems", {"GET": problems}, by_coordinator=ALL_METHODS),
        Endpoint("/v1/cluster/stats", {"GET": stats}, STATS_QUERY),
        Endpoint(
            "/v1/cluster/disks/{disk}", {"PATCH": use_disk, "DELETE": remove_disk}, REMOVE_QUERY, by_coordinator=ALL_METHODS
        ),
        Endpoint(
            "/v1/cluster/nodes/{node}",
            {"GET": node, "PATCH": use_node, "DELETE": remove_node},
            REMOVE_QUERY,
            by_coordinator=frozenset(("PATCH", "DELETE")),
        ),
        Endpoint("/v1/cluster/rebalance", {"GET": rebalance_status, "POST": rebalance}, by_coordinator=ALL_METHODS),
        Endpoint("/v1/cluster/check", {"GET": check_status, "POST": start_check}, by_coordinator=ALL_METHODS),
        Endpoint("/v1/cluster/scrub", {"GET": scrub_status, "POST": start_scrub}),
        Endpoint("/v1/health", {"GET": health}),
        Endpoint("/v1/health/without/{node}", {"GET": without}, by_coordinator=ALL_METHODS),
        Endpoint("/metrics", {"GET": prometheus}),
    )


def _shown(entry: RebalanceEntry) -> Answer:
    return json_answer({"paused": entry.paused, "rate_bytes_per_s": entry.rate_bytes_per_s})
