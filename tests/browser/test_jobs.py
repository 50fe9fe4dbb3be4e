"""The page of a job in a browser: while it runs and afterwards, with and without script, whatever its data are called."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from browser.conftest import LIVE_MS, LOOKS, Profile, findings
from harness import Cluster, wait_for
from job_shards import tar_of
from playwright.sync_api import expect

NASTY = "in/<img src=x onerror=alert(1)>\u202e.tar"


def send(cluster: Cluster, method: str, path: str, body: bytes = b"") -> Any:
    request = urllib.request.Request(cluster.url + path, body or None, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def shard(samples: int, size: int) -> bytes:
    return tar_of([(f"{number:05}.bin", bytes(size)) for number in range(samples)])


@pytest.fixture(scope="module")
def slow(start_cluster: Callable[..., Cluster]) -> Cluster:
    """Where jobs take so long that they can be watched."""
    cluster = start_cluster(targets=2, environment={"DFC_JOBS_WORKERS": "2", "DFC_JOBS_IO_BYTES_PER_S": "400000"})
    for number in range(2):
        send(cluster, "PUT", f"/in/s-{number}.tar", shard(60, 50_000))
    send(cluster, "PUT", f"/nasty/{quote(NASTY)}", shard(2, 10))
    return cluster


def submit(cluster: Cluster, bucket: str, source: str = "in", shards: Any = "s-*.tar", **options: Any) -> str:
    spec = {
        "operation": "reshuffle", "label": f"<b>{bucket}</b>\u202e", "options": options,
        "input": {"bucket": source, "shards": shards},
        "output": {"bucket": bucket, "pattern": "r-%04d.tar"},
    }  # fmt: skip
    return json.loads(send(cluster, "POST", "/v1/jobs", json.dumps(spec).encode()))["id"]


def job_of(cluster: Cluster, job: str) -> Any:
    return json.loads(send(cluster, "GET", f"/v1/jobs/{job}"))


@pytest.fixture(scope="module")
def ended(slow: Cluster) -> str:
    job = submit(slow, "ended", samples_per_shard=30)
    wait_for(lambda: job_of(slow, job)["finished"], "the job to end", 120)
    return job


def test_a_job_is_watched_while_it_runs(slow: Cluster, profile: Profile) -> None:
    job = submit(slow, "watched", samples_per_shard=4)
    page = profile(slow.url).open(f"/ui/jobs/{job}")
    expect(page.get_by_role("heading", name="<b>watched</b>⟨202E⟩")).to_be_visible()
    # These were not there at first: the page renews them while the job runs.
    expect(page.get_by_role("img", name="read at most")).to_be_visible(timeout=2 * LIVE_MS)
    expect(page.get_by_role("region", name="Tasks by worker")).to_be_visible()
    expect(page.get_by_role("region", name="Slowest tasks").get_by_role("row")).not_to_have_count(0)
    before = page.get_by_role("region", name="Stages").get_by_role("row").nth(1).inner_text()
    expect(page.get_by_role("region", name="Stages").get_by_role("row").nth(1)).not_to_have_text(before, timeout=2 * LIVE_MS)
    # Not while the reader is in it.
    page.get_by_role("region", name="Stages").focus()
    page.wait_for_timeout(7000)
    expect(page.get_by_role("region", name="Stages")).to_be_focused()
    page.evaluate("document.activeElement.blur()")
    expect(page.locator("strong.succeeded")).to_be_visible(timeout=6 * LIVE_MS)
    expect(page.get_by_text("the job has succeeded")).to_be_visible()
    assert page.locator("[data-again]").count() == 0


@LOOKS
def test_a_job_that_has_ended_is_whole_and_for_everybody(
    slow: Cluster, ended: str, profile: Profile, size: Any, scheme: str, has_script: bool
) -> None:
    watched = profile(slow.url, viewport=size, color_scheme=scheme, java_script_enabled=has_script)
    page = watched.open(f"/ui/jobs/{ended}")
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    expect(page.get_by_role("region", name="Stages").get_by_role("row")).to_have_count(2)
    expect(page.get_by_role("region", name="Stages")).to_contain_text("4 of 4")
    expect(page.get_by_role("img", name="read at most")).to_be_visible()
    expect(page.get_by_role("img", name="busy for")).to_have_count(page.locator(".timeline tbody tr").count())
    expect(page.get_by_role("region", name="Slowest tasks").get_by_role("row")).to_have_count(5)
    expect(page.locator(".log li").last).to_contain_text("the job has succeeded")
    if has_script:
        assert findings(page) == []
    page.get_by_role("link", name="Its shards, with their samples").click()
    expect(page.get_by_role("heading", name="r-{0000..0003}.tar")).to_be_visible()
    expect(page.locator(".tiles li")).to_have_count(12)  # at random
    list_page = watched.open("/ui/jobs")
    expect(list_page.locator("tbody tr", has_text="<b>ended</b>")).to_contain_text("/s")
    assert list_page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def test_names_in_a_job_are_text(slow: Cluster, profile: Profile) -> None:
    job = submit(slow, "hostile", "nasty", [NASTY])
    wait_for(lambda: job_of(slow, job)["finished"], "the job to end", 120)
    page = profile(slow.url).open(f"/ui/jobs/{job}")
    expect(page.get_by_role("heading", name="<b>hostile</b>⟨202E⟩")).to_be_visible()
    shown = page.get_by_role("main").inner_text()
    assert "\u202e" not in shown
    assert page.locator("main img, main b").count() == 0
