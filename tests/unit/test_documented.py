"""What can be asked, set, measured or typed is documented; a page that falls behind fails here."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from prometheus_client.parser import text_string_to_metric_families

from dfc import errors
from dfc.cli.main import app
from dfc.config import SETTINGS, Settings, sample_toml
from dfc.http.answers import LISTING_QUERY, OBJECT_QUERY
from dfc.http.faces import Route
from dfc.names import RESERVED_SEGMENTS
from dfc.servers.proxy import ProxyNode
from dfc.servers.target import TargetNode

DOCS = Path(__file__).parents[2] / "docs"
PACKAGE = DOCS.parent / "dfc"


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def rows(text: str) -> dict[str, list[str]]:
    """The rows of all tables by what stands in backquotes in their first cell."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for name in re.findall(r"`([^`]+)`", cells[0]) if cells else []:
            found[name] = cells
    return found


# --- routes


@pytest.fixture
async def routes(tmp_path) -> list[Route]:
    """The routes of both kinds of node, the web namespace's included."""
    proxy = ProxyNode(Settings(dir=str(tmp_path / "proxy"), port=0))
    target = TargetNode(Settings(dir=str(tmp_path / "target"), disks=(str(tmp_path / "disk"),), port=0))
    faces = [face for node in (proxy, target) for face in node.server.faces]
    found = [route for face in faces for route in (*face.routes, face.rest) if route is not None]
    await proxy.stop()
    await target.stop()
    return found


async def test_every_route_and_method(routes):
    assert len(routes) > 20
    documented = set(re.findall(r"`((?:GET|HEAD|PUT|POST|PATCH|DELETE)(?:, [A-Z]+)*) (/[^`? ]*)", page("http")))
    known = {(method, path) for methods, path in documented for method in methods.split(", ")}
    web = {("GET", "/{bucket}/{object…}"), ("PUT", "/{bucket}/{object…}"), ("DELETE", "/{bucket}/{object…}")}
    for route in routes:
        for method in route.handlers:
            wanted = web if route.pattern == "/" else {(method, route.pattern)}
            assert wanted <= known, f"{method} {route.pattern} is not in docs/http.md"


async def test_no_bucket_has_the_name_of_a_face(routes):
    """It could be made by other paths, and none of its objects be read by this one."""
    assert {route.pattern.split("/")[1] for route in routes if route.pattern != "/"} <= RESERVED_SEGMENTS


async def test_no_route_that_is_not_there(routes):
    patterns = {route.pattern for route in routes}
    for path in re.findall(r"`(?:[A-Z]+, )*(?:GET|PUT|POST|PATCH|DELETE|HEAD) (/(?:v1|metrics)[^`? ]*)", page("http")):
        assert path in patterns, f"docs/http.md has {path}"


async def test_every_query_parameter(routes):
    text = page("http")
    for route in routes:
        for name in route.query or ():
            assert re.search(rf"[`?&]{name}[`=&]", text), f"{name} of {route.pattern}"
    for name in OBJECT_QUERY | LISTING_QUERY:
        assert f"`{name}" in text or f"?{name}=" in text or f"&{name}=" in text


def test_every_reserved_segment():
    text = page("http")
    assert all(f"`{segment}`" in text for segment in RESERVED_SEGMENTS)


def classes(base: type[errors.DfcError] = errors.DfcError) -> Iterator[type[errors.DfcError]]:
    yield base
    for child in base.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from classes(child)


def test_every_error_code_with_its_status():
    documented = rows(page("http"))
    for error in classes():
        if issubclass(error, errors.OperatorError):
            continue  # of starts and commands, never of an answer
        assert error.code in documented, f"{error.code} is not in docs/http.md"
        assert str(error.status) in documented[error.code][1], error.code


def test_the_tree_of_errors_is_drawn_with_their_status():
    assert errors.__doc__ is not None
    for error in classes():
        name = error.__name__
        assert name in errors.__doc__ or error.status in (404, 409), f"{name} is not in the tree"


# --- settings


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_with_its_default_and_meaning(name):
    setting, cells = SETTINGS[name], rows(page("configuration")).get(name)
    assert cells is not None, f"{name} is not in docs/configuration.md"
    assert f"`{json.dumps(setting.default)}`" == cells[1], f"the default of {name} is {json.dumps(setting.default)}"
    assert cells[2] == ("both" if len(setting.roles) == 2 else setting.roles[0])
    assert cells[3] == setting.about


def test_no_setting_that_is_not_there():
    for name, cells in rows(page("configuration")).items():
        if len(cells) == 4:
            assert name in SETTINGS, f"docs/configuration.md has {name}"


def test_the_sample_names_every_setting():
    assert all(f"#{name} = " in sample_toml() for name in SETTINGS)


# --- metrics


@pytest.fixture(scope="module")
def metrics(cluster) -> dict[str, tuple[str, str]]:
    """Name → (type, help) of the own metrics of a proxy and a target that have served something."""
    found = {}
    for url in (cluster.url, cluster.target_urls()[0]):
        for path in ("/v1/health", "/metrics"):
            with urllib.request.urlopen(url + path, timeout=20) as answer:
                text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            if family.name.startswith("dfc_"):
                name = f"{family.name}_total" if family.type == "counter" else family.name
                found[name] = (family.type, family.documentation)
    return found


def test_every_metric_with_its_type(metrics):
    documented = rows(page("metrics"))
    assert len(metrics) > 20
    for name, (kind, _) in metrics.items():
        assert name in documented, f"{name} is not in docs/metrics.md"
        assert documented[name][1].startswith(kind), f"{name} is a {kind}"


def test_help_of_metrics_is_for_operators(metrics):
    """It names no class of the program."""
    classes = {name for path in PACKAGE.rglob("*.py") for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)}
    names = {name for name in classes if re.search("[a-z][A-Z]", name)}
    assert len(names) > 200
    for name, (_, text) in metrics.items():
        assert names.isdisjoint(re.findall(r"\w+", text)), f"{name}: {text}"


def test_no_metric_that_is_not_there(metrics):
    assert {name for name in rows(page("metrics")) if name.startswith("dfc_")} == metrics.keys()


# --- alerts


def test_alert_rules_name_metrics_and_paragraphs_that_are_there(metrics):
    """The rules are YAML; what matters here can be read line by line."""
    text = (DOCS.parent / "deploy" / "prometheus" / "dfc.rules.yml").read_text(encoding="utf-8")
    expressions = re.findall(r"^ +expr: (.*)$", text, re.MULTILINE)
    used = {name for expression in expressions for name in re.findall(r"\bdfc_\w+", expression)}
    assert used <= metrics.keys()
    assert {
        "dfc_objects_one_replica_left",
        "dfc_objects_unavailable",
        "dfc_disks_out_of_sync",
        "dfc_coordinator",
        "dfc_clock_ahead_seconds",
    } <= used
    paragraphs = set(re.findall(r"^### (\S+)$", page("operations"), re.MULTILINE))
    helps = re.findall(r"^ +help: docs/operations.md#(\S+)$", text, re.MULTILINE)
    assert set(helps) <= paragraphs
    assert len(expressions) == len(helps) == text.count("- alert: ") == text.count("severity: ") > 8


# --- commands


def commands(group: object, path: str = "dfc") -> Iterator[str]:
    children = getattr(group, "commands", None)
    if not children:
        yield path
        return
    for name, command in children.items():
        yield from commands(command, f"{path} {name}")


def test_every_command():
    text = page("cli")
    found = list(commands(typer.main.get_command(app)))
    assert len(found) > 5
    for command in found:
        assert command in text, f"{command} is not in docs/cli.md"
