"""The pages in a browser: they are whole, readable for everybody, live, and safe from what is stored."""

from __future__ import annotations

import base64
import gzip
import io
import json
import tarfile
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from browser.conftest import EVIL, HOST, LIVE_MS, LOOKS, TOKEN, Profile, assert_for_everybody, findings, send
from failures.nodes import Nodes
from harness import DATA, Cluster, wait_for
from job_shards import tar_of
from playwright.sync_api import expect

NASTY = (
    "<img src=x onerror=alert(1)>.tar",
    "\"'><script>alert(2)</script>.txt",
    "{{ 7 * 7 }}${7*7}.json",
    "photo\u202egpj.exe",
    "a\u200bb",
    "dir/<svg onload=alert(3)>",
    "javascript:alert(4)",
    "page.html",
    "picture.svg",
)
SHARD = "?bucket=plain&object=digits.tar"
NASTY_SHARD = "?bucket=nasty&object=shard.tar"
DOT = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")  # a picture of one pixel
RUNS = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(5)'><script>fetch('http://evil.example/')</script></svg>"
# They are out to do harm, or are not what they are called.
NASTY_MEMBERS = (
    ("a.txt", "<script>alert(6)</script> \u202eevil".encode()),
    ("a.json", b'{"x": "<img src=x onerror=alert(7)>"}'),
    ("a.svg", RUNS),
    ("a.html", b"<script>alert(8)</script>"),
    ("a.npy", b"\x93NUMPY\x01\x00\x40\x00" + b"{'descr': '<script>', 'shape': (1,)}"),
    ("a.bin", bytes(range(256)) * 4),
    ("a.log", b"\x1b[31mred\x07"),
    ("<img src=x onerror=alert(9)>.cls", b"7"),
    ("zz.jpg", b"no picture"),
    ("zz.wav", b"RIFF"),
    ("zz.mp4", b"no film"),
    ("zz.big.txt", b"line\n" * 50_000),
)


@pytest.fixture(scope="module")
def filled(guarded: Cluster) -> Cluster:
    """With buckets, folders and names that are out to do harm."""
    send(guarded, "PUT", "/v1/buckets/nasty")
    send(guarded, "PUT", "/v1/buckets/plain", b'{"copies": 2}')
    for name in NASTY:
        send(guarded, "PUT", f"/nasty/{quote(name, safe='/')}", RUNS)
    for number in range(3):
        send(guarded, "PUT", f"/plain/train/{number:06}.bin", b"x" * 1000)
    send(guarded, "PUT", "/plain/digits.tar", gzip.decompress((DATA / "sample.tgz").read_bytes()))
    send(guarded, "PUT", "/plain/digits.tgz", (DATA / "sample.tgz").read_bytes())
    send(guarded, "PUT", "/nasty/shard.tar", tar_of(NASTY_MEMBERS))
    return guarded


@LOOKS
def test_every_page_is_whole_and_for_everybody(
    filled: Cluster, profile: Profile, size: Any, scheme: str, has_script: bool
) -> None:
    watched = profile(filled.url, viewport=size, color_scheme=scheme, java_script_enabled=has_script)
    watched.expected += ["status of 422"]  # what is called a picture, and is none
    watched.log_in().close()
    for path in (
        "/ui", "/ui/login", "/ui/buckets", "/ui/buckets/plain", "/ui/buckets/plain?prefix=train/", "/ui/buckets/nasty",
        "/ui/buckets/nasty?prefix=dir/", f"/ui/shard{SHARD}", f"/ui/shard{SHARD}&start=60", f"/ui/sample{SHARD}&number=89",
        f"/ui/shard{NASTY_SHARD}", f"/ui/sample{NASTY_SHARD}&number=0", "/ui/shard?bucket=plain&object=train/000000.bin",
        f"/ui/members{SHARD}", f"/ui/members{NASTY_SHARD}", f"/ui/members{SHARD}&of=none",
        "/ui/buckets/plain/datasets", "/ui/buckets/nasty/datasets",
        "/ui/jobs",
    ):  # fmt: skip
        page = watched.open(path)
        expect(page.get_by_role("main")).to_be_visible()
        assert_for_everybody(page, size, has_script, path)


