"""What is between nodes is below one path, and nothing else is."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module

import dfc.api
from dfc.http.router import NODE_PATHS, Handlers, Route


def all_handlers() -> Iterator[type[Handlers]]:
    """Every class that declares routes."""
    for module in pkgutil.walk_packages(dfc.api.__path__, "dfc.api."):
        import_module(module.name)
    classes = list(Handlers.__subclasses__())
    for each in classes:
        classes += each.__subclasses__()
        yield each


def test_calls_between_nodes_are_below_one_path() -> None:
    counts = {True: 0, False: 0}
    for each in all_handlers():
        if each.__module__.startswith("dfc.api."):
            for endpoint in each.ENDPOINTS:
                is_of_node = each.__module__.startswith("dfc.api.node.")
                assert endpoint.pattern.startswith(NODE_PATHS) == is_of_node, endpoint.pattern
                assert endpoint.route(each).internal == is_of_node
                counts[is_of_node] += 1
    assert counts[True] > 40
    assert counts[False] > 20


def test_what_is_beside_that_path_is_not_internal() -> None:
    for pattern in ("/v1/nodes", "/v1/node", "/v1/nodex/map", "/v1/buckets/{bucket}", "/"):
        assert not Route(pattern, {}).internal
    assert Route("/v1/node/{rest…}", {}).internal
