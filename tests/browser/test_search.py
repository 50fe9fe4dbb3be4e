"""The search for samples in a browser: the form, what is found, mistakes, and keys that are out to do harm."""

from __future__ import annotations

import tarfile
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from browser.conftest import LOOKS, Profile, Watched, assert_for_everybody, findings, send
from harness import Cluster, wait_for
from job_shards import tar_of
from playwright.sync_api import Page, expect

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)
NASTY = ["<img src=x onerror=alert(1)>", "\u202egpj", "' onfocus='alert(2)", "{{ 7 * 7 }}", "new\nline", "&amp;"]


@pytest.fixture(scope="module")
def filled(guarded: Cluster) -> Cluster:
    for shard in range(6):
        files: list[tuple[str, bytes]] = []
        for number in range(20):
            key = f"{shard}-{number:02d}"
            files += [(f"{key}.png", PIXEL), (f"{key}.txt", f"a text of {key}".encode())]
        files.append(("everywhere.cls", b"7"))
        send(guarded, "PUT", f"/finding/train/x-{shard:03d}.tar", tar_of(files))
    nasty = tar_of([(f"{key}.txt", key.encode()) for key in NASTY], tarfile.PAX_FORMAT)
    send(guarded, "PUT", "/finding/nasty.tar", nasty)
    return guarded


def search(page: Page, key: str, how: str = "is", shards: str | None = None) -> None:
    if shards is not None:
        page.get_by_label("Shards").fill(shards)
    page.get_by_label("The key").select_option(label=how)
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Find").click()


@LOOKS
def test_it_is_whole_and_for_everybody(filled: Cluster, profile: Profile, size: Any, scheme: str, has_script: bool) -> None:
    watched = profile(filled.url, viewport=size, color_scheme=scheme, java_script_enabled=has_script)
    for query in (
        {}, {"bucket": "finding"}, {"bucket": "finding", "key": "everywhere"},
        {"bucket": "finding", "key": "0", "how": "prefix"},
        {"bucket": "finding", "key": "-0", "how": "contains"}, {"bucket": "finding", "key": "x", "shards": '["none.tar"]'},
        *({"bucket": "finding", "key": key} for key in NASTY),
    ):  # fmt: skip
        page = watched.open(f"/ui/search?{urlencode(query)}")
        expect(page.get_by_role("heading", name="Find a sample")).to_be_visible()
        assert_for_everybody(page, size, has_script, query)


@pytest.mark.parametrize("has_script", [True, False])
def test_from_the_bucket_to_the_sample(filled: Cluster, profile: Profile, has_script: bool) -> None:
    watched = profile(filled.url, java_script_enabled=has_script)
    page = watched.open("/ui/buckets/finding?prefix=train/")
    page.get_by_role("link", name="Find a sample").click()
    expect(page.get_by_label("Bucket")).to_have_value("finding")
    expect(page.get_by_label("Shards")).to_have_value("train/")
    search(page, "3-07")
    expect(page.get_by_role("heading", name="1 sample")).to_be_visible()
    expect(page.get_by_text("6 of 6 shards were searched.")).to_be_visible()
    tile = page.locator(".tiles li")
    expect(tile).to_have_count(1)
    expect(tile.locator(".text")).to_have_text("txt a text of 3-07")
    picture = tile.get_by_role("img")
    picture.scroll_into_view_if_needed()
    if has_script:
        wait_for(lambda: page.evaluate("document.querySelector('.tiles img').naturalWidth == 1"), "the picture", 30)
    tile.get_by_role("link", name="train/x-003.tar").click()
    expect(page.get_by_role("heading", name="train/x-003.tar")).to_be_visible()
    page.go_back()
    page.locator(".tiles li").get_by_role("link", name="3-07").click()
    expect(page).to_have_url(f"{watched.url}/ui/sample?bucket=finding&object=train%2Fx-003.tar&number=7")
    page = watched.open("/ui/buckets/finding/datasets")
    page.get_by_role("link", name="Find a sample").click()
    expect(page.get_by_label("Shards")).to_have_value("")


def test_hits_of_several_shards_are_in_order(filled: Cluster, profile: Profile) -> None:
    page = profile(filled.url).open("/ui/search?bucket=finding")
    page.get_by_role("navigation", name="Folders").get_by_role("link", name="finding").click()
    page.get_by_role("link", name="Find a sample").click()
    search(page, "where")
    page.get_by_role("link", name="Find keys that contain it").click()
    expect(page.locator(".tiles li")).to_have_count(6)
    search(page, "everywhere", "is")
    expect(page.locator(".tiles li")).to_have_count(6)
    links = page.locator(".tiles li > p > a").all_inner_texts()
    assert links == [f"train/x-{shard:03d}.tar" for shard in range(6)]
    assert page.locator(".tiles .text").all_inner_texts() == ["cls 7"] * 6
    search(page, "-1", "contains", "train/x-00{2,4}.tar")
    expect(page.locator(".tiles li")).to_have_count(20)
    expect(page.get_by_label("The key")).to_have_value("contains")