def test_names_that_are_out_to_do_harm_are_text(filled: Cluster, profile: Profile) -> None:
    watched = profile(filled.url)
    page = watched.open("/ui/buckets/nasty")
    shown = page.locator("tbody td:first-child").all_inner_texts()
    shown = [name.removesuffix(" download").removesuffix(" ⭳") for name in shown]
    names = {name.partition("/")[0] + ("/" if "/" in name else "") for name in NASTY} | {"shard.tar"}
    assert set(shown) == {name.replace("\u202e", "⟨202E⟩").replace("\u200b", "⟨200B⟩") for name in names}
    page.get_by_role("link", name="dir/").click()
    expect(page.locator("tbody td:first-child a")).to_have_text("<svg onload=alert(3)>")
    expect(page).to_have_title("nasty · DFC")
    # What is stored can be had by its link, and does not run. As it is no page of this origin, not even the icon is shown.
    files = profile(watched.url)
    files.expected += ["favicon.ico", "sandbox"]  # the browser says that nothing may run
    page = watched.open("/ui/buckets/nasty")
    for name in ("picture.svg", "page.html"):
        with page.expect_download() as waiting:
            page.get_by_role("link", name=name).click()
        assert waiting.value.suggested_filename == name
        stored = files.page()
        stored.goto(f"{files.url}/nasty/{name}")
        stored.wait_for_timeout(300)
        stored.close()


def test_samples_are_seen_seconds_after_the_upload(filled: Cluster, profile: Profile) -> None:
    watched = profile(filled.url)
    page = watched.open("/ui/buckets/plain")
    page.get_by_role("link", name="digits.tar", exact=True).click()
    tiles = page.locator(".tiles li")
    expect(tiles).to_have_count(60)
    wait_for(lambda: page.evaluate("document.images.length === 60 && document.images[0].naturalWidth > 0"), "pictures")
    expect(tiles.nth(1).locator(".text")).to_have_text("cls 6")
    expect(page.get_by_text("Samples 0 to 59, numbered from 0, of 90.")).to_be_visible()
    page.get_by_role("link", name="Next").first.click()
    expect(tiles).to_have_count(30)
    page.get_by_label("From sample").fill("88")
    page.get_by_role("button", name="Show").click()
    expect(tiles).to_have_count(2)
    tiles.nth(0).get_by_role("link").click()
    expect(page.get_by_text("Sample 88 of this shard")).to_be_visible()
    wait_for(lambda: page.evaluate("document.images.length === 1 && document.images[0].naturalWidth > 0"), "the picture")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("Sample 89 of this shard")).to_be_visible()
    expect(page.get_by_role("link", name="Next")).to_have_count(0)
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_text("Sample 88 of this shard")).to_be_visible()
    # Compressed shards are shown as well.
    page.goto(f"{watched.url}/ui/sample?bucket=plain&object=digits.tgz&number=1")
    expect(page.locator("pre").first).to_have_text("6")
    wait_for(lambda: page.evaluate("document.images.length === 1 && document.images[0].naturalWidth > 0"), "the picture")


