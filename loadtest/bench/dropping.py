"""The rows about uploads from the page of a bucket: how far a browser grows when a large file or a folder is dropped there.
Every byte has to arrive."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.request import urlopen

from loadtest.bench.context import Bench
from loadtest.bench.row import Row, median
from loadtest.bodies import Body
from loadtest.cluster import Cluster
from loadtest.processes import ProcessFailed, descendants, find_program, meanwhile
from loadtest.scenarios import expect
from loadtest.tarstream import write_member_tar

if TYPE_CHECKING:
    from playwright.sync_api import Page

BUCKET: Final = "dropped"
TAR_BYTES: Final = 1_000_000_000
MEMBER_BYTES: Final = 100_000
SAMPLES: Final = 2000  # of two files each
PICTURE_BYTES: Final = (50_000, 150_000)
RUNS_MAX: Final = 3  # each writes and reads a lot
WANTED_MB: Final = 300
LOOK_S: Final = 0.1
SETTLE_S: Final = 2.0
DONE_S: Final = 300.0
FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
# The longest task of the page is what it keeps people waiting for.
WATCH_TASKS: Final = """() => { window.heldMs = 0; new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) window.heldMs = Math.max(window.heldMs, duration);
}).observe({ type: "longtask" }); }"""


@dataclass(frozen=True, slots=True)
class Upload:
    """What an upload took: seconds, the growth of the browser in MB, the longest task of the page in ms (0: below 50)."""

    seconds: float
    grown_mb: float
    held_ms: float


def file(bench: Bench) -> list[Row]:
    """One tar of 1 GB, which is stored as it is."""
    path = bench.directory / "large.tar"
    names = write_member_tar(path, TAR_BYTES, MEMBER_BYTES)
    digest = _digest(path.open("rb"))

    def check(started: Cluster) -> None:
        if (found := _digest(urlopen(f"{started.targets[0]}/{BUCKET}/{path.name}"))) != digest:
            raise ProcessFailed(f"what is stored has the digest {found}, the file {digest}")
        _check_samples(started, len(names))

    try:
        return [_row("page-drop-file", f"a tar of {TAR_BYTES / 1e9:.0f} GB", _runs(bench, path, check))]
    finally:
        path.unlink()


def folder(bench: Bench) -> list[Row]:
    """A folder of 4,000 files, a picture and its class for each sample, which becomes a shard in the browser."""
    root = bench.directory / "photos"
    _write_folder(root)

    def check(started: Cluster) -> None:
        expected = {str(path.relative_to(root.parent)): path for path in root.rglob("*.*")}
        with (
            urlopen(f"{started.targets[0]}/{BUCKET}/photos-000000.tar") as answer,
            tarfile.open(fileobj=answer, mode="r|") as archive,
        ):
            for member in archive:
                stored = archive.extractfile(member)
                if stored is None or stored.read() != expected.pop(member.name).read_bytes():
                    raise ProcessFailed(f"{member.name} is not as it was")
        if expected:
            raise ProcessFailed(f"{len(expected)} files are missing, {next(iter(expected))} among them")
        _check_samples(started, SAMPLES)

    try:
        return [_row("page-drop-folder", f"a folder of {2 * SAMPLES:,} files", _runs(bench, root, check))]
    finally:
        shutil.rmtree(root)


def _row(name: str, what: str, runs: list[Upload]) -> Row:
    grown, seconds = [run.grown_mb for run in runs], [run.seconds for run in runs]
    reached = max(grown)
    held_ms = max(run.held_ms for run in runs)
    each = ", ".join(f"{mb:.0f}" for mb in grown)
    note = f"runs: {each} MB; longest task of the page: {f'{held_ms:.0f} ms' if held_ms else 'less than 50 ms'}"
    return Row(
        name,
        f"{what} dropped into the page of a bucket: growth of the browser, all its processes, at most",
        f"{reached:.0f} MB",
        f"in {median(seconds):.1f} s",
        reached,
        WANTED_MB,
        "MB",
        at_most=True,
        note=note,
        samples={"grown_mb": grown, "seconds": seconds},
    )


def _runs(bench: Bench, path: Path, check: Callable[[Cluster], None]) -> list[Upload]:
    """Upload it with a new browser into a new bucket, a few times."""
    started, runs = bench.disk_cluster, list[Upload]()
    for _ in range(min(bench.pairs, RUNS_MAX)):
        started.make_bucket(BUCKET, "relaxed")
        with browser_page(f"{started.url}/ui/buckets/{BUCKET}") as page:
            runs.append(_upload(page, path))
        check(started)
        with contextlib.closing(started.connect()) as connection:
            expect(connection.request("DELETE", f"/v1/buckets/{BUCKET}?force=1"), 200, 202, 204)
    return runs


@contextlib.contextmanager
def browser_page(url: str) -> Iterator[Page]:
    """A page in a Chromium with a new profile."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise ProcessFailed("this row needs Playwright: pip install playwright") from None
    program = find_program("chromium")
    if program is None:
        raise ProcessFailed("this row needs a browser: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        try:
            page = browser.new_page()
            page.goto(url)
            yield page
        finally:
            browser.close()


def _upload(page: Page, path: Path) -> Upload:
    """Drop a file or a folder, and wait until it is stored as one object."""
    page.evaluate(WATCH_TASKS)
    time.sleep(SETTLE_S)  # what the browser does after its start is not the upload's
    before = _browser_bytes()
    with _most() as most:
        begin = time.monotonic()
        _drop(page, path)
        status = page.locator("#upload [role=status]")
        deadline = begin + DONE_S
        while (said := status.inner_text()) != "1 stored":
            if time.monotonic() > deadline or re.search("failed|Nothing|there already", said):
                raise ProcessFailed(f"the page says: {said or '(nothing)'}")
            time.sleep(LOOK_S)
        seconds = time.monotonic() - begin
    return Upload(seconds, (max(most) - before) / 1e6, page.evaluate("heldMs"))


def _drop(page: Page, path: Path) -> None:
    box = page.get_by_role("heading", level=1).bounding_box()
    if box is None:
        raise ProcessFailed("the page has no heading to drop something at")
    session = page.context.new_cdp_session(page)
    data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, "x": box["x"] + 5, "y": box["y"] + 5, "data": data})