def test_it_says_when_it_stopped(filled: Cluster, profile: Profile) -> None:
    page = profile(filled.url).open("/ui/search?bucket=finding")
    search(page, "-", "contains")
    expect(page.get_by_role("heading", name="The first 60 samples")).to_be_visible()
    expect(page.get_by_text("these are in the first 4 of 7 shards")).to_be_visible()
    expect(page.locator(".tiles li")).to_have_count(60)
    search(page, "everywhere", "is", "train/x-00{5..7}.tar")
    expect(page.get_by_text("1 of 3 shards were searched.")).to_be_visible()
    page.get_by_text("2 could not be searched").click()
    expect(page.get_by_text("train/x-006.tar: ")).to_be_visible()


@pytest.mark.parametrize("has_script", [True, False])
def test_pages_lead_to_all_that_is_found(filled: Cluster, profile: Profile, has_script: bool) -> None:
    page = profile(filled.url, java_script_enabled=has_script).open("/ui/search?bucket=finding")
    search(page, "-", "contains", "train/")
    seen: list[str] = []
    for heading, count, shards in (("The first 60", 60, 3), ("60 more", 60, 6)):
        expect(page.get_by_role("heading", name=f"{heading} samples")).to_be_visible()
        expect(page.locator(".tiles li")).to_have_count(count)
        seen += page.locator(".tiles .key b").all_inner_texts()
        last = shards == 6
        expect(page.get_by_text(f"{shards} of 6 shards" + (" were searched." if last else "."))).to_be_visible()
        expect(page.get_by_role("link", name="More", exact=True)).to_have_count(0 if last else 1)
        if not last:
            page.get_by_role("link", name="More", exact=True).click()
    assert seen == [f"{shard}-{number:02d}" for shard in range(6) for number in range(20)]
    expect(page.get_by_label("Key", exact=True)).to_have_value("-")
    if has_script:
        assert findings(page) == []
    page.get_by_role("link", name="From the beginning").click()
    expect(page.get_by_role("heading", name="The first 60 samples")).to_be_visible()


def test_a_token_that_is_none_is_refused(filled: Cluster, profile: Profile) -> None:
    watched = profile(filled.url)
    watched.expected = ["Failed to load resource"]
    for token in ("x", "../", "<img src=x onerror=alert(1)>", "A" * 8000):
        assert watched.status_of(f"/ui/search?{urlencode({'bucket': 'finding', 'key': 'a', 'token': token})}") == 400


@pytest.mark.parametrize(
    ("query", "field", "status", "words"),
    [
        ({"bucket": "none-such", "key": "a"}, "bucket", 404, "does not exist"),
        ({"bucket": "", "key": "a"}, "bucket", 400, "name a bucket"),
        ({"bucket": "../x", "key": "a"}, "bucket", 400, ""),
        ({"bucket": "finding", "shards": "x-{0..", "key": "a"}, "shards", 400, "never closed"),
        ({"bucket": "finding", "shards": "x@999999.tar", "key": "a"}, "shards", 413, "at most"),
        ({"bucket": "finding", "key": ""}, "key", 400, "must not be empty"),
        ({"bucket": "finding", "key": "k" * 5000}, "key", 400, "too long"),
        ({"bucket": "finding", "key": "a", "how": "regex"}, "key", 400, "how must be one of"),
    ],
)
def test_mistakes_are_told_at_the_field(
    filled: Cluster, profile: Profile, query: dict[str, str], field: str, status: int, words: str
) -> None:
    watched = profile(filled.url)
    watched.expected = ["Failed to load resource"]
    page = watched.page()
    assert watched.status_of(f"/ui/search?{urlencode(query)}", page) == status
    shown = page.locator(f"#wrong-{field}")
    expect(shown).to_contain_text(words)
    expect(page.locator(f"#{field}")).to_have_attribute("aria-invalid", "true")
    assert findings(page) == []
    for name, value in query.items():
        if name != "how":
            expect(page.locator(f"#{name}")).to_have_value(value)


def test_keys_that_are_out_to_do_harm_are_text(filled: Cluster, profile: Profile) -> None:
    watched: Watched = profile(filled.url)
    for key in NASTY:
        page = watched.open(f"/ui/search?{urlencode({'bucket': 'finding', 'key': key})}")
        expect(page.locator(".tiles li")).to_have_count(1)
        expect(page.locator(".tiles .key b")).to_have_text(key.replace("\u202e", "⟨202E⟩"))
        assert page.locator("main img, main script").count() == 0
        page.close()
    page = watched.open(f"/ui/search?bucket=finding&how=prefix&key={quote(NASTY[0])}&shards={quote(NASTY[2])}")
    expect(page.get_by_label("Shards")).to_have_value(NASTY[2])