def test_members_that_are_out_to_do_harm_are_text(filled: Cluster, profile: Profile) -> None:
    watched = profile(filled.url)
    watched.expected += ["status of 422"]
    page = watched.open(f"/ui/shard{NASTY_SHARD}")
    expect(page.locator(".tiles .key b")).to_have_text(["a", "<img src=x onerror=alert(9)>", "zz"])
    expect(page.locator(".tiles .text").first).to_have_text("txt <script>alert(6)</script> ⟨202E⟩evil")
    page = watched.open(f"/ui/sample{NASTY_SHARD}&number=0")
    shown = page.locator("section.field pre").all_inner_texts()
    assert shown[0] == "<script>alert(6)</script> ⟨202E⟩evil"
    assert RUNS.decode() in shown
    assert "⟨001B⟩[31mred⟨0007⟩" in shown
    expect(page.get_by_text("<script>, 1")).to_be_visible()
    with page.expect_download() as waiting:
        page.locator("section.field", has_text="alert(8)").get_by_role("link", name="download").click()
    assert waiting.value.path().read_bytes() == b"<script>alert(8)</script>"
    page = watched.open(f"/ui/sample{NASTY_SHARD}&number=2")
    expect(page.locator("audio, video")).to_have_count(2)
    expect(page.get_by_text("There is more: download it.")).to_be_visible()


def test_members_of_no_sample_are_seen(filled: Cluster, profile: Profile) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        folder = tarfile.TarInfo("x")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name in ("x/README", *(f"x/{number:03}.txt" for number in range(220))):
            archive.addfile(tarfile.TarInfo(name))
    send(filled, "PUT", "/plain/members.tar", file.getvalue())
    page = profile(filled.url).open("/ui/shard?bucket=plain&object=members.tar")
    page.get_by_role("link", name="Files in the archive").click()
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(200)
    expect(page.locator(".missing")).to_have_text(["no sample", "no sample"])
    expect(rows.nth(2)).to_contain_text("x/000 txt")
    page.get_by_role("link", name="Next").click()
    expect(rows).to_have_count(22)
    expect(page.get_by_role("link", name="Next")).to_have_count(0)
    with page.expect_download() as waiting:
        rows.nth(21).get_by_role("link").click()
    assert waiting.value.path().read_bytes() == b""
    page.get_by_role("link", name="The 1 of no sample").click()
    expect(page.get_by_text("1 belongs to no sample, besides directories")).to_be_visible()
    expect(rows).to_have_count(1)
    expect(rows.get_by_role("cell").first).to_have_text("x/README")


@pytest.mark.parametrize("has_script", [True, False])
def test_many_members_of_no_sample_have_pages(filled: Cluster, profile: Profile, has_script: bool) -> None:
    loose = tar_of([(name, b"") for number in range(450) for name in (f"{number:03}.txt", f"{number:03}/README")])
    send(filled, "PUT", "/plain/loose.tar", loose)
    watched = profile(filled.url, java_script_enabled=has_script)
    page = watched.open("/ui/shard?bucket=plain&object=loose.tar")
    page.get_by_role("link", name="450 of no sample").click()
    rows = page.locator("tbody tr")
    for first, count in ((0, 200), (200, 200), (400, 50)):
        expect(rows).to_have_count(count)
        assert rows.locator("td:first-child").all_inner_texts() == [f"{at:03}/README" for at in range(first, first + count)]
        expect(page.get_by_role("link", name="Next")).to_have_count(1 if first < 400 else 0)
        if first < 400:
            page.get_by_role("link", name="Next").click()
    if has_script:
        assert findings(page) == []
    page.get_by_role("link", name="First").click()
    expect(rows.first).to_contain_text("000/README")
    page.get_by_role("link", name="All files").click()
    expect(rows).to_have_count(200)
    page = watched.open(f"/ui/shard{SHARD}")
    expect(page.get_by_role("link", name="Files in the archive")).to_have_count(1)
    expect(page.get_by_role("link", name="of no sample")).to_have_count(0)


def test_datasets_say_what_is_missing(filled: Cluster, profile: Profile) -> None:
    shard = gzip.decompress((DATA / "sample.tgz").read_bytes())
    for number in (0, 1, 3):
        send(filled, "PUT", f"/plain/set/x-{number:03}.tar", shard)
    page = profile(filled.url).open("/ui/buckets/plain?prefix=set/")
    page.get_by_role("link", name="Datasets").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody td").nth(2)).to_have_text("270")
    expect(page.locator(".missing")).to_have_text("1 missing: 002")
    page.get_by_role("link", name="set/x-{000..003}.tar").click()
    expect(page.get_by_role("heading", name="set/x-{000..003}.tar")).to_be_visible()


