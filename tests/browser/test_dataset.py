"""The page of a dataset in a browser: what is in it, where it came from, and programs to copy."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from browser.conftest import HOST, LOOKS, Profile, assert_for_everybody, findings, send
from harness import DATA, Cluster, wait_for
from job_shards import tar_of
from playwright.sync_api import Page, expect

from dfc.limits import format_size

BUCKET, REPORTS, NASTY = "pets", "pets-reports", "pets-nasty"
PATTERN = "set/x-{000..006}.tar"
NASTY_NAME = "\"'><img src=x onerror=alert(1)>{{ 7*7 }}$(id)\u202e"
JOB_S = 60.0


def job(cluster: Cluster, operation: str, shards: str, output: tuple[str, str], **options: Any) -> None:
    """Run a job to its end."""
    spec = {
        "operation": operation, "input": {"bucket": BUCKET, "shards": shards},
        "output": {"bucket": output[0], "pattern": output[1]}, "options": options, "overwrite": True,
    }  # fmt: skip
    path = f"/v1/jobs/{json.loads(send(cluster, 'POST', '/v1/jobs', json.dumps(spec).encode()))['id']}"

    def has_ended() -> bool:
        state = json.loads(send(cluster, "GET", path, b""))
        assert state["state"] not in ("failed", "cancelled"), state
        return bool(state["state"] == "succeeded")

    wait_for(has_ended, f"the end of {operation}", JOB_S)


def address(bucket: str, shards: str, **more: object) -> str:
    return f"/ui/dataset?{urlencode({'bucket': bucket, 'shards': shards, **more})}"


PICTURES = gzip.decompress((DATA / "sample.tgz").read_bytes())
SMALL = tar_of([("a.cls", b"7"), ("a.png", b"no picture")])


@pytest.fixture(scope="module")
def stocked(guarded: Cluster) -> Cluster:
    """With a dataset of which a number is missing and a shard is small; and names that are out to do harm."""
    for number in (0, 1, 3, 4, 5):
        send(guarded, "PUT", f"/{BUCKET}/set/x-{number:03}.tar", PICTURES)
    send(guarded, "PUT", f"/{BUCKET}/set/x-006.tar", SMALL)
    nasty = tar_of([("a.<b>'\"\n", b"x"), ("a.txt", b"<script>alert(2)</script>"), ("a.it's", b"1")])
    for number in range(2):
        send(guarded, "PUT", f"/{NASTY}/{quote(NASTY_NAME)}-{number}.tar", nasty)
    send(guarded, "PUT", f"/{NASTY}/.dfc/jobs/{quote('<svg onload=alert(3)>')}.json", b"{}")
    lineage = {
        "operation": "<script>alert(4)</script>", "label": "\u202e", "created": "<b>", "outputs": [],
        "spec": {"input": {"bucket": NASTY, "shards": "x"}, "output": {"bucket": NASTY, "pattern": "y"}},
        "inputs": [[{"bucket": NASTY, "name": f"{NASTY_NAME}-0.tar", "samples": 1}, {"bucket": "javascript:x", "name": "y"}]],
    }  # fmt: skip
    send(guarded, "PUT", f"/{NASTY}/.dfc/jobs/0.json", json.dumps(lineage).encode())
    return guarded


def opened(page: Page) -> Page:
    """With all that is folded."""
    for each in reversed(page.locator("details:not([open]) summary").all()):  # each leaves the others where they are
        each.click()
    return page


@LOOKS
def test_the_page_is_whole_and_for_everybody(
    stocked: Cluster, profile: Profile, size: Any, scheme: str, has_script: bool
) -> None:
    watched = profile(stocked.url, viewport=size, color_scheme=scheme, java_script_enabled=has_script)
    watched.expected += ["status of 422"]  # what is called a picture, and is none
    for path in (
        address(BUCKET, PATTERN), address(BUCKET, "set/x-006.tar"), address(NASTY, NASTY_NAME + "-{0..1}.tar", seed=3),
        f"/ui/shard?{urlencode({'bucket': BUCKET, 'object': 'set/x-006.tar'})}",
    ):  # fmt: skip
        page = opened(watched.open(path))
        expect(page.get_by_role("heading", name="Read it in a program")).to_be_visible()
        assert_for_everybody(page, size, has_script, path)


def test_a_dataset_is_reached_from_its_bucket_and_shows_what_is_in_it(stocked: Cluster, profile: Profile) -> None:
    page = profile(stocked.url).open(f"/ui/buckets/{BUCKET}/datasets")
    page.get_by_role("link", name=PATTERN).click()
    expect(page.get_by_role("heading", name=PATTERN)).to_be_visible()
    expect(page.locator(".totals dd")).to_have_text(["6", "451", format_size(5 * len(PICTURES) + len(SMALL)), "1"])
    fields = page.get_by_role("region", name="Fields").locator("tbody tr")
    expect(fields).to_have_count(2)
    expect(fields.filter(has_text="cls").locator("td").nth(1)).to_have_text("whole number")
    expect(fields.filter(has_text="png").locator("td").nth(2)).to_have_text("100 %")
    expect(page.get_by_text("Of the first samples of 4 shards, 49 in all.")).to_be_visible()
    lines = page.get_by_role("region", name="Shards").locator("tbody tr")
    expect(lines).to_have_count(7)
    expect(lines.nth(2)).to_have_text("002 is missing")
    expect(lines.nth(6)).to_contain_text("few samples, small")
    expect(page.get_by_text("1 is far from the others")).to_be_visible()
    expect(fields.filter(has_text="cls").locator("td").nth(6)).to_have_text(re.compile("^[0-9](, [0-9])*$"))
    lines.nth(0).get_by_role("link").click()
    expect(page.get_by_role("heading", name="set/x-000.tar")).to_be_visible()
    # From shard to shard, to a sample, and back to the dataset; a number that is missing leads nowhere.
    expect(page.get_by_role("link", name="Previous shard")).to_have_count(0)
    page.get_by_role("link", name="Next shard").click()
    expect(page.get_by_role("heading", name="set/x-001.tar")).to_be_visible()
    expect(page.get_by_role("link", name="Previous shard")).to_be_visible()
    expect(page.get_by_role("link", name="Next shard")).to_have_count(0)
    page.locator(".tiles a").first.click()
    page.get_by_role("navigation", name="Folders").get_by_role("link", name="x-001.tar").click()
    page.get_by_role("navigation", name="Folders").get_by_role("link", name="x-*.tar").click()
    expect(page.get_by_role("heading", name=PATTERN)).to_be_visible()


def test_from_any_shard_of_a_dataset_all_of_it_is_reached(stocked: Cluster, profile: Profile) -> None:
    """Whether numbers have zeros in front or not. A page of a shard knows the name of its shard alone."""
    for number in range(98, 102):  # as many digits as train-098 has, or fewer than train-101
        for pattern in ("padded/p-{:03}.tar", "plain/q-{}.tar"):
            send(stocked, "PUT", f"/{BUCKET}/{pattern.format(number)}", SMALL)
    send(stocked, "PUT", f"/{BUCKET}/plain/q-0001.tar", SMALL)  # of another dataset
    watched = profile(stocked.url)
    watched.expected += ["status of 422"]
    for name, all_of_it in (
        ("padded/p-098.tar", "padded/p-{098..101}.tar"), ("padded/p-100.tar", "padded/p-{098..101}.tar"),
        ("plain/q-98.tar", "plain/q-{98..101}.tar"), ("plain/q-101.tar", "plain/q-{98..101}.tar"),
    ):  # fmt: skip
        page = watched.open(f"/ui/shard?{urlencode({'bucket': BUCKET, 'object': name})}")
        page.get_by_role("navigation", name="Folders").get_by_role("link", name=re.compile(r"\*\.tar$")).click()
        page.wait_for_url(watched.url + address(BUCKET, all_of_it))
        expect(page.get_by_role("heading", name=all_of_it)).to_be_visible()
        expect(page.locator(".totals dd").nth(0)).to_have_text("4")
        page.close()


def test_samples_are_drawn_anew_and_stay_with_their_address(stocked: Cluster, profile: Profile) -> None:
    page = profile(stocked.url).open(address(BUCKET, PATTERN))
    tiles = page.locator(".tiles li a")
    expect(tiles).to_have_count(12)
    wait_for(lambda: page.evaluate("document.images[0].naturalWidth > 0"), "the first picture")
    first = [each.get_attribute("href") for each in tiles.all()]
    page.get_by_role("link", name="Draw other samples").click()
    page.wait_for_url("**seed=1#samples")
    second = [each.get_attribute("href") for each in tiles.all()]
    assert len(second) == 12
    assert second != first
    page.reload()
    assert [each.get_attribute("href") for each in tiles.all()] == second
    tiles.nth(0).click()
    expect(page.get_by_text("numbered from 0")).to_be_visible()


def test_what_jobs_made_of_it_and_a_report_are_found(stocked: Cluster, profile: Profile) -> None:
    watched = profile(stocked.url)
    page = watched.open(address(BUCKET, PATTERN))
    expect(page.get_by_text("No report on these shards was found.")).to_be_visible()
    expect(page.get_by_text("No job was found that wrote these shards")).to_be_visible()
    wanted = page.get_by_role("link", name="Count classes and sizes").get_attribute("href")
    filled = {
        "operation": "stats", "bucket": BUCKET, "shards": "set/x-{{000..001},{003..006}}.tar", "output_bucket": BUCKET,
        "pattern": "set/x.stats.json", "option.by": "cls",
    }  # fmt: skip
    assert wanted == f"/ui/jobs/new?{urlencode(filled)}"
    send(stocked, "PUT", f"/{BUCKET}/other/y.tar", SMALL)
    job(stocked, "stats", "**", (REPORTS, "all.json"))
    page = watched.open(address(BUCKET, PATTERN))
    expect(page.get_by_text("covers these and others")).to_contain_text(f"{BUCKET}/set/x-{{000..006}}.tar")
    assert findings(page) == []
    job(stocked, "stats", "set/x-{{000..001},{003..006}}.tar", (REPORTS, "stats.json"), by="cls")
    job(stocked, "reshuffle", "set/x-00[0-3].tar", (BUCKET, "mixed/m-%03d.tar"), samples_per_shard=100)
    page = watched.open(address(BUCKET, PATTERN))
    bars = page.locator("table.bars").filter(has_text="Samples by cls").locator("tbody tr")
    expect(bars).to_have_count(10)
    assert sum(int(text) for text in bars.locator("td.n").all_inner_texts()) == 451
    drawn = page.locator("table.bars rect").first
    assert drawn.evaluate("each => each.getBoundingClientRect().width") > 10
    expect(page.locator("table.bars").filter(has_text="Sizes of png")).to_be_visible()
    expect(page.get_by_text("Out of date")).to_have_count(0)
    made = page.get_by_role("listitem").filter(has_text="reshuffle")
    expect(made.get_by_role("link", name="mixed/m-{000..002}.tar")).to_be_visible()
    assert findings(page) == []
    made.get_by_role("link", name="mixed/m-{000..002}.tar").click()
    expect(page.get_by_text("All shards are as this job wrote them: reshuffle")).to_be_visible()
    page.get_by_role("main").get_by_role("link", name="job", exact=True).click()
    expect(page.get_by_text("succeeded", exact=True)).to_be_visible()
    send(stocked, "PUT", f"/{BUCKET}/set/x-006.tar", tar_of([("b.cls", b"7"), ("b.png", b"no picture")]))
    page = watched.open(address(BUCKET, PATTERN))
    expect(page.get_by_text("Out of date")).to_be_visible()


def test_names_that_are_out_to_do_harm_are_text(stocked: Cluster, profile: Profile) -> None:
    page = opened(profile(stocked.url).open(address(NASTY, NASTY_NAME + "-{0..1}.tar")))
    shown = NASTY_NAME.replace("\u202e", "⟨202E⟩") + "-{0..1}.tar"
    expect(page.get_by_role("heading", level=1)).to_have_text(shown)
    expect(page.locator(".tiles .text").first).to_have_text("txt <script>alert(2)</script>")
    expect(page.get_by_text("<script>alert(4)</script>")).to_be_visible()
    expect(page.get_by_text("1 could not be read")).to_be_visible()
    programs = page.locator("pre[data-copy]").all_text_contents()
    assert len(programs) == 5
    assert all("onerror" not in text or "%3E" in text for text in programs)
    compile(programs[0], "WebDataset", "exec")


def test_a_program_is_copied_with_one_click(stocked: Cluster, profile: Profile) -> None:
    # An address of this machine is a secure context, which has a clipboard; one in a network is none.
    watched = profile(stocked.url, permissions=["clipboard-read", "clipboard-write"])
    watched.url = stocked.url
    page = watched.open(address(BUCKET, PATTERN))
    text = page.locator("pre[data-copy]").first.text_content()
    assert text is not None
    assert f"{stocked.url}/{BUCKET}/set/x-" in text
    page.get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == text
    page = profile(stocked.url).open(address(BUCKET, PATTERN))
    page.get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Selected: copy it")).to_be_visible()
    selected = page.evaluate("getSelection().toString()")
    assert selected.strip() == text.replace("127.0.0.1", HOST).strip()


def test_what_is_no_dataset_is_said(stocked: Cluster, profile: Profile) -> None:
    watched = profile(stocked.url)
    watched.expected += ["status of 404", "status of 400"]
    for path, status, said in (
        (address(BUCKET, "no-{0..3}.tar"), 404, "has no shards"),
        (address("no-such-bucket", "x.tar"), 404, "bucket"),
        ("/ui/dataset", 400, "must name a bucket and shards"),
        (address(BUCKET, PATTERN, seed="x"), 400, "must be numbers"),
        (address(BUCKET, "../x"), 400, "segments"),
    ):
        page = watched.page()
        assert watched.status_of(path, page) == status, path
        expect(page.get_by_role("alert")).to_contain_text(said)
        page.close()
