"""The rows about the pages: what a browser loads first, a grid of pictures, the ends of a large shard, thumbnails, and what
whoever reads shards feels of people who look at them."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from loadtest.addresses import parse_base_url
from loadtest.bench.bulk import discard
from loadtest.bench.context import RELAXED_BUCKET, Bench
from loadtest.bench.row import Row, alternated, median, rate_ratio_row
from loadtest.bodies import Body
from loadtest.cluster import Cluster
from loadtest.connection import Answer, Connection
from loadtest.images import GREY, png
from loadtest.processes import ProcessFailed, meanwhile, memory_bytes, processor_seconds
from loadtest.scenarios import expect, put_body
from loadtest.tarstream import empty_members, tar_of

CONNECTIONS: Final = 6  # of a browser to one host
GRID: Final = 60
PHOTO: Final = (500, 375)
SAMPLES: Final = 1_000_000
BROWSERS: Final = 4
PAGES: Final = 10  # that they look at in turn
LOOK_S: Final = 2.0  # how long somebody looks at a page who is in a hurry
BESIDE_ROUNDS: Final = 8  # as many as take some seconds, so that all of them turn pages
PIXELS: Final = 192


def load(bench: Bench) -> list[Row]:
    """What the first look at `/ui` transfers: the page and its files, compressed, as a browser asks for them."""
    with contextlib.closing(_browser(bench.disk_cluster.url)) as connection:
        page = _asked(connection, "/ui")
        text = gzip.decompress(page.body).decode()
        files = re.findall(r'<(?:script|link)[^>]*? (?:src|href|data-worker)="([^"]+)"', text)
        files += re.findall(r'data-worker="([^"]+)"', text)
        if elsewhere := [url for url in files if urlsplit(url).netloc]:
            raise ProcessFailed(f"the page loads {elsewhere}")
        sizes = {url: len(_asked(connection, url).body) for url in dict.fromkeys(files)}
    scripts = sum(size for url, size in sizes.items() if url.endswith(".js"))
    total = len(page.body) + sum(sizes.values())
    what = "first load of /ui, compressed, as transferred"
    return [
        Row("page-load", what, f"{total / 1000:.1f} kB", "", total / 1000, 150, "kB", at_most=True, note=f"{len(sizes)} files"),
        Row("page-scripts", "scripts of it", f"{scripts / 1000:.1f} kB", "", scripts / 1000, 45, "kB", at_most=True),
    ]


def grid(bench: Bench) -> list[Row]:
    """A page of a shard with 60 photographs, as a browser loads it: the first time, and when the small ones are at hand."""
    started, colds_s, warms_s, plain_s, waits_s = bench.disk_cluster, *(list[float]() for _ in range(4))
    with contextlib.closing(started.connect(started.targets[0])) as connection:
        put_body(connection, f"/{RELAXED_BUCKET}/small.bin", Body(1, 1024))
    for number in range(bench.pairs):
        name = f"grid-{number}.tar"
        _put(started, name, tar_of((f"{at:06d}.jpg", _photo(1000 * number + at, PHOTO)) for at in range(GRID)))
        _show(started.url, name)  # the page itself, so that the template is loaded; its pictures are not
        with _asking_often(started.targets[0], f"/{RELAXED_BUCKET}/small.bin") as waited_s:
            colds_s.append(_look(started.url, name))
        waits_s.append(max(waited_s))
        warms_s.append(_look(started.url, name))
        begin = time.perf_counter()
        _fetch_all(started.url, _show(started.url, name))
        plain_s.append(time.perf_counter() - begin)
    cold, warm, plain = median(colds_s), median(warms_s), median(plain_s)
    what = f"grid of {GRID} pictures of {PHOTO[0]} x {PHOTO[1]}"
    plainly = f"{what}, again, without script: {CONNECTIONS} connections"
    note = f"the slowest small GET at the target meanwhile, median of {bench.pairs} runs: {1000 * median(waits_s):.1f} ms"
    return [
        Row("page-grid-cold", f"{what}, first time", f"{cold:.2f} s", "", cold, 2.0, "s", at_most=True, note=note),
        Row("page-grid-warm", f"{what}, again", f"{warm:.3f} s", "", warm, 0.4, "s", at_most=True),
        Row("page-grid-plain", plainly, f"{plain:.3f} s", "", plain, 0.4, "s", at_most=True),
    ]


def ends(bench: Bench) -> list[Row]:
    """The first and the last page of a shard with a million samples, and what they cost in memory."""
    started, name = bench.disk_cluster, "million.tar"
    _put(started, name, b"".join(empty_members(SAMPLES)))
    pids = [started.pid_of(started.url), started.pid_of(started.targets[0])]
    _show(started.url, name)
    before = sum(memory_bytes(pid)[0] for pid in pids)
    first = [_timed(lambda: _show(started.url, name)) for _ in range(bench.pairs)]
    last = [_timed(lambda: _show(started.url, name, SAMPLES - GRID)) for _ in range(bench.pairs)]
    grown = (sum(memory_bytes(pid)[0] for pid in pids) - before) / 1e6
    note = f"proxy and target grew by {grown:.1f} MB over {2 * bench.pairs} pages"
    what = f"page of a shard of {SAMPLES:,} samples"
    return [
        Row("page-first", f"first {what}", f"{median(first):.3f} s", "", median(first), 0.2, "s", at_most=True, note=note),
        Row("page-last", f"last {what}", f"{median(last):.3f} s", "", median(last), 0.2, "s", at_most=True),
    ]


def thumbnail(bench: Bench) -> list[Row]:
    """The processor time of a small picture of 12 megapixels, and how long a bomb takes to be refused."""
    started, name = bench.disk_cluster, "large.tar"
    photos = [(f"{at:06d}.jpg", _photo(at, (4000, 3000))) for at in range(bench.pairs)]
    _put(started, name, tar_of([("bomb.png", _bomb(20_000)), ("bomb2.png", _bomb(20_001)), *photos]))
    with contextlib.closing(_browser(started.url)) as connection:
        path = f"/{RELAXED_BUCKET}/{name}"
        expect(connection.request("GET", f"{path}?member=bomb.png&thumbnail={PIXELS}"), 422)  # the process is started
        refused_s = _timed(lambda: expect(connection.request("GET", f"{path}?member=bomb2.png&thumbnail={PIXELS}"), 422))
        used_s, target = [], started.pid_of(started.targets[0])
        for member, _ in photos:
            before_s = processor_seconds(target)
            expect(connection.request("GET", f"{path}?member={member}&thumbnail={PIXELS}"), 200)
            used_s.append(processor_seconds(target) - before_s)
    cpu, what = median(used_s), "thumbnail of a 12-megapixel JPEG: processor time, with the target's"
    return [
        Row("thumbnail", what, f"{cpu:.3f} s", "", cpu, 0.3, "s", at_most=True),
        Row("bomb", "bomb of 400 megapixels refused", f"{refused_s:.4f} s", "", refused_s, 0.1, "s", at_most=True),
    ]


def beside(bench: Bench) -> list[Row]:
    """Large GETs while four people page through grids, and while nobody does.

    The people, their pages and whoever reads the large objects share the processors of this machine, so two rows are added that
    nothing is required of: programs that page without a pause, and the same from nginx, which has the pages as files."""
    started, name = bench.disk_cluster, "beside.tar"
    _put(started, name, tar_of((f"{at:06d}.jpg", _photo(at, PHOTO)) for at in range(PAGES * GRID)))
    urls = [started.targets[0] + path for path in bench.objects]
    for number in range(PAGES):
        _look(started.url, name, number * GRID)  # the small pictures are made
    files = _as_files(bench.disk_nginx.root, started.url, name)

    def beside_nobody() -> float:
        return discard(urls, BESIDE_ROUNDS)

    def beside_four(look: Callable[[int], object], every_s: float) -> float:
        with _paging(look, every_s):
            return beside_nobody()

    def ours(number: int) -> float:
        return _look(started.url, name, number % PAGES * GRID)

    def theirs(number: int) -> None:
        with contextlib.closing(_browser(bench.disk_nginx.url)) as connection:
            for path in files[number % PAGES]:
                expect(connection.request("GET", path), 200)

    rows = []
    for row, what, look, every_s, required in (
        ("page-beside", f"{BROWSERS} people look at a grid every {LOOK_S:g} s", ours, LOOK_S, 0.9),
        ("page-robots", f"{BROWSERS} programs page without a pause", ours, 0.0, None),
        ("page-robots-nginx", f"{BROWSERS} programs page without a pause at nginx", theirs, 0.0, None),
    ):
        with_them, without = alternated(bench.pairs, functools.partial(beside_four, look, every_s), beside_nobody)
        rows.append(rate_ratio_row(row, f"large GETs while {what}", "without them", with_them, without, required))
    return rows


@contextlib.contextmanager
def _paging(look: Callable[[int], object], every_s: float) -> Iterator[None]:
    """Four who look at page after page, each its own way, one every so many seconds at most."""
    over = threading.Event()

    def page_through(number: int) -> None:
        over.wait(every_s * number / BROWSERS)
        while not over.is_set():
            began = time.monotonic()
            look(number)
            number += 1
            over.wait(max(0.0, every_s - (time.monotonic() - began)))

    with ThreadPoolExecutor(BROWSERS) as pool:
        browsers = [pool.submit(page_through, number) for number in range(BROWSERS)]
        try:
            yield
        finally:
            over.set()
        for each in browsers:
            each.result()


def _as_files(root: Path, url: str, name: str) -> list[list[str]]:
    """Each page of a shard as nginx may serve it: the path of the page, then that of its pictures."""
    (root / "pages").mkdir(exist_ok=True)
    pages: list[list[str]] = []
    with contextlib.closing(_browser(url)) as connection:
        for number in range(PAGES):
            shown = f"/ui/shard?bucket={RELAXED_BUCKET}&object={name}&start={number * GRID}"
            pages.append([])
            for at, path in enumerate([shown, _together(_show(url, name, number * GRID))]):
                pages[-1].append(f"/pages/{number}-{at}")
                (root / pages[-1][-1].lstrip("/")).write_bytes(_asked(connection, path).body)
    return pages


def _browser(url: str) -> Connection:
    return Connection(parse_base_url(url, allow_remote=False))


def _asked(connection: Connection, path: str) -> Answer:
    return expect(connection.request("GET", path, headers={"Accept-Encoding": "gzip", "Accept": "text/html"}), 200)


def _show(url: str, name: str, start: int = 0) -> list[str]:
    """Load a page of a shard; the paths of its pictures."""
    with contextlib.closing(_browser(url)) as connection:
        path = f"/ui/shard?bucket={RELAXED_BUCKET}&object={name}&start={start}"
        text = gzip.decompress(_asked(connection, path).body).decode()
    if text.count("<li>") != GRID:
        raise ProcessFailed(f"{path} shows {text.count('<li>')} samples")
    return [unescape(found) for found in re.findall(r'<img src="([^"]+)"', text)]


def _look(url: str, name: str, start: int = 0) -> float:
    """Load a page of a shard and its pictures, as the script of the page does; the seconds that it took."""
    begin = time.perf_counter()
    with contextlib.closing(_browser(url)) as connection:
        pictures = expect(connection.request("GET", _together(_show(url, name, start))), 200).body
    found = at = 0
    while at < len(pictures) and pictures[at]:
        found += b".jpg" in pictures[at : at + 100]
        at += 512 * (1 + -(-int(pictures[at + 124 : at + 135], 8) // 512))
    if found != GRID:
        raise ProcessFailed(f"the page has {found} pictures")
    return time.perf_counter() - begin


def _together(pictures: Sequence[str]) -> str:
    """The path of all small pictures of a grid, from those of each."""
    numbers = [re.findall(r"[?]number=(\d+)&", path)[0] for path in pictures]
    return re.sub(r"(?<=[?])number=\d+", f"number={','.join(numbers)}", pictures[0])


def _fetch_all(url: str, pictures: Sequence[str]) -> None:
    def fetch(first: int) -> None:
        with contextlib.closing(_browser(url)) as connection:
            for path in pictures[first::CONNECTIONS]:
                expect(connection.request("GET", path), 200)

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(fetch, range(CONNECTIONS)))


@contextlib.contextmanager
def _asking_often(url: str, path: str) -> Iterator[list[float]]:
    """Ask for something small, again and again: how long each answer took."""
    waited_s: list[float] = []

    def ask(over: threading.Event) -> None:
        with contextlib.closing(_browser(url)) as connection:
            while not over.is_set():
                waited_s.append(_timed(lambda: expect(connection.request("GET", path), 200)))
                time.sleep(0.002)

    with meanwhile(ask):
        yield waited_s


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _put(started: Cluster, name: str, content: bytes) -> None:
    with contextlib.closing(started.connect(started.targets[0])) as connection:
        expect(connection.request("PUT", f"/{RELAXED_BUCKET}/{name}", body=content), 200, 201)


def _photo(seed: int, size: tuple[int, int]) -> bytes:
    """A JPEG as noisy as a photograph: about 0.4 bytes a pixel."""
    from PIL import Image

    width, height = size
    coarse = Image.frombytes("RGB", (width // 8, height // 8), _noise(seed, 3 * (width // 8) * (height // 8)))
    image = coarse.resize(size, Image.Resampling.BICUBIC)
    fine = Image.frombytes("RGB", size, _noise(seed + 1, 3 * width * height))
    content = io.BytesIO()
    Image.blend(image, fine, 0.15).save(content, "JPEG", quality=90)
    return content.getvalue()


def _noise(seed: int, count: int) -> bytes:
    import numpy as np

    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8).tobytes()


def _bomb(side: int) -> bytes:
    """A PNG of so many zeros a side, grey, which compress to nearly nothing."""
    packer, row = zlib.compressobj(9), bytes(side + 1)
    data = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    return png(side, side, GREY, data)