def test_a_job_is_followed_to_its_end(filled: Cluster, profile: Profile) -> None:
    spec = {
        "operation": "keys",
        "label": "<b>keys</b>",
        "input": {"bucket": "plain", "shards": "digits.t*"},
        "output": {"bucket": "keys-out", "pattern": "keys.txt"},
    }
    job = json.loads(send(filled, "POST", "/v1/jobs", json.dumps(spec).encode()))["id"]
    watched = profile(filled.url)
    watched.expected += ["status of 409", "status of 404"]
    watched.log_in().close()
    page = watched.open(f"/ui/jobs/{job}")
    expect(page.get_by_role("heading", name="<b>keys</b>")).to_be_visible()
    expect(page.locator("strong.succeeded")).to_be_visible(timeout=3 * LIVE_MS)
    expect(page.locator("[data-live$='.samples']")).to_have_text("180")
    expect(page.get_by_role("button", name="Cancel the job")).to_have_count(0)
    assert findings(page) == []
    page.get_by_role("link", name="Jobs", exact=True).first.click()
    row = page.locator("tbody tr").filter(has_text="<b>keys</b>")
    expect(row).to_contain_text("succeeded")
    assert findings(page) == []
    row.get_by_role("link").click()
    expect(page.get_by_role("link", name="keys-out/keys.txt")).to_have_attribute("href", "/keys-out/keys.txt")
    # What has ended cannot be cancelled, and an unknown one is not there.
    page.evaluate(
        "(url) => { const form = document.createElement('form'); form.method = 'post'; form.action = url;"
        " document.body.append(form); form.submit(); }",
        f"/ui/jobs/{job}/cancel",
    )
    expect(page.get_by_role("alert")).to_contain_text("the job has succeeded")
    assert watched.status_of("/ui/jobs/0000", page) == 404


def test_a_bucket_from_its_birth_to_its_end(filled: Cluster, profile: Profile) -> None:
    watched = profile(filled.url)
    page = watched.open("/ui/buckets")
    expect(page.get_by_role("button", name="Create")).to_have_count(0)
    watched.expected += ["status of 400"]
    page = watched.log_in()
    page.get_by_label("Name").fill("no such name!")
    page.get_by_role("button", name="Create").click()
    assert page.evaluate("document.getElementById('name').validity.patternMismatch")  # the browser says so
    page.evaluate("document.getElementById('name').removeAttribute('pattern')")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("this cannot be its name: up to 63 letters")
    page.get_by_label("Name").fill("mine")
    page.get_by_label("Copies of each object").fill("2")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="mine")).to_be_visible()
    expect(page.get_by_text("2 copies of each, on the disk before an upload is answered (fsync)")).to_be_visible()
    page.get_by_text("Settings of the bucket").click()
    page.get_by_label("Durability").select_option("relaxed")
    page.get_by_label("Copies of each object").fill("1")
    page.get_by_role("button", name="Change").click()
    expect(page.get_by_text("(relaxed); created")).to_be_visible()
    page.get_by_text("Settings of the bucket").click()
    page.get_by_label("To delete the bucket").fill("other")
    page.get_by_role("button", name="Delete for good").click()
    expect(page.get_by_role("alert")).to_contain_text("type the name of the bucket")
    page.get_by_label("To delete the bucket").fill("mine")
    page.get_by_role("button", name="Delete for good").click()
    expect(page.get_by_role("heading", name="Buckets")).to_be_visible()
    expect(page.get_by_role("link", name="mine")).to_have_count(0)
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("link", name="Log in to change things")).to_be_visible()
    page.goto(f"{watched.url}/ui/buckets")
    expect(page.get_by_role("button", name="Create")).to_have_count(0)


