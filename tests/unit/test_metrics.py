"""Request metrics: what is recorded comes out in the exposition format, as Prometheus reads it."""

from __future__ import annotations

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from dfc.metrics import LATENCY_BUCKETS_S, RequestStats, make_registry, render


def samples(stats, *sources):
    text = render(make_registry(stats, *sources)).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labels(**named):
    return frozenset(named.items())


def test_counts_bytes_and_latencies_by_route():
    stats = RequestStats()
    for seconds in (0.0001, 0.00011, 0.3, 1000.0):
        stats.record("GET", "/", 200, seconds, 1, 10)
    stats.record("PUT", "/", 201, 0.5, 100, 1)
    stats.record("GET", "/v1/health", 200, 0.001, 0, 5)
    found = samples(stats)
    assert found["dfc_http_requests_total", labels(method="GET", route="/", status="200")] == 4
    assert found["dfc_http_requests_total", labels(method="PUT", route="/", status="201")] == 1
    assert found["dfc_http_received_bytes_total", labels(route="/")] == 104
    assert found["dfc_http_sent_bytes_total", labels(route="/")] == 41
    assert found["dfc_http_request_seconds_count", labels(route="/")] == 5
    assert abs(found["dfc_http_request_seconds_sum", labels(route="/")] - 1000.80021) < 1e-9

    def up_to(bound):
        return found["dfc_http_request_seconds_bucket", labels(route="/", le=str(bound))]

    assert [up_to(bound) for bound in (0.0001, 0.00025, 0.25, 0.5, 300, "+Inf")] == [1, 2, 2, 4, 4, 5]
    assert found["dfc_http_request_seconds_count", labels(route="/v1/health")] == 1


def test_connections_and_what_nodes_add():
    stats = RequestStats()
    stats.connections, stats.connections_refused = 3, 2
    found = samples(stats, lambda: [GaugeMetricFamily("dfc_x", "x", 7)], lambda: [GaugeMetricFamily("dfc_y", "y", 8)])
    assert found["dfc_http_connections", frozenset()] == 3
    assert found["dfc_http_connections_refused_total", frozenset()] == 2
    assert (found["dfc_x", frozenset()], found["dfc_y", frozenset()]) == (7, 8)
    assert found["process_open_fds", frozenset()] > 0


def test_a_scrape_sees_the_latest():
    stats = RequestStats()
    registry = make_registry(stats)
    render(registry)
    stats.record("GET", "/", 200, 0.1, 0, 0)
    assert b'dfc_http_requests_total{method="GET",route="/",status="200"} 1.0' in render(registry)


def test_latency_bounds_grow():
    assert list(LATENCY_BUCKETS_S) == sorted(set(LATENCY_BUCKETS_S))