@contextlib.contextmanager
def _most() -> Iterator[list[int]]:
    """The bytes of the browser, looked at often by a thread. One figure at least, when the block is over."""
    found = list[int]()

    def look(over: threading.Event) -> None:
        while not found or not over.wait(LOOK_S):
            found.append(_browser_bytes())

    with meanwhile(look):
        yield found


def _browser_bytes() -> int:
    """The memory of all processes of the browser, in bytes; what they share counts once (the sum of their PSS)."""
    total = 0
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):  # it has ended
            if "chrom" in Path(f"/proc/{pid}/exe").readlink().name:
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                total += sum(1024 * int(size) for size in re.findall(r"^Pss: +(\d+) kB", rollup, re.MULTILINE))
    if total == 0:
        raise ProcessFailed("no process of the browser was found")
    return total


def _write_folder(root: Path) -> None:
    for number in range(SAMPLES):
        place = root / f"class{number % 10}"
        place.mkdir(parents=True, exist_ok=True)
        low, high = PICTURE_BYTES
        (place / f"{number:06d}.jpg").write_bytes(Body(number, low + number * 7919 % (high - low)).read())
        (place / f"{number:06d}.cls").write_text(str(number % 10))


def _digest(opened: contextlib.AbstractContextManager[Any]) -> str:
    with opened as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _check_samples(started: Cluster, samples: int) -> None:
    with contextlib.closing(started.connect()) as connection:
        listed: Any = expect(connection.request("GET", f"/{BUCKET}/", headers={"Accept": "application/json"}), 200).json()
    if (found := sum(each["samples"] for each in listed["objects"])) != samples:
        raise ProcessFailed(f"{found} samples are there, not {samples}")
