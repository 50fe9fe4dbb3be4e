"""Prometheus metrics of a node. Request counters are plain dictionaries; metric families are made at each scrape.

Names, labels and meanings: docs/metrics.md (a test keeps it complete).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

# From a cached small read (0.1 ms) to a shard of 10 GB read by a slow client.
LATENCY_BUCKETS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300,
)  # fmt: skip
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class RequestStats:
    """Counts, bytes and latencies of requests by route; the event loop is its only writer."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, int], int] = {}
        self.routes: dict[str, RouteStats] = {}
        self.connections = 0
        self.connections_refused = 0
        self.cut: dict[str, int] = {}  # answers that this server cut off, by route
        self.metered_in = self.metered_out = 0  # of the bytes below: those that were counted while they moved, too

    def record(self, method: str, route: str, status: int, seconds: float, received: int, sent: int) -> None:
        key = (method, route, status)
        self.requests[key] = self.requests.get(key, 0) + 1
        stats = self.routes.get(route)
        if stats is None:
            stats = self.routes[route] = RouteStats()
        stats.received_bytes += received
        stats.sent_bytes += sent
        stats.seconds += seconds
        stats.counts[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1

    def received_bytes(self) -> int:
        return sum(route.received_bytes for route in self.routes.values())

    def sent_bytes(self) -> int:
        return sum(route.sent_bytes for route in self.routes.values())

    def errors(self) -> int:
        """How many requests were answered with 5xx."""
        return sum(count for (_, _, status), count in self.requests.items() if status >= 500)


class RouteStats:
    """The counters of one route."""

    __slots__ = ("counts", "received_bytes", "seconds", "sent_bytes")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BUCKETS_S) + 1)
        self.seconds = 0.0
        self.received_bytes = 0
        self.sent_bytes = 0


class _RequestCollector(Collector):
    def __init__(self, stats: RequestStats) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily("dfc_http_requests", "Requests answered", labels=("method", "route", "status"))
        for (method, route, status), count in sorted(self._stats.requests.items()):
            requests.add_metric((method, route, str(status)), count)
        yield requests
        latency = HistogramMetricFamily(
            "dfc_http_request_seconds", "Time from the request head to the last byte of the answer", labels=("route",)
        )
        received = CounterMetricFamily("dfc_http_received_bytes", "Body bytes received", labels=("route",))
        sent = CounterMetricFamily("dfc_http_sent_bytes", "Body bytes sent", labels=("route",))
        for route, stats in sorted(self._stats.routes.items()):
            total, buckets = 0, []
            for bound, count in zip((*map(str, LATENCY_BUCKETS_S), "+Inf"), stats.counts, strict=True):
                total += count
                buckets.append((bound, float(total)))
            latency.add_metric((route,), buckets, stats.seconds)
            received.add_metric((route,), stats.received_bytes)
            sent.add_metric((route,), stats.sent_bytes)
        yield from (latency, received, sent)
        cut = CounterMetricFamily(
            "dfc_answers_cut", "Answers that this node broke off after sending their status", labels=("route",)
        )
        for route in sorted(self._stats.routes.keys() | self._stats.cut.keys()):
            cut.add_metric((route,), self._stats.cut.get(route, 0))
        yield cut
        yield GaugeMetricFamily("dfc_http_connections", "Open connections", self._stats.connections)
        yield CounterMetricFamily(
            "dfc_http_connections_refused", "Connections beyond connections_max", self._stats.connections_refused
        )


class _FunctionCollector(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()


def make_registry(stats: RequestStats, *sources: Callable[[], Iterable[Metric]]) -> CollectorRegistry:
    """Make a registry of a node's metrics and those of its process; `sources` are called for families at each scrape."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    registry.register(_RequestCollector(stats))
    for source in sources:
        registry.register(_FunctionCollector(source))
    return registry


def render(registry: CollectorRegistry) -> bytes:
    """Render the metrics in the text exposition format, 0.0.4."""
    return generate_latest(registry)
