"""What is between nodes is below one path, and nothing else is."""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import dfc.api
import dfc.ui
from dfc.api.shared import FigureHandlers
from dfc.http.faces import NODE_PATHS, Handlers, Route


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
                is_of_node = each.__module__.startswith("dfc.api.node.") or each is FigureHandlers
                assert endpoint.pattern.startswith(NODE_PATHS) == is_of_node, endpoint.pattern
                assert endpoint.route(each).internal == is_of_node
                counts[is_of_node] += 1
    assert counts[True] > 40
    assert counts[False] > 20


def test_what_is_beside_that_path_is_not_internal() -> None:
    for pattern in ("/v1/nodes", "/v1/node", "/v1/nodex/map", "/v1/buckets/{bucket}", "/"):
        assert not Route(pattern, {}).internal
    assert Route("/v1/node/{rest…}", {}).internal


COSTLY = re.compile(r"(self\._?)?(listings\.(page|pages|datasets)|search\.find|keys\.open|feed\.stream)$|_events$")
WITHIN = {  # a place that their callers have taken
    ("dataset.py", "_around"), ("dataset.py", "_listed"),
    ("traces.py", "_listed"),  # of the page of a dataset; LINEAGE_READS bounds it besides
    ("buckets.py", "_one"),  # a second look, for one name
}  # fmt: skip


def test_what_lists_searches_or_streams_events_has_a_budget() -> None:
    found = set()
    files = [file for package in (dfc.api, dfc.ui) for file in Path(package.__path__[0]).rglob("*.py")]
    for file in files:
        if file.parent.name == "node":
            continue  # calls of nodes, which answer for themselves
        for function in ast.walk(ast.parse(file.read_text())):
            if isinstance(function, ast.AsyncFunctionDef):
                called = [ast.unparse(each.func) for each in ast.walk(function) if isinstance(each, ast.Call)]
                costly = [each for each in called if COSTLY.match(each)]
                if costly:
                    place = (file.name, function.name)
                    found.add(place)
                    assert "exchange.enter" in called or place in WITHIN, f"{place} calls {costly} without a place in a budget"
    assert len(found) > 8
    assert found >= WITHIN | {("overview.py", "live"), ("jobs.py", "events")}