def test_a_wrong_token_is_said_and_a_page_that_wants_one_comes_after_the_login(filled: Cluster, profile: Profile) -> None:
    watched = profile(filled.url)
    watched.expected += ["status of 401"]
    page = watched.open("/ui/login?then=/ui/buckets/plain")
    page.get_by_label("Token of the cluster").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_have_text("This is not the token of the cluster.")
    page.get_by_label("Token of the cluster").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="plain")).to_be_visible()
    cookies = watched.context.cookies()
    assert [(each["httpOnly"], each["sameSite"], TOKEN in each["value"]) for each in cookies] == [(True, "Lax", False)]


def test_pages_of_others_can_do_nothing_with_a_session(filled: Cluster, profile: Profile) -> None:
    """A page of another port of this host, which gets the cookie; and one whose name has come to mean this machine."""
    watched = profile(filled.url)
    before = json.loads(send(filled, "GET", "/v1/buckets/plain", b""))["objects"]
    watched.expected += ["request to", "status of 4", "ERR_", "CORS", "favicon", "Cross-Origin", "Refused to"]
    watched.log_in()
    port = urlsplit(watched.url).port
    page = watched.page()
    page.goto(f"{watched.url}/ui/login")
    elsewhere = f"http://{HOST}:{port + 1 if port < 65000 else port - 1}/"
    page.route(elsewhere, lambda route: route.fulfill(body="<!doctype html><title>x</title>", content_type="text/html"))
    page.goto(elsewhere)
    asked = """async ([url, method]) => {
        try { return (await fetch(url, {method, mode: 'no-cors', credentials: 'include', body: 'name=plain'})).type }
        catch (error) { return String(error) }
    }"""
    assert page.evaluate(asked, [f"{watched.url}/ui/buckets/plain/delete", "POST"]) == "TypeError: Failed to fetch"
    assert page.evaluate(asked.replace("'no-cors'", "'cors'"), [f"{watched.url}/plain/train/000000.bin", "DELETE"]) == (
        "TypeError: Failed to fetch"
    )
    page.evaluate(
        """(url) => {
            const form = document.createElement('form');
            form.method = 'post'; form.action = url;
            form.innerHTML = '<input name="name" value="plain">';
            document.body.append(form); form.submit();
        }""",
        f"{watched.url}/ui/buckets/plain/delete",
    )
    expect(page.get_by_role("heading", name="Not allowed")).to_be_visible()
    answer = page.goto(f"http://{EVIL}:{port}/ui/buckets")
    assert answer is not None
    assert answer.status == 421
    assert json.loads(send(filled, "GET", "/v1/buckets/plain", b""))["objects"] == before


def test_no_stored_object_is_a_script_or_a_worker_of_a_page(filled: Cluster, profile: Profile) -> None:
    send(filled, "PUT", "/nasty/run.js", b"self.ran = true; self.onconnect = (each) => each.ports[0].postMessage('ran')")
    watched = profile(filled.url)
    page = watched.open("/ui")
    tried = """async (url) => {
        const script = document.createElement('script');
        const ended = new Promise((done) => { script.onload = () => done('ran'); script.onerror = () => done('refused'); });
        script.src = url;
        document.head.append(script);
        const worker = (made) => new Promise((done) => {
            try { const each = made(); each.onerror = () => done('refused'); setTimeout(() => done('ran'), 3000); }
            catch (error) { done('refused'); }
        });
        return [await ended, await worker(() => new Worker(url)), await worker(() => new SharedWorker(url)), 'ran' in self];
    }"""
    assert page.evaluate(tried, "/nasty/run.js") == ["refused", "refused", "refused", False]
    page.goto(filled.url + "/ui")  # by its address, for which browsers have service workers without TLS
    registered = "(url) => navigator.serviceWorker.register(url).then(() => 'registered', (error) => 'refused')"
    assert page.evaluate(registered, "/nasty/run.js") == "refused"
    page.goto("about:blank")  # what the page went on to load is known, too
    assert watched.wrong
    watched.wrong.clear()


