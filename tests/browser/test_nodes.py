"""What nodes do and are, in a browser: plots with and without script, and the page of a node that is killed."""

from __future__ import annotations

import os
import re
import urllib.request
from pathlib import Path
from typing import Any

from browser.conftest import LIVE_MS, LOOKS, TOKEN, Profile, assert_for_everybody, findings, send
from failures.nodes import Nodes
from harness import Cluster, wait_for
from playwright.sync_api import expect


@LOOKS
def test_pages_with_plots_are_whole_and_for_everybody(
    guarded: Cluster, profile: Profile, size: Any, scheme: str, has_script: bool
) -> None:
    send(guarded, "PUT", "/plots/large", os.urandom(5_000_000))
    watched = profile(guarded.url, viewport=size, color_scheme=scheme, java_script_enabled=has_script)
    for path in ("/ui", *(f"/ui/nodes/{node['id']}" for node in guarded.map()["nodes"][:1])):
        page = watched.open(path)
        plots = page.locator("figure svg[role=img]")
        expect(plots).to_have_count(2)
        expect(plots.first).to_have_attribute("aria-label", re.compile("^In, bytes a second: .*on average"))
        assert page.locator("figure polyline").count() > 0
        page.locator("figure summary").first.click()
        expect(page.locator("figure").first.get_by_role("columnheader", name="most")).to_be_visible()
        assert_for_everybody(page, size, has_script, path)


def test_a_plot_is_drawn_anew_and_what_was_opened_stays_open(guarded: Cluster, profile: Profile) -> None:
    page = profile(guarded.url).open("/ui")
    figure = page.locator("figure").first
    label = figure.locator("svg[role=img]")
    figure.locator("summary").click()
    before = label.get_attribute("aria-label")
    assert before is not None
    page.evaluate("document.querySelector('figure').dataset.old = '1'")
    send(guarded, "PUT", "/plots/large", os.urandom(30_000_000))
    expect(label).not_to_have_attribute("aria-label", before)
    expect(page.locator("figure[data-old]")).to_have_count(0)
    expect(figure.locator("table")).to_be_visible()
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert page.evaluate("document.activeElement.isConnected")


def test_a_node_says_what_it_is_and_no_secret(guarded: Cluster, profile: Profile) -> None:
    watched = profile(guarded.url, java_script_enabled=False)
    page = watched.open("/ui")
    target = guarded.map()["nodes"][0]
    page.get_by_role("link", name=target["id"]).first.click()
    expect(page).to_have_title(f"{target['id']} · DFC")
    for text in ("version", "started", "memory", "descriptors", target["disks"][0]["id"]):
        expect(page.get_by_text(text).first).to_be_visible()
    page.get_by_text(re.compile("others, which have their defaults")).click()
    expect(page.get_by_role("cell", name="heartbeat_s", exact=True)).to_be_visible()
    assert TOKEN not in page.content()
    token = page.locator("tr", has=page.get_by_role("cell", name="token", exact=True))
    expect(token.get_by_role("cell").nth(1)).to_have_text("(set)")
    page.get_by_role("link", name="Cluster").last.click()
    proxy = page.locator("section[aria-labelledby=proxies] a").first
    proxy.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("^proxy"))
    expect(page.locator("#disks")).to_have_count(0)
    watched.expected.append("404")
    found = watched.page()
    assert watched.status_of("/ui/nodes/target-%3Cb%3E", found) == 404
    expect(found.get_by_role("alert")).to_contain_text("there is no node")


def test_a_target_that_is_killed_is_said_to_be_silent(profile: Profile, tmp_path: Path) -> None:
    with Nodes(tmp_path, 2, 1, down_after_s=4, drain_timeout_s=5) as nodes:
        nodes.start_all()
        nodes.until(lambda: len(nodes.map()["nodes"]) == 2, "both targets")
        with urllib.request.urlopen(f"{nodes.url_of('target-1')}/v1/health", timeout=10) as answer:
            killed = re.search(rb'"id": ?"([^"]+)"', answer.read())
        assert killed is not None
        target = killed[1].decode()
        watched = profile(nodes.url)
        first, own = watched.open("/ui"), watched.open(f"/ui/nodes/{target}")
        expect(own.get_by_text("memory")).to_be_visible()
        nodes.kill("target-1")
        said = re.compile(rf"{target} does not answer; its last heartbeat was at .*; it has been silent for \d+ s")
        expect(own.locator(".wrong")).to_contain_text(said)
        expect(own.get_by_text("memory")).to_have_count(0)
        expect(own.get_by_text(f"{target} is silent")).to_be_visible()
        expect(first.locator(f"[data-live='node.{target}.does']")).to_have_text("silent")
        assert findings(own) == []
        nodes.start("target-1")
        expect(own.get_by_text("memory")).to_be_visible(timeout=3 * LIVE_MS)
        wait_for(lambda: nodes.is_serving(nodes.targets), "all nodes to serve")
        first.close()
        own.close()
        nodes.stop_all()
