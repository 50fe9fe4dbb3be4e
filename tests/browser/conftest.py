"""A real browser: Chromium, driven by Playwright. One for all tests; each test has a profile of its own."""

from __future__ import annotations

import gzip
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from harness import Cluster
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

# axe-core 4.14.1 of npm, MPL-2.0 as said in it, compressed: finds what people with a screen reader or a keyboard stumble over.
AXE = gzip.decompress((Path(__file__).parent / "axe-core-4.14.1.min.js.gz").read_bytes()).decode()
HOST = "dfc.test"  # resolves to this machine; pages of it are insecure contexts, as those of a machine in a network are
EVIL = "evil.example"
TOKEN = "sesame-0123456789"
LIVE_MS = 20_000  # figures come every second, on a machine that is not busy
NARROW, WIDE = {"width": 360, "height": 740}, {"width": 1280, "height": 800}
# Each pair of width, colours and scripts: no rule of the style sheet asks for more than one of the three.
LOOKS = pytest.mark.parametrize(
    ("size", "scheme", "has_script"),
    [(NARROW, "light", True), (WIDE, "dark", True), (NARROW, "dark", False), (WIDE, "light", False)],
    ids=["360-light-True", "1280-dark-True", "360-dark-False", "1280-light-False"],
)
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-features=LocalNetworkAccessChecks",
    f"--host-resolver-rules=MAP {HOST} 127.0.0.1, MAP {EVIL} 127.0.0.1",
]  # fmt: skip


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Not for longer than a module: Playwright runs an event loop meanwhile, beside which no other one can run."""
    program = shutil.which("chromium")
    assert program is not None, "the tests of the pages need a browser: apt-get install chromium"
    expect.set_options(timeout=LIVE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@dataclass
class Watched:
    """A profile of the browser, and what went wrong in it: nothing may, but for what has one of these `expected` words."""

    context: BrowserContext
    url: str
    wrong: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def page(self) -> Page:
        page = self.context.new_page()
        page.on("console", lambda said: self.wrong.append(f"{said.text} {said.location}") if said.type == "error" else None)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self._check(request.url))
        return page

    def _check(self, url: str) -> None:
        if not url.startswith(("data:", "blob:")) and urlsplit(url).netloc != urlsplit(self.url).netloc:
            self.wrong.append(f"request to {url}")

    def open(self, path: str) -> Page:
        page = self.page()
        answer = page.goto(self.url + path)
        assert answer is not None
        assert answer.status == 200, answer.text()
        return page

    def status_of(self, path: str, page: Page | None = None) -> int:
        """Go there, in a new page if none is given; the status of the answer."""
        answer = (page or self.page()).goto(self.url + path)
        assert answer is not None
        return answer.status

    def log_in(self, then: str = "/ui/buckets") -> Page:
        """Log in as a person does, and return the page that comes then. Only once it is whole, as `open` does: Chromium says
        that a page is closed, and keeps it, when that meets a navigation that is being committed (its issue 536385539), and
        Playwright waits for ever for it to go."""
        page = self.open(f"/ui/login?then={then}")
        page.get_by_label("Token of the cluster").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(self.url + then)
        return page


Profile = Callable[..., Watched]


@pytest.fixture
def profile(chromium: Browser) -> Iterator[Profile]:
    """Makes profiles: `profile(url, **options of a context)`. They are closed, and looked at, at the end."""
    made: list[Watched] = []

    def make(url: str, **options: Any) -> Watched:
        made.append(Watched(chromium.new_context(**options), url.replace("127.0.0.1", HOST)))
        made[-1].context.set_default_timeout(3 * LIVE_MS)
        return made[-1]

    yield make
    for each in made:
        each.context.close()
    assert [text for each in made for text in each.wrong if not any(word in text for word in each.expected)] == []


def findings(page: Page) -> list[str]:
    """What axe finds serious on a page. What is in order, which is a hundred times as much, stays in the browser."""
    found = page.evaluate(AXE + "; axe.run({resultTypes: ['violations']}).then(found => found.violations)")
    return [
        f"{each['id']}: {each['help']}: {[node['html'] for node in each['nodes']][:3]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def assert_for_everybody(page: Page, size: dict[str, int], has_script: bool, what: object) -> None:
    """It is no wider than the window, and axe finds nothing; then it is closed."""
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], f"{what} is wider than the window"
    if has_script:
        assert findings(page) == [], what
    page.close()


def send(cluster: Cluster, method: str, path: str, body: bytes = b"{}") -> bytes:
    """Ask with the token."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with urllib.request.urlopen(urllib.request.Request(cluster.url + path, body, headers, method=method), timeout=60) as answer:
        return bytes(answer.read())


@pytest.fixture(scope="session")
def guarded(start_shared_cluster: Callable[..., Cluster]) -> Cluster:
    """A cluster with a token, for all tests that do not hurt it."""
    return start_shared_cluster(targets=2, disks=1, environment={"DFC_TOKEN": TOKEN})
