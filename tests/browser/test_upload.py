"""Uploads from the page of a bucket: what arrives is what was chosen, to the byte, and nothing is lost or overwritten by it."""

from __future__ import annotations

import io
import os
import random
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pytest
from browser.conftest import TOKEN, Profile, Watched, findings, send
from harness import DATA, Cluster, wait_for
from playwright.sync_api import Page, Route, expect

from dfc.cli.cutting import CutShard, Limits, ShardCutter
from dfc.client import Client
from dfc.tar.header import FILE, padded
from dfc.tar.samples import member_header, split_key

DONE_MS: Final = 60_000
LONG: Final = "long-" + "x" * 90
ODD: Final = (
    "with space.txt",
    "großer Fuß é.jpg",
    "\U0001f600 smile.cls",
    "\uff01 wide.cls",  # after the one before by its UTF-8, before it by its UTF-16
    f"{LONG}/{'y' * 60}.jpg",  # fits into a USTAR header, in two parts
    f"{LONG}/{'y' * 60}.cls",
    f"{'z' * 150}.jpg",  # does not
    f"{LONG}/{LONG}/{LONG}/{'w' * 80}.json",  # more than 255 bytes
    f"{LONG}/{LONG}/{LONG}/{'w' * 80}.txt",
    "100% #?&=+;.txt",
    "quote'\"`$(x).txt",
    "new\nline.txt",
    "turned\u202egpj.exe",
    "<img src=x onerror=alert(1)>.html",
    ".hidden",
    "no-extension",
    "__meta__/info.json",
    "UPPER.JPG",
    "empty.bin",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 files: 60 samples of three, and 20 with odd names."""
    root, draw = tmp_path_factory.mktemp("upload") / "photos", random.Random(11)
    for at in range(60):
        for ext in ("jpg", "seg.png", "cls"):
            (root / f"class{at % 3}").mkdir(parents=True, exist_ok=True)
            (root / f"class{at % 3}" / f"{at:05d}.{ext}").write_bytes(draw.randbytes(draw.randrange(60_000)))
    for name in ODD:
        path = root / "odd" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if name == "empty.bin" else draw.randbytes(draw.randrange(1, 5000)))
    return root


@pytest.fixture(scope="module")
def client(guarded: Cluster) -> Iterator[Client]:
    with Client(guarded.url, token=TOKEN) as opened:
        yield opened


def zone(cluster: Cluster, profile: Profile, bucket: str, **options: Any) -> tuple[Watched, Page]:
    """The page of a new bucket, of somebody who has logged in."""
    send(cluster, "PUT", f"/v1/buckets/{bucket}")
    watched = profile(cluster.url, **options)
    watched.log_in().close()
    page = watched.open(f"/ui/buckets/{bucket}")
    page.get_by_text("Upload options").click()
    return watched, page


def said(page: Page, text: str) -> None:
    """Wait for the line that says how all has ended."""
    expect(page.locator("#upload [role=status]")).to_have_text(text, timeout=DONE_MS)


def names_in(client: Client, bucket: str) -> list[str]:
    return [info.name for info in client.list(bucket)]


def members(shard: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(shard), encoding="utf-8", errors="strict") as archive:
        found = [(info.name, archive.extractfile(info).read()) for info in archive]  # type: ignore[union-attr]
    assert len(dict(found)) == len(found)
    return dict(found)


def files_below(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root.parent)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def write_sparse(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path


def test_a_folder_becomes_the_shards_that_tarshards_makes(
    guarded: Cluster, profile: Profile, client: Client, folder: Path
) -> None:
    watched, page = zone(guarded, profile, "photos")
    watched.expected += ["status of 422"]  # what is called a picture, and is none
    files = files_below(folder)
    listing = "\0".join(sorted(files, key=lambda path: path.encode())).encode()
    command = [sys.executable, "-m", "dfc.cli.tarshards", "-0", "-T", "-", "-s", "1M", f"{guarded.url}/again/photos-%06d.tar"]
    environment = {**os.environ, "DFC_URL": guarded.url, "DFC_TOKEN": TOKEN}
    subprocess.run(command, input=listing, cwd=folder.parent, env=environment, check=True, capture_output=True)
    expected = [client.get("again", name) for name in names_in(client, "again")]
    assert len(expected) > 4
    page.get_by_label("MB a shard").fill("1")
    page.get_by_label("Into the folder").fill("train")
    page.locator("#upload-directory").set_input_files(folder)
    said(page, f"{len(expected)} stored")
    names = names_in(client, "photos")
    assert names == [f"train/photos-{number:06d}.tar" for number in range(len(expected))]
    shards = [client.get("photos", name) for name in names]
    found = [members(shard) for shard in shards]
    assert {name: content for each in found for name, content in each.items()} == files
    keys = [{key[0] for name in each if (key := split_key(name)) is not None} for each in found]
    assert sum(map(len, keys)) == len(set().union(*keys)), "a sample is torn"
    assert shards == expected
    # Each has a link to its samples.
    rows = page.locator("#upload li")
    expect(rows).to_have_count(len(names))
    samples = [int(text.split()[0]) for text in rows.locator("a").all_inner_texts()]
    assert samples == [client.stat("photos", name).samples for name in names]
    assert sum(samples) == sum(map(len, keys))
    rows.nth(1).get_by_role("link").click()
    expect(page.get_by_role("heading", name="train/photos-000001.tar")).to_be_visible()
    expect(page.locator(".tiles li").first).to_be_visible()


def test_what_is_dropped_is_uploaded(guarded: Cluster, profile: Profile, client: Client, folder: Path, tmp_path: Path) -> None:
    _, page = zone(guarded, profile, "dropped")
    single = tmp_path / "notes.txt"
    single.write_bytes(b"some notes")
    page.get_by_label("Samples a shard").fill("40")
    drop(page, [folder, single, DATA / "sample.tgz"])
    said(page, "4 stored")
    assert names_in(client, "dropped") == ["notes.txt", "photos-000000.tar", "photos-000001.tar", "sample.tgz"]
    assert client.get("dropped", "notes.txt") == b"some notes"
    assert client.get("dropped", "sample.tgz") == (DATA / "sample.tgz").read_bytes()
    found = [members(client.get("dropped", f"photos-00000{number}.tar")) for number in range(2)]
    assert {**found[0], **found[1]} == files_below(folder)
    assert client.stat("dropped", "photos-000000.tar").samples == 40


def drop(page: Page, paths: list[Path]) -> None:
    """Drop files and folders, as a person does: beside the zone, which has to do."""
    heading = page.get_by_role("heading", level=1)
    heading.scroll_into_view_if_needed()
    box = heading.bounding_box()
    assert box is not None
    session = page.context.new_cdp_session(page)
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, "x": box["x"] + 5, "y": box["y"] + 5, "data": data})


def test_every_sample_of_thousands_of_files_arrives(guarded: Cluster, profile: Profile, client: Client, tmp_path: Path) -> None:
    _, page = zone(guarded, profile, "thousands")
    root = many_files(tmp_path / "many", folders=5)
    page.get_by_label("Samples a shard").fill("700")
    drop(page, [root])
    said(page, "3 stored")
    names = [f"many-{number:06d}.tar" for number in range(3)]
    assert names_in(client, "thousands") == names
    assert [client.stat("thousands", name).samples for name in names] == [700, 700, 600]
    found = [members(client.get("thousands", name)) for name in names]
    assert {name: content for each in found for name, content in each.items()} == files_below(root)
    assert sum(map(len, found)) == 4000


def test_the_search_for_files_can_be_cancelled(guarded: Cluster, profile: Profile, client: Client, tmp_path: Path) -> None:
    """While it goes on, the page says how many there are; what was found then is not uploaded."""
    _, page = zone(guarded, profile, "walked")
    page.evaluate("""() => addEventListener("drop", (event) => {  // the third folder takes long
        const prototype = Object.getPrototypeOf(event.dataTransfer.items[0].webkitGetAsEntry().createReader());
        const read = prototype.readEntries, seen = new Set(), gate = new Promise((open) => { window.goOn = open; });
        prototype.readEntries = function (...answers) {
            seen.add(this);
            if (seen.size < 4) read.apply(this, answers); else gate.then(() => read.apply(this, answers));
        };
    }, true)""")
    drop(page, [many_files(tmp_path / "many", folders=4), DATA / "sample.tgz"])
    said(page, "1,601 files found")
    page.get_by_role("button", name="Cancel all uploads").click()
    page.evaluate("goOn()")
    said(page, "Nothing of this is uploaded: it was cancelled")
    expect(page.get_by_role("button", name="Cancel all uploads")).to_be_hidden()
    page.locator("#upload-files").set_input_files(DATA / "sample.tgz")
    said(page, "1 stored")
    assert names_in(client, "walked") == ["sample.tgz"]


def many_files(root: Path, folders: int) -> Path:
    """Folders of 400 samples each, of two files."""
    for number in range(400 * folders):
        place = root / f"class{number % folders}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:06d}.jpg").write_bytes(number.to_bytes(4) * (number % 300))
        (place / f"{number:06d}.cls").write_text(str(number % folders))
    return root


def test_what_is_there_is_kept_unless_it_is_to_be_replaced(
    guarded: Cluster, profile: Profile, client: Client, tmp_path: Path
) -> None:
    watched, page = zone(guarded, profile, "kept")
    watched.expected += ["status of 412"]
    small, large = tmp_path / "small.bin", write_sparse(tmp_path / "large.bin", 3_000_000)
    small.write_bytes(b"new")
    client.put("kept", "small.bin", b"old")
    client.put("kept", "large.bin", b"older")
    page.locator("#upload-files").set_input_files([small, large])
    said(page, "2 there already")
    expect(page.locator("#upload li").first).to_contain_text("is there with this size, and was kept")
    expect(page.locator("#upload li").last).to_have_text("large.bin: is there, and was kept")
    assert [client.get("kept", name) for name in ("small.bin", "large.bin")] == [b"old", b"older"]
    page.get_by_label("Replace what exists").check()
    page.locator("#upload-files").set_input_files([small, large])
    said(page, "2 stored, 2 there already")
    assert [client.get("kept", name) for name in ("small.bin", "large.bin")] == [b"new", bytes(3_000_000)]


def test_files_without_a_folder_become_shards_if_that_is_wanted(
    guarded: Cluster, profile: Profile, client: Client, folder: Path
) -> None:
    _, page = zone(guarded, profile, "packed")
    page.get_by_label("Make shards of single files").check()
    page.get_by_label("Name of the shards").fill("train")
    some = sorted((folder / "class0").iterdir())
    page.locator("#upload-files").set_input_files([*some, DATA / "sample.tgz"])
    said(page, "2 stored")
    assert names_in(client, "packed") == ["sample.tgz", "train-000000.tar"]
    assert members(client.get("packed", "train-000000.tar")) == {path.name: path.read_bytes() for path in some}


def test_a_cancelled_upload_stores_nothing_and_a_page_with_uploads_is_not_left_unasked(
    guarded: Cluster, profile: Profile, client: Client, tmp_path: Path
) -> None:
    watched, page = zone(guarded, profile, "cancelled")
    watched.expected += ["dialog: "]
    session = page.context.new_cdp_session(page)
    slow = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": 1_000_000}
    session.send("Network.enable")
    session.send("Network.emulateNetworkConditions", slow)
    paths = [write_sparse(tmp_path / f"{number}.bin", 40_000_000) for number in range(4)]
    page.locator("#upload-files").set_input_files(paths)
    rows = page.locator("#upload li")
    expect(rows).to_have_count(2)  # at a time
    wait_for(lambda: rows.first.locator("progress").evaluate("(bar) => bar.value") > 200_000, "progress")
    expect(rows.first).to_contain_text("B/s")
    page.close(run_before_unload=True)
    wait_for(lambda: any(text.startswith("dialog: ") for text in watched.wrong) or page.title() == "", "the question")
    assert not page.is_closed()
    assert findings(page) == []
    rows.first.get_by_role("button", name="Cancel").click()
    expect(rows.first).to_have_text("0.bin: was cancelled")
    expect(page.locator("#upload [role=status]")).to_have_text("1 cancelled, 3 to go")
    page.get_by_role("button", name="Cancel all uploads").click()
    said(page, "4 cancelled")
    expect(page.get_by_role("button", name="Cancel all uploads")).to_be_hidden()
    session.send("Network.emulateNetworkConditions", {**slow, "uploadThroughput": -1})
    page.locator("#upload-files").set_input_files(DATA / "sample.tgz")
    said(page, "1 stored, 4 cancelled")
    assert names_in(client, "cancelled") == ["sample.tgz"]


def test_of_very_many_uploads_the_lines_of_those_that_run_stay(guarded: Cluster, profile: Profile, tmp_path: Path) -> None:
    """And can be cancelled, while the lines of those that have ended make room."""
    watched, page = zone(guarded, profile, "vanished")
    watched.expected += ["status of 401"]
    held: list[Route] = []
    page.route("**/vanished/held.bin", lambda route: held.append(route))
    page.context.clear_cookies()  # so that all others fail
    paths = [tmp_path / name for name in ("held.bin", *(f"{number:04}.bin" for number in range(1020)))]
    for path in paths:
        path.write_bytes(b"content")
    page.locator("#upload-files").set_input_files(paths)
    line = page.locator("#upload [role=status]")
    expect(line).to_have_text("1020 failed, 1 to go", timeout=4 * DONE_MS)
    rows = page.locator("#upload li")
    expect(rows).to_have_count(1000)
    expect(rows.first).to_contain_text("held.bin: ")
    assert len(held) == 1
    rows.first.get_by_role("button", name="Cancel").click()
    expect(rows.first).to_have_text("held.bin: was cancelled")
    said(page, "1020 failed, 1 cancelled")
    held[0].abort()


def test_three_tries_but_not_for_what_cannot_succeed(
    guarded: Cluster, profile: Profile, client: Client, tmp_path: Path
) -> None:
    watched, page = zone(guarded, profile, "tried")
    watched.expected += ["ERR_FAILED", "status of 503", "status of 400", "status of 412", "ERR_CONNECTION"]
    tries: dict[str, int] = {}

    def hinder(route: Route) -> None:
        name = route.request.url.rpartition("/")[2]
        number = tries[name] = tries.get(name, 0) + 1
        if name == "lost.bin" and number == 1:
            client.put("tried", name, b"content")  # it is stored, and no answer comes
        if name == "busy.bin" and number == 1:
            route.fulfill(status=503, headers={"Retry-After": "1"}, json={"error": {"message": "too busy"}})
        elif name == "never.bin" or number == 1:
            route.abort()
        else:
            route.continue_()

    page.route(re.compile(r"/tried/[a-z]+\.bin$"), hinder)
    paths = [tmp_path / name for name in ("once.bin", "busy.bin", "never.bin", "lost.bin")]
    for path in paths:
        path.write_bytes(b"content")
    page.locator("#upload-files").set_input_files(paths)
    expect(page.get_by_text("try 2 of 3 follows").first).to_be_visible()
    said(page, "2 stored, 1 there already, 1 failed")
    assert tries == {"once.bin": 2, "busy.bin": 2, "never.bin": 3, "lost.bin": 2}
    expect(page.locator("#upload li.failed")).to_contain_text("never.bin: the connection broke off")
    expect(page.locator("#upload li.there-already")).to_have_text("lost.bin: is there with this size, and was kept")
    assert names_in(client, "tried") == ["busy.bin", "lost.bin", "once.bin"]
    # What the server refuses is not tried again, and what a browser would make another address of is not sent.
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "PUT" else None)
    page.get_by_label("Into the folder").fill("%2e%2e/a")
    page.locator("#upload-files").set_input_files(DATA / "sample.tgz")
    said(page, "2 stored, 1 there already, 2 failed")
    expect(page.locator("#upload li.failed").last).to_contain_text("an object name must not have empty, '.' or '..' segments")
    assert len(sent) == 1
    for wrong in ("../photos", "a//b", "./x"):
        page.get_by_label("Into the folder").fill(wrong)
        page.locator("#upload-files").set_input_files(DATA / "sample.tgz")
        said(page, f"Nothing of this is uploaded: {wrong}/sample.tgz cannot be the name of an object. "
             "2 stored, 1 there already, 2 failed")  # fmt: skip
    assert len(sent) == 1


def test_a_large_file_that_is_refused_is_sent_once(guarded: Cluster, profile: Profile, client: Client, tmp_path: Path) -> None:
    """Its answer comes while it is still being sent. So it does when the session has ended meanwhile."""
    watched, page = zone(guarded, profile, "refused")
    watched.expected += ["status of 401", "status of 412", "status of 400"]
    large = write_sparse(tmp_path / "large.bin", 60_000_000)
    page.get_by_label("Into the folder").fill("%2e%2e")
    page.locator("#upload-files").set_input_files(large)
    said(page, "1 failed")
    expect(page.locator("#upload li.failed")).to_contain_text("segments")
    watched.context.clear_cookies()
    page.get_by_label("Into the folder").fill("")
    page.locator("#upload-files").set_input_files(large)
    said(page, "2 failed")
    expect(page.locator("#upload li.failed").last).to_have_text("large.bin: log in again")
    assert names_in(client, "refused") == []


def test_only_who_may_change_something_sees_the_zone(guarded: Cluster, profile: Profile) -> None:
    send(guarded, "PUT", "/v1/buckets/zoned")
    page = profile(guarded.url).open("/ui/buckets/zoned")
    expect(page.get_by_role("heading", name="zoned")).to_be_visible()
    expect(page.locator("#upload")).to_have_count(0)
    assert "upload.js" not in page.content()
    watched = profile(guarded.url, java_script_enabled=False)
    watched.log_in().close()
    page = watched.open("/ui/buckets/zoned?prefix=it%27s/")
    expect(page.get_by_text("Uploads from this page need JavaScript")).to_be_visible()
    expect(page.locator("#upload pre")).to_contain_text(f"'{watched.url}/zoned/it%27s/NAME-%06d.tar'")
    expect(page.locator("#upload-files")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_zone_is_for_everybody(guarded: Cluster, profile: Profile, folder: Path, scheme: str) -> None:
    """On a narrow screen, by the keyboard alone, and with names that are out to do harm."""
    size = {"width": 360, "height": 740}
    watched, page = zone(guarded, profile, f"everybody-{scheme}", viewport=size, color_scheme=scheme)
    expect(page.get_by_role("region", name="Upload")).to_be_visible()
    watched.expected += ["status of 400"]  # a line end cannot be in the name of an object
    page.get_by_label("Into the folder").fill("turned\u202egpj<b>")
    page.keyboard.press("Enter")  # sends no form
    page.get_by_label("Make shards of single files").focus()
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.name") == "samples"
    page.locator("#upload-files").set_input_files(sorted((folder / "odd").glob("*.*")))
    expect(page.locator("#upload li:not([class])")).to_have_count(0, timeout=DONE_MS)
    expect(page.get_by_text("turned⟨202E⟩gpj<b>/with space.txt")).to_be_visible()
    assert findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    expect(page.get_by_role("link", name="turned⟨202E⟩gpj<b>/")).to_be_visible()  # the listing is another one
    page.get_by_role("link", name="Show what is in the bucket now").click()
    expect(page.get_by_role("link", name="turned⟨202E⟩gpj<b>/")).to_be_visible()


def random_files(draw: random.Random) -> dict[str, int]:
    """Names that meet every rule of samples, and sizes."""
    parts = ("a", "b", "a-1", "é", "\U0001f600", "\uff01", "a.d", "__m__", ".hid", "x y", LONG, "z" * 120)
    exts = ("", ".jpg", ".JPG", ".cls", ".seg.png", ".d")
    return {
        "/".join(draw.choices(parts, k=draw.randrange(1, 4))) + draw.choice(exts): draw.randrange(3000)
        for _ in range(draw.randrange(60))
    }


def cut_by_dfc(files: list[tuple[str, int]], limits: dict[str, int]) -> list[tuple[int, int, int]]:
    """Size, samples and members of each shard that `tarshards` cuts."""
    found: list[CutShard] = []
    cutter = ShardCutter(Limits(limits.get("size"), limits.get("samples")), tempfile.gettempdir(), found.append)
    for name, size in files:
        head = member_header(name, size)
        cutter.begin(name, FILE, len(head) + padded(size))
        cutter.write(head + bytes(padded(size)))
    cutter.finish()
    for shard in found:
        shard.file.close()
    return [(shard.size, shard.samples, shard.members) for shard in found]


def test_headers_and_cuts_are_those_of_dfc(guarded: Cluster, profile: Profile) -> None:
    """Also of names and sizes that no test uploads."""
    _, page = zone(guarded, profile, "pure")
    draw = random.Random(3)
    names = {f"{LONG}/{'é' * length}{'x' * (length % 7)}" for length in range(1, 200)} | {"x" * n for n in range(95, 270)}
    names |= {"a/" * 127 + "b", "a" * 155 + "/" + "b" * 100, "a" * 156 + "/" + "b" * 100, "/" + "b" * 100, "d" * 4096}
    cases = [(name, size) for name in sorted(names) for size in (0, 511, 8**11 - 1, 8**11, 2**52 + 1)]
    headers = page.evaluate("(cases) => cases.map(([name, size]) => Array.from(Shards.header(name, size)))", cases)
    assert [case for case, header in zip(cases, headers, strict=True) if bytes(header) != member_header(*case)] == []
    inputs: list[tuple[dict[str, int], dict[str, int]]] = [
        ({f"d/{number}": 1 for number in range(5000)}, {"size": 600_000}),
        ({"a/0.jpg": 1, **{f"d/{number}": 1 for number in range(5000)}, "e/0.jpg": 1}, {"size": 600_000}),
        ({f"film.{number:06}.jpg": 1 for number in range(9000)}, {"samples": 2}),
    ]
    for _ in range(100):
        limits = {"size": draw.randrange(2000, 20_000), "samples": draw.randrange(1, 5)}
        inputs.append((random_files(draw), {name: limits[name] for name in limits if draw.random() < 0.6}))
    cut = """(inputs) => Promise.all(inputs.map(async ([files, limits]) => {
        const shards = await Shards.cut(Object.entries(files).map(([path, size]) => ({ path, size })), limits);
        return shards.map(({ files, size, samples }) => [size, samples, files.map(({ path }) => path)]);
    }))"""
    in_order = 0
    for (files, limits), shards in zip(inputs, page.evaluate(cut, inputs), strict=True):
        paths = [path for _, _, each in shards for path in each]
        assert sorted(paths) == sorted(files)
        in_order += paths == sorted(files, key=lambda path: path.encode())
        expected = cut_by_dfc([(path, files[path]) for path in paths], limits)
        assert [(size, samples, len(each)) for size, samples, each in shards] == expected
        keys = [key[0] if (key := split_key(path)) else "" for path in paths]
        runs = [key for key, _ in groupby(filter(None, keys))]
        assert len(runs) == len(set(runs)), "a key comes back"
    assert len(inputs) > in_order > len(inputs) / 2  # else what has one key had to be brought together
