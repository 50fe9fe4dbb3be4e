"""Somebody who may write into a bucket fills it with all that could do harm: no page runs it, asks others, or falls over."""

from __future__ import annotations

import gzip
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import pytest
from browser import hostile
from browser.conftest import EVIL, TOKEN, Profile, Watched
from browser.hostile import BUCKET, CONTROLS, CROWD, OWNED, PATTERN, SET, SHARD, SQUEEZED, TEXTS, path
from browser.test_upload import drop
from harness import Cluster, command_line, parent, wait_for
from playwright.sync_api import Page, expect
from security.wire import Wire, ask

import dfc.ui.face
from dfc.http.faces import Endpoint, Handlers

RIGHT: Final = {"Authorization": f"Bearer {TOKEN}"}
OUT: Final = "hostile-out"
GRACE_S: Final = 2  # for a body that does not come
MEMORY_BYTES_MAX: Final = 500 << 20  # of a node: its caches, a grid of pictures, and a list of 240,000 fields
DONE_MS: Final = 60_000
# A picture that cannot be decoded is a failed request to browsers; so is a page that says what is wrong with a form.
EXPECTED: Final = ("status of 422", "status of 4")


def send(cluster: Cluster, method: str, target: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(cluster.url + target, body or None, {**RIGHT, **headers}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def address(page: str, **query: object) -> str:
    return f"/ui/{page}?{urlencode({'bucket': BUCKET, **query}, errors='surrogateescape')}"


def run_job(cluster: Cluster, operation: str, shards: Any, pattern: str, **options: Any) -> str:
    spec = {
        "operation": operation, "label": "".join(TEXTS)[:256], "options": options,
        "input": {"bucket": BUCKET, "shards": shards}, "output": {"bucket": OUT, "pattern": pattern},
    }  # fmt: skip
    status, said = send(cluster, "POST", "/v1/jobs", json.dumps(spec).encode())
    assert status in (200, 201, 202), said
    return str(json.loads(said)["id"])


class Filled:
    """A cluster with the bucket, and jobs about it: one of them fails, with the texts in its error."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        members = hostile.members()
        few = [each for each in members if not each[0].startswith(("a.", "p-"))]
        self.stored = {SHARD: hostile.shard(members), SET % 0: hostile.shard(few), SET % 1: hostile.shard(few)}
        self.stored |= {SQUEEZED: gzip.compress(self.stored[SHARD], 1), CROWD: hostile.crowd()}
        self.stored |= dict.fromkeys(hostile.names(), hostile.PAGE.encode())
        size = 2 * len(self.stored[SET % 0])
        for name, numbers in (("report.json", str(2**63 - 1)), ("digits.json", "9" * 4300)):
            self.stored[name] = hostile.report(2, size, numbers)
        self.stored |= {f".dfc/jobs/{name}.json": content for name, content in hostile.records().items()}
        for name, content in self.stored.items():
            status, said = send(cluster, "PUT", path(name), content)
            assert status == 201, (name, said)
        self.jobs = [
            run_job(cluster, "sort", [SET % 0, SET % 1], "sorted-%06d.tar", by="cls"),
            run_job(cluster, "validate", [SHARD], f"{TEXTS[0]}\u202e.json"),
        ]
        self.states = [wait_for(lambda job=job: self._end_of(job), "a job to end", 120) for job in self.jobs]
        status, said = send(cluster, "GET", f"{address('shard', object=SHARD)}")
        assert status == 200
        count = re.search(rb"([0-9]+) samples", said)
        assert count is not None
        self.samples = int(count[1])

    def _end_of(self, job: str) -> Any:
        found = json.loads(send(self.cluster, "GET", f"/v1/jobs/{job}")[1])
        return found if found["finished"] else None

    def pages(self) -> dict[str, list[str]]:
        """The addresses of pages by the patterns of their routes."""
        shards = (SHARD, SQUEEZED, CROWD, SET % 0, hostile.names()[0], "report.json")
        samples = [address("sample", object=SHARD, number=number) for number in range(self.samples)]
        found = [address("search", key=key, how=how) for key in ("a", "<", TEXTS[0]) for how in ("exact", "contains")]
        prefixes = [urlencode({"prefix": f"{name}/"}) for name in ("", *hostile.names()[:6])]
        return {
            "/ui": ["/ui"],
            "/ui/login": [f"/ui/login?{urlencode({'then': then})}" for then in (*TEXTS, "/ui/\\evil.example")],
            "/ui/buckets": ["/ui/buckets"],
            "/ui/buckets/{bucket}": [f"/ui/buckets/{BUCKET}", *(f"/ui/buckets/{BUCKET}?{each}" for each in prefixes[1:])],
            "/ui/buckets/{bucket}/datasets": [f"/ui/buckets/{BUCKET}/datasets", f"/ui/buckets/{OUT}/datasets"],
            "/ui/shard": [*(address("shard", object=each) for each in shards), address("shard", object=SHARD, fields="<b>")],
            "/ui/members": [address("members", object=each) for each in shards[:4]],
            "/ui/sample": [*samples, address("sample", object=SQUEEZED, number=0), address("sample", object=CROWD, number=1)],
            "/ui/dataset": [address("dataset", shards=each) for each in (PATTERN, SHARD, CROWD)],
            "/ui/search": [address("search"), *found, address("search", key="0", how="prefix", shards=CROWD)],
            "/ui/jobs": ["/ui/jobs", f"/ui/jobs?{urlencode({'token': TEXTS[0]})}"],
            "/ui/jobs/{job}": [f"/ui/jobs/{job}" for job in self.jobs],
            "/ui/jobs/new": [
                "/ui/jobs/new", address("jobs/new", operation="sort", shards=PATTERN), f"/ui/jobs/new?again={self.jobs[0]}",
            ],
            "/ui/nodes/{node}": [f"/ui/nodes/{node['id']}" for node in self.cluster.map()["nodes"]],
            "/ui/rates": ["/ui/rates"],
        }  # fmt: skip


FILES: Final = {"/ui/static/{version}/{name}", "/favicon.ico", "/ui/live"}  # no pages


def endpoints() -> list[Endpoint]:
    """All that the face of the pages declares."""
    assert dfc.ui.face.Pages
    return [
        each for kind in Handlers.__subclasses__() if kind.__module__.startswith("dfc.ui.") for each in kind.ENDPOINTS
    ]  # fmt: skip


@pytest.fixture(scope="module")
def filled(start_cluster: Callable[..., Cluster]) -> Iterator[Filled]:
    environment = {"DFC_TOKEN": TOKEN, "DFC_BODY_GRACE_S": str(GRACE_S), "DFC_JOBS_WORKERS": "2"}
    found = Filled(start_cluster(targets=2, disks=1, environment=environment))
    yield found
    for log in (found.cluster.directory / "logs").glob("*.log"):
        for line in log.read_text().splitlines():
            assert '"traceback"' not in line, f"{log.name}: {json.loads(line)}"


@pytest.fixture(autouse=True)
def unhurt(filled: Filled) -> Iterator[None]:
    """After each test: all nodes are up, and their memory is bounded."""
    yield
    assert filled.cluster.is_healthy()
    for name, pid in filled.cluster.children().items():
        status = Path(f"/proc/{pid}/status").read_text()
        used = re.search(r"VmRSS:\s+([0-9]+) kB", status)
        assert used is not None
        assert int(used[1]) << 10 < MEMORY_BYTES_MAX, name


def watched_page(watched: Watched) -> Page:
    """A page in which a script that runs leaves a mark, and whose answers are looked at."""
    page = watched.page()

    def look(status: int, url: str) -> None:
        if status >= 500 and not (status == 503 and "thumbnail=" in url):  # too many pictures are waited for
            watched.wrong.append(f"{status} for {url}")

    page.on("response", lambda answer: look(answer.status, answer.url))
    page.on("popup", lambda popup: watched.wrong.append(f"window {popup.url}"))
    return page


def assert_tame(watched: Watched, page: Page) -> None:
    """Nothing has run, and no element is there that no template has."""
    assert page.evaluate("window.__pwned") is None, page.url
    odd = "iframe, base, object, embed, math, foreignObject, style, script:not([src^='/ui/static/']), main meta, main link"
    assert page.locator(odd).count() == 0, page.url
    handlers = (
        "[...document.querySelectorAll('*')].filter((e) => [...e.attributes].some((a) => /^on|^srcdoc|^style/.test(a.name)))"
    )
    assert page.evaluate(f"{handlers}.length") == 0, page.url
    links = "[...document.querySelectorAll('[href], [src], [action]')].map((e) => e.href ?? e.src ?? e.action)"
    strange = [
        each
        for each in page.evaluate(links)
        if isinstance(each, str) and not each.removeprefix("blob:").startswith(f"{watched.url}/")
    ]
    assert strange == [], page.url
    shown = page.locator("main").inner_text() if page.locator("main").count() else ""
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b\x07\u200b]", shown), page.url


@pytest.mark.parametrize("has_script", [True, False])
def test_no_page_runs_asks_others_or_falls_over(filled: Filled, profile: Profile, has_script: bool) -> None:
    assert filled.states[0]["state"] == "failed"
    assert "cls" in filled.states[0]["error"]["message"]
    assert "<" in filled.states[0]["error"]["message"]
    pages = filled.pages()
    assert {each.pattern for each in endpoints() if "GET" in each.methods} == {*pages, *FILES}, "a page is not attacked"
    watched = profile(filled.cluster.url, java_script_enabled=has_script)
    watched.expected += EXPECTED
    watched.log_in().close()
    page = watched_page(watched)
    for pattern, addresses in pages.items():
        for each in addresses if has_script else addresses[:: 1 + len(addresses) // 12]:
            answer = page.goto(watched.url + each)
            assert answer is not None
            assert answer.status == 200, (each, answer.text())
            if has_script and pattern in ("/ui/shard", "/ui/dataset"):  # their pictures come late
                page.wait_for_load_state("networkidle")
            assert_tame(watched, page)
    page.goto(watched.url + address("dataset", shards=PATTERN))
    expect(page.get_by_role("heading", level=1)).to_have_text(PATTERN.replace("\u202e", "⟨202E⟩"))
    expect(page.get_by_text(f"Samples by {TEXTS[1]}")).to_be_visible()  # of the forged report that can be read


def test_the_live_feed_and_the_small_pictures_end_well(filled: Filled) -> None:
    cluster = filled.cluster
    run_job(cluster, "stats", [SET % 0], f"{TEXTS[1]}{TEXTS[0]}.json", by="cls")
    with urllib.request.urlopen(urllib.request.Request(f"{cluster.url}/ui/live", headers=RIGHT), timeout=60) as feed:
        lines = [next(feed).decode() for _ in range(14)]
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert len(data) >= 3
    assert all(re.match(r"(retry: 500|event: figures|data: \{.*\})?\n", line) for line in lines)
    assert not any("evil" in line or "__pwned" in line for line in lines)
    for name in hostile.PICTURES:
        status, said = send(cluster, "GET", f"{path(SHARD)}?{urlencode({'member': f'p-{name}', 'thumbnail': 96})}")
        assert (status, said[:2]) == (200, b"\xff\xd8") or (status == 422 and b"not_a_picture" in said), (
            name,
            status,
            said[:99],
        )
        assert status == 422 or "bomb" not in name
    targets = [pid for name, pid in cluster.children().items() if name.startswith("target")]

    def makers() -> list[int]:
        found = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()]
        return [pid for pid in found if "sandbox" in command_line(pid) and parent(pid) in targets]

    assert len(makers()) <= 2 * len(targets)
    assert all("R" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in makers())


def test_names_do_not_get_into_heads_and_files_run_nothing(filled: Filled, profile: Profile) -> None:
    members = [name for name, _ in hostile.members() if "\udcff" not in name and "\0" not in name]
    targets = [path(name) for name in filled.stored if len(name) < 900]
    targets += [f"{path(SHARD)}?{urlencode({'member': name})}" for name in members if len(name) < 1000]
    known = {
        "server", "date", "x-request-id", "content-type", "etag", "x-dfc-checksum", "x-dfc-version", "last-modified",
        "accept-ranges", "x-dfc-samples", "content-length", "x-content-type-options", "content-security-policy", "x-dfc-map",
        "connection", "cross-origin-resource-policy", "transfer-encoding", "content-range",
    }  # fmt: skip
    for target in targets:
        reply = ask(filled.cluster.url, "GET", target, {**RIGHT, "Range": "bytes=0-9"})
        assert reply.status in (200, 206, 416), (target, reply)
        assert set(reply.headers) <= known, target
        if reply.status != 416:  # of what is empty, which says no more than that
            assert reply.headers["content-security-policy"] == "sandbox"
            assert reply.headers["x-content-type-options"] == "nosniff"
    watched = profile(filled.cluster.url)
    watched.expected += EXPECTED
    page = watched_page(watched)
    page.goto(watched.url + address("members", object=SET % 0))
    for link in page.locator("tbody a").all()[::40]:
        with page.expect_download() as waiting:
            link.click()
        assert not re.search(r"[\x00-\x1f/\\\u202e]|^\.", waiting.value.suggested_filename)
    assert_tame(watched, page)
    # By its own address, a file runs nothing either. It may load pictures, as in a notebook; no page opens one like that.
    files = profile(filled.cluster.url)
    files.expected += [*EXPECTED, "sandbox", "favicon.ico", EVIL]  # what is stored is no page of this origin
    page = watched_page(files)
    for name in [each for each in hostile.names() if each.endswith(".html")][:4]:
        page.goto(files.url + path(name))
        assert page.evaluate("window.__pwned") is None


BAD: Final = (
    "-1", "1e99", "9" * 12, "9" * 5000, "\0", b"\xff", b"\xed\xa0\x80", "%00", "", "NaN", "0x10", "\uff11", "1\n", TEXTS[1],
    "../../x", "{0..99999999999999999999}", "x-{000..999999999999999999}.tar", "{" * 300, "*" * 3000, "@999999999999",
    "[" * 4000, "a," * 1000, "\u202e", '["' + 'a","' * 500 + 'a"]', '["\\ud800"]', "{a,b}" * 40,
)  # fmt: skip


def test_whatever_an_address_says_is_answered_with_a_page(filled: Filled) -> None:
    good = {"bucket": BUCKET, "object": SET % 0, "shards": PATTERN, "key": "a", "operation": "sort"}
    targets = []
    for each in endpoints():
        if "GET" not in each.methods or "{version}" in each.pattern:
            continue
        filled_in = each.pattern.format(bucket=BUCKET, job=filled.jobs[0], node="target-0")
        names = sorted((each.query or frozenset()) - {"once"})
        for name in names:
            given = {key: good[key] for key in names if key in good}
            targets += [f"{filled_in}?{urlencode({**given, name: bad})}" for bad in BAD]
            targets.append(f"{filled_in}?{urlencode(given)}&{name}=1&{name}=2")
        tails = ("&".join(f"a{at}=1" for at in range(1500)), "x" * 15_000, "%ff=%ff&%00", "a[]=1&&&;;;=")
        if each.pattern != "/ui/live":
            targets += [f"{filled_in}?{tail}" for tail in tails]
        targets += [re.sub(r"\{\w+\}", quote(bad, safe=""), each.pattern) for bad in BAD if "{" in each.pattern and bad]
    for target in targets:
        reply = ask(filled.cluster.url, "GET", target, {**RIGHT, "Accept": "text/html"})
        assert reply.status == 200 or 400 <= reply.status < 500, (target[:200], reply)
        assert reply.headers.get("content-type") in ("text/html; charset=utf-8", "image/svg+xml"), target[:200]
        assert f"<script>{OWNED}".encode() not in reply.body
    cookie = f"dfc-session-{'0' * 8}=9999999999.{'0' * 16}.{'0' * 64}"
    for bad in (cookie, "a=b; " * 3000, 'x="\\"; ;;=;' + "=" * 900, "\x80\xff=\xfe", "dfc-session-=; " * 500, "__proto__=1"):
        reply = ask(filled.cluster.url, "GET", "/ui/buckets", {"Cookie": bad.encode("latin-1")})
        assert reply.status == 200, bad[:50]
        assert b"Log out" not in reply.body


FORM: Final = "application/x-www-form-urlencoded"


def test_whatever_a_form_says_is_answered_with_a_page_and_changes_nothing(filled: Filled) -> None:
    cluster, buckets = filled.cluster, send(filled.cluster, "GET", "/v1/buckets")[1]
    origin = {"Content-Type": FORM, "Origin": cluster.url}
    posts = [each.pattern.format(bucket=BUCKET, job="0" * 22) for each in endpoints() if "POST" in each.methods]
    assert len(posts) >= 6
    bodies = [b"", b"\xff=\xff", b"%ff=%ff", b"a=1&a=2", b"&".join(b"a%d=" % at for at in range(100)), b"x" * 70_000]
    bodies += [urlencode({"name": bad, "copies": bad, "durability": bad}).encode() for bad in BAD]
    bodies += [urlencode({"name": "other", "copies": bad, "durability": "fsync"}).encode() for bad in ("1e9", "9" * 5000, "0")]
    deep = ["[" * 30_000, "[" * 990 + "]" * 990, '{"a":' * 400 + "1" + "}" * 400, "9" * 5000, "1e9999", '"\\ud800"', "\0"]
    entered = {
        "operation": "map",
        "bucket": BUCKET,
        "shards": SHARD,
        "output_bucket": OUT,
        "pattern": "x-%06d.tar",
        "do": "run",
    }
    jobs = [{**entered, "function": "x", name: bad} for name in ("bucket", "shards", "more", "pattern", "label") for bad in BAD]
    jobs += [
        {**entered, "option.function": "no-such", f"option.{name}": bad}
        for name in ("args", "command", "seed", "timeout")
        for bad in deep
    ]
    for target in posts:
        some = [urlencode(fields).encode() for fields in jobs] if target == "/ui/jobs/new" else []
        for body in [*bodies, *some] if target not in ("/ui/login", "/ui/logout") else bodies[:6]:
            status, said = send(cluster, "POST", target, body or b"=", **origin)
            assert 400 <= status < 500 or target == "/ui/logout", (target, body[:99], status, said)
            assert f"<script>{OWNED}".encode() not in said
        for kind in ("application/json", "multipart/form-data; boundary=x", "text/plain"):
            if target != "/ui/logout":
                assert 400 <= send(cluster, "POST", target, b"name=x", **{**origin, "Content-Type": kind})[0] < 500
    assert send(cluster, "GET", "/v1/buckets")[1] == buckets
    # Bodies that do not end, and those that do not come.
    slow = []
    for target in posts:
        if target in ("/ui/logout", "/ui/login") or "cancel" in target:
            continue  # which read none, or refuse whoever has failed too often
        with Wire(cluster.url) as wire:
            wire.head("POST", target, {**RIGHT, **origin, "Transfer-Encoding": "chunked"})
            for _ in range(80):
                wire.send(b"400\r\n" + b"x" * 1024 + b"\r\n")
            assert wire.answer("POST").status == 413, target
        slow.append(wire := Wire(cluster.url))
        wire.head("POST", target, {**RIGHT, **origin, "Content-Length": "1000"})
        wire.send(b"n")
    for wire in slow:
        with wire:
            assert wire.answer("POST").status == 408
    assert slow


def test_files_with_hostile_names_are_dropped(filled: Filled, profile: Profile, tmp_path: Path) -> None:
    names = {text.replace("/", "\u2215")[:80] for text in (*TEXTS, *CONTROLS) if "\0" not in text and "%00" not in text}
    folder = tmp_path / TEXTS[0]
    folder.mkdir()
    for name in names:
        (tmp_path / f"{name}.bin").write_bytes(b"x")
        (folder / f"{name}.<b>.txt").write_bytes(b"x")
    watched = profile(filled.cluster.url)
    watched.expected += EXPECTED
    watched.log_in().close()
    page = watched_page(watched)
    page.goto(f"{watched.url}/ui/buckets/{OUT}")
    drop(page, [folder, *tmp_path.glob("*.bin")])
    refused = [name for name in names if re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029]", name)]
    said = f"{1 + len(names) - len(refused)} stored, {len(refused)} failed"
    expect(page.locator("#upload [role=status]")).to_have_text(said, timeout=DONE_MS)
    expect(page.locator("#upload li.failed")).to_have_count(len(refused))
    expect(page.locator("#upload li.failed").first).to_contain_text("control characters")
    assert_tame(watched, page)
    page.locator("#upload li a:visible").first.click()
    expect(page.locator(".tiles li")).to_have_count(len(names))
    assert_tame(watched, page)
