"""A job by the form of the pages: entered, checked, run and followed to its end, with and without script."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from browser.conftest import LOOKS, Profile, assert_for_everybody, findings, send
from harness import DATA, Cluster
from playwright.sync_api import Page, expect

END_MS = 120_000  # of a small job, the first of a cluster, on a machine that is busy
HOSTILE = "\"'><img src=x onerror=alert(1)>\u202e"


@pytest.fixture(scope="module")
def filled(guarded: Cluster) -> Cluster:
    shard = gzip.decompress((DATA / "sample.tgz").read_bytes())
    for number in range(3):
        send(guarded, "PUT", f"/forms/s-{number}.tar", shard)
    return guarded


@pytest.mark.parametrize("has_script", [True, False])
def test_a_job_from_the_form_to_its_end(filled: Cluster, profile: Profile, has_script: bool) -> None:
    watched = profile(filled.url, java_script_enabled=has_script)
    watched.expected += ["status of 400", "status of 409"]
    page = watched.log_in("/ui/jobs")
    page.get_by_role("link", name="New job").click()
    page.get_by_role("link", name="reshuffle").click()
    # A bucket first: then its datasets are proposed, with their counts.
    page.get_by_label("Bucket to read").fill("forms")
    page.get_by_role("button", name="Show the datasets").click()
    proposed = page.locator("#datasets option")
    expect(proposed).to_have_attribute("value", "s-{0..2}.tar")
    page.get_by_label("Shards to read").fill("s-{0..2}.tar")
    page.get_by_label("Bucket to write").fill(f"forms-out-{has_script}")
    page.get_by_label("Names of the outputs").fill("r.tar")
    page.get_by_label("seed").fill("7")
    page.get_by_label("strategy").select_option("spill")
    page.get_by_label("Label").fill(HOSTILE)
    # What is wrong is at its field, which has the focus, and nothing is lost.
    page.get_by_role("button", name="Check").click()
    names = page.get_by_label("Names of the outputs")
    expect(names).to_have_attribute("aria-invalid", "true")
    expect(names).to_be_focused()
    expect(page.locator("#pattern-wrong")).to_have_text("the output pattern needs a number for the shards, such as %06d")
    expect(page.get_by_label("seed")).to_have_value("7")
    expect(page.get_by_label("Label")).to_have_value(HOSTILE)
    if has_script:
        assert findings(page) == []
    names.fill("r-%06d.tar")
    names.press("Enter")  # checks, and does not run
    expect(page.get_by_role("heading", name="The plan")).to_be_in_viewport()
    expect(page.get_by_text("3 shards, 270 samples").first).to_be_visible()
    assert json.loads(page.locator("#as-json").inner_text()) == {
        "operation": "reshuffle", "label": HOSTILE, "input": {"bucket": "forms", "shards": "s-{0..2}.tar"},
        "output": {"bucket": f"forms-out-{has_script}", "pattern": "r-%06d.tar"}, "options": {"strategy": "spill", "seed": 7},
    }  # fmt: skip
    if has_script:
        assert findings(page) == []
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("heading", name=HOSTILE.replace("\u202e", "⟨202E⟩"))).to_be_visible()
    until_it_succeeded(page, has_script)
    # Again: the form is as it was, and the outputs are in the way now.
    page.get_by_role("link", name="Again").click()
    expect(page.get_by_label("seed")).to_have_value("7")
    expect(page.get_by_label("strategy")).to_have_value("spill")
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#pattern-wrong")).to_contain_text("r-000000.tar")
    page.get_by_label("Replace objects with these names").check()
    page.get_by_role("button", name="Run").click()
    until_it_succeeded(page, has_script)


def until_it_succeeded(page: Page, has_script: bool) -> None:
    succeeded = page.locator("strong.succeeded")
    if has_script:
        expect(succeeded).to_be_visible(timeout=END_MS)
        return
    for _ in range(END_MS // 1000):  # without script one reloads
        if succeeded.count():
            return
        page.wait_for_timeout(1000)
        page.reload()
    expect(succeeded).to_be_visible()


@LOOKS
def test_the_forms_are_whole_and_for_everybody(
    filled: Cluster, profile: Profile, size: Any, scheme: str, has_script: bool
) -> None:
    watched = profile(filled.url, viewport=size, color_scheme=scheme, java_script_enabled=has_script)
    page = watched.open("/ui/jobs/new?operation=merge")  # before the login: to be read, not to be sent
    expect(page.get_by_role("button", name="Run")).to_be_disabled()
    expect(page.get_by_role("button", name="Check")).to_be_disabled()
    watched.log_in("/ui/jobs").close()
    for path in ("", "?operation=map&bucket=forms", "?operation=join", f"?operation=select&bucket=forms&shards={'x' * 300}"):
        page = watched.open(f"/ui/jobs/new{path}")
        expect(page.get_by_role("main")).to_be_visible()
        assert_for_everybody(page, size, has_script, path)