def test_pages_of_others_show_and_run_nothing_of_a_node(filled: Cluster, profile: Profile) -> None:
    send(filled, "PUT", "/nasty/data.js", b"window.found = 1")
    send(filled, "PUT", "/plain/dot.gif", DOT)
    watched = profile(filled.url)
    loaded = """(all) => Promise.all(all.map(([tag, url]) => new Promise((done) => {
        const each = document.createElement(tag);
        each.onload = () => done('loaded'); each.onerror = () => done('refused');
        each.src = url;
        document.body.append(each);
    })))"""
    asked = [["script", "/nasty/data.js"], ["img", "/plain/dot.gif"], ["img", "/plain/none.gif"]]
    page = watched.page()
    page.route(f"http://{EVIL}/*", lambda route: route.fulfill(content_type="text/html", body="<p>evil"))
    page.goto(f"http://{EVIL}/")
    assert page.evaluate(loaded, [[tag, watched.url + url] for tag, url in asked]) == ["refused"] * 3
    assert page.evaluate("window.found") is None
    page.goto(watched.url + "/ui")
    assert page.evaluate(loaded, asked[1:]) == ["loaded", "refused"], "where they may be shown"
    page.goto("about:blank")
    watched.wrong.clear()


def test_figures_live_in_eight_tabs_by_one_stream(filled: Cluster, profile: Profile) -> None:
    watched = profile(filled.url)
    pages = [watched.open("/ui") for _ in range(8)]
    send(filled, "PUT", "/v1/buckets/one-more")
    try:
        for page in pages:
            expect(page.locator("[data-live=buckets]")).to_have_text(buckets(filled))
        streams = wait_for(lambda: open_streams(filled), "the stream")
        assert streams == 1
    finally:
        send(filled, "DELETE", "/v1/buckets/one-more?force=1", b"")


def buckets(cluster: Cluster) -> str:
    """How many there are, as text."""
    return str(len(json.loads(send(cluster, "GET", "/v1/buckets", b""))["buckets"]))


def open_streams(cluster: Cluster) -> int:
    """How many connections browsers have for figures: those that are open now but for the one that asks."""
    with urllib.request.urlopen(f"{cluster.url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("dfc_ui_streams "))


def test_where_there_is_no_shared_worker_figures_are_asked_for(filled: Cluster, profile: Profile) -> None:
    watched = profile(filled.url)
    watched.context.add_init_script("delete window.SharedWorker")
    page = watched.open("/ui")
    send(filled, "PUT", "/v1/buckets/one-more-still")
    try:
        expect(page.locator("[data-live=buckets]")).to_have_text(buckets(filled))
    finally:
        send(filled, "DELETE", "/v1/buckets/one-more-still?force=1", b"")


def test_a_dead_target_is_named_with_what_to_do_and_a_dead_proxy_greys_the_figures(tmp_path: Path, profile: Profile) -> None:
    with Nodes(tmp_path, 3, 1, down_after_s=6, expected_targets=1) as nodes:
        nodes.start_all()
        watched = profile(nodes.url)
        watched.expected += ["Failed to load resource", "ERR_"]  # while nobody answers
        page = watched.open("/ui")
        expect(page.get_by_role("heading", name="All is well")).to_be_visible(timeout=LIVE_MS)
        nodes.kill("target-1")
        problem = page.locator(".problems li").filter(has_text="What to do").first
        expect(problem).to_be_visible(timeout=LIVE_MS)
        expect(page.get_by_text("start the target, or repair its machine")).to_be_visible(timeout=LIVE_MS)
        nodes.start("target-1")
        expect(page.get_by_role("heading", name="All is well")).to_be_visible(timeout=3 * LIVE_MS)
        expect(page.locator(".problems li")).to_have_count(0)
        nodes.kill("proxy")
        expect(page.locator("#age")).to_contain_text("the cluster does not answer")
        nodes.start("proxy")
        expect(page.locator("#age")).to_be_hidden(timeout=3 * LIVE_MS)
