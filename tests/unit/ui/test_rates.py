"""Plots say the same in lines, in words and in figures; what is not known is a gap."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dfc.config import Settings
from dfc.http.faces import TokenAccess
from dfc.http.node import DiskInfo, SettingInfo, node_info
from dfc.placement.map import DiskEntry, NodeEntry
from dfc.ui.pages.overview import disks_of, text_of
from dfc.ui.plots import Plot, added, by_node, parts, plot, rates_shown, recent_words
from dfc.ui.rendering import PageAccess, PageFiles, Rendering
from dfc.wire.status import ClusterStats, NodeFigures

NASTY = '<script>alert(1)</script>\u202e"'


def stats(nodes: list[NodeFigures]) -> ClusterStats:
    return ClusterStats(seconds=900, step_s=3, until="2026-01-02T03:04:05.000Z", nodes=tuple(nodes))


def node(name: str, values: list[float | None], *, silent: bool = False, why: str = "") -> NodeFigures:
    nothing: list[float | None] = [None] * len(values)
    return NodeFigures(
        id=name, kind="target", silent=silent, silent_s=None, why=why, bytes_in=values, bytes_out=nothing,
        requests=nothing, errors=nothing, connections=nothing, disks={},
    )  # fmt: skip


def drawn(*nodes: NodeFigures) -> Plot:
    return plot(stats(list(nodes)), "bytes_in", "In")


def test_a_line_goes_from_the_oldest_point_to_the_newest_and_up_to_the_peak() -> None:
    found = drawn(node("a", [0, 500, 1000]), node("b", [0, 0, 250]))
    assert [(line.name, line.number, line.parts) for line in found.lines] == [
        ("a", 0, ["0,200 2,100 4,0"]),
        ("b", 1, ["0,200 2,200 4,150"]),
    ]
    assert (found.width, found.top) == (4, "1 kB/s")
    assert (found.lines[0].now, found.lines[0].mean, found.lines[0].peak) == ("1 kB/s", "500 B/s", "1 kB/s")
    assert found.label == "In, bytes a second: a 500 B/s on average, 1 kB/s at most, b 83 B/s on average, 250 B/s at most"


def test_what_is_not_known_is_a_gap_and_not_nothing() -> None:
    assert parts([1, None, 1, 2, None], 2) == ["0,100 0,100", "4,100 6,0"]
    assert parts([None, None], 5) == []
    assert parts([0, 0], 0) == ["0,200 2,200"]
    (line,) = drawn(node("a", [None, None])).lines
    assert (line.now, line.mean, line.peak) == ("–", "–", "–")
    assert drawn().label.endswith("nothing is known")


def test_of_many_nodes_those_that_do_most_are_drawn_singly() -> None:
    nodes = [node(f"n{number:02}", [float(number), None]) for number in range(20)]
    found = by_node(nodes, "bytes_in")
    assert [name for name, _ in found] == [f"n{number}" for number in range(12, 20)] + ["12 others"]
    assert found[-1][1] == [sum(range(12)), None]
    assert added([[1, None, None], [2, 3, None]]) == [3, 3, None]
    assert len(drawn(*nodes).lines) == 9


def test_what_a_node_does_in_a_line() -> None:
    busy = msgspec.structs.replace(node("n", [1000, 2000, None]), requests=[12.4, None], bytes_out=[0])
    assert recent_words(busy) == "in 1.5 kB/s, out 0 B/s, 12 requests/s"
    assert recent_words(node("n", [None])) == "in –, out –, – requests/s"
    assert recent_words(node("n", [5], silent=True)) == recent_words(None) == "silent"


@pytest.fixture
def render() -> Any:
    rendering = Rendering(PageAccess(TokenAccess(Settings())), PageFiles())
    exchange: Any = SimpleNamespace(target_path="/ui/nodes/n", authority=None, headers={}, in_session=False)
    yield lambda template, **values: rendering._rendered(exchange, template, 200, values).body.decode()
    rendering.close()


def test_names_and_reasons_are_text(render: Any) -> None:
    series = stats([node(NASTY, [1, 2, None], silent=True, why=NASTY)])
    page = render("rates.html", rates=rates_shown(series))
    assert "<script" not in page
    assert "\u202e" not in page
    assert page.count("⟨202E⟩") >= 4  # in labels, tables and the sentence
    assert re.search(r'<polyline class="line p0" points="0,100 2,0"/>', page)
    assert 'role="img" aria-label="In, bytes a second' in page
    assert "15 min ago" in page
    assert "is silent: " in page
    assert not re.search(r"\sstyle=|\son\w+=", page)


def test_the_page_of_a_node_and_of_one_that_is_silent(render: Any) -> None:
    series = stats([node("n", [None] * 3)])
    disk = DiskInfo(id="d" * 32, path="/data", state="failed", failure=NASTY, io_errors=10, capacity=100, used=40)
    about = node_info(
        "n", "target", Settings(token="hush", zone="z"), {"zone": "flag --zone"}, ("http://a", "http://b"), 3, [disk]
    )
    entry = NodeEntry(
        id="n", number=1, role="target", url="http://a", advertise_url="http://b", state="down",
        last_heartbeat="2026-01-02T03:04:05Z", disks=(DiskEntry(id="d" * 32, weight=1.0, capacity=100, used=40, use="out"),),
    )  # fmt: skip
    usual = {"node_id": "n", "kind": "target", "entry": entry, "disks": disks_of(entry), "rates": rates_shown(series)}
    rows = [(each, text_of(each)) for each in about.settings]
    page = render("node.html", about=about, up_for="3 s", wrong="", given=rows[:1], defaults=rows[1:], **usual)
    assert "failed, drained" in page
    assert "<script>" not in page
    assert "hush" not in page
    assert "40 %" in page
    assert "10" in page
    silent = render("node.html", about=None, up_for="", wrong="n does not answer", given=[], defaults=[], **usual)
    assert "n does not answer" in silent
    assert '<time datetime="2026-01-02T03:04:05Z"' in silent
    assert "Settings" not in silent
    assert "up when last heard" in silent


def test_values_of_settings_are_as_in_a_file_of_settings() -> None:
    values = {"a": ("x", "y"), "b": True, "c": 1.5, "d": "text", "e": ""}
    shown = {name: text_of(SettingInfo(name, value, "default")) for name, value in values.items()}
    assert shown == {"a": '["x","y"]', "b": "true", "c": "1.5", "d": "text", "e": ""}
