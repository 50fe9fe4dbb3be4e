"""Pictures in grids: small ones by the targets, the reason where there is none, the original where none can be made."""

from __future__ import annotations

import io
import json
import urllib.request

import pytest
from browser.conftest import Profile, send
from harness import Cluster, wait_for
from job_shards import tar_of
from pictures import bomb, photo
from PIL import Image
from playwright.sync_api import Page, expect

SHARD = "?bucket=pictures&object=shard.tar"
GRID = 20


def tiff() -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (800, 400), (9, 99, 199)).save(content, "TIFF")
    return content.getvalue()


def put(cluster: Cluster, name: str, members: list[tuple[str, bytes]]) -> None:
    assert json.loads(send(cluster, "PUT", f"/pictures/{name}", tar_of(members)))["samples"] == len(members)


@pytest.fixture(scope="module")
def pictured(guarded: Cluster) -> Cluster:
    shown = [("a.jpg", photo((200, 10, 10))), ("b.jpg", photo((9, 9, 9))[:400]), ("c.png", bomb(20_000)), ("d.tif", tiff())]
    put(guarded, "shard.tar", shown)
    colours = [(200, 10, 10), *[(10, 200, 10)] * (GRID - 2), (10, 10, 200)]
    put(guarded, "grid.tar", [(f"{at:06d}.jpg", photo(colour)) for at, colour in enumerate(colours)])
    return guarded


def widths(page: Page) -> list[int]:
    found: list[int] = page.evaluate("Array.from(document.images, (each) => each.complete ? each.naturalWidth : -1)")
    return found


def test_small_pictures_and_why_there_is_none(pictured: Cluster, profile: Profile) -> None:
    watched = profile(pictured.url)
    watched.expected += ["status of 422"]
    page = watched.open(f"/ui/shard{SHARD}")
    tiles = page.locator(".tiles li")
    expect(tiles.nth(1).locator(".text")).to_contain_text("not a picture that can be decoded")
    expect(tiles.nth(2).locator(".text")).to_contain_text("too large")
    wait_for(lambda: widths(page) == [192, 192], "the pictures of the others")
    # A browser that comes back has them already.
    again: list[str] = []
    page.on("response", lambda answer: again.append(answer.url) if answer.status == 200 and "thumbnail" in answer.url else None)
    page.goto("about:blank")
    page.goto(f"{watched.url}/ui/shard{SHARD}")
    wait_for(lambda: widths(page) == [192, 192], "the pictures from the browser's memory")
    sizes = [page.evaluate("(url) => performance.getEntriesByName(url)[0].transferSize", url) for url in set(again)]
    assert sizes == [0, 0]
    page = watched.open(f"/ui/sample{SHARD}&number=3")
    wait_for(lambda: widths(page) == [384], "a picture of a kind that browsers do not show")
    expect(page.get_by_text("Made small: browsers do not show")).to_be_visible()
    page = watched.open(f"/ui/sample{SHARD}&number=0")
    wait_for(lambda: widths(page) == [500], "the original")
    expect(page.locator("h2", has_text="jpg")).to_contain_text("500 × 375 pixels")
    page = watched.open(f"/ui/sample{SHARD}&number=1")
    expect(page.locator("section.field .text")).to_contain_text("not a picture that can be decoded")


def test_the_pictures_of_a_grid_come_in_one_request(pictured: Cluster, profile: Profile) -> None:
    """Those of one field of a shard. What an answer that breaks off has not brought is asked for one by one."""
    watched = profile(pictured.url)
    watched.expected += ["ERR_FAILED"]
    asked: list[str] = []
    page = watched.page()
    page.on("request", lambda request: asked.append(request.url) if "thumbnail=" in request.url else None)
    page.goto(f"{watched.url}/ui/shard?bucket=pictures&object=grid.tar")
    wait_for(lambda: widths(page) == [192] * GRID, "the pictures")
    (together,) = asked
    assert f"number={','.join(map(str, range(GRID)))}" in together
    assert len(set(page.evaluate("Array.from(document.images, (each) => each.alt)"))) == GRID
    first, last = (page.locator(".tiles img").nth(at).screenshot() for at in (0, GRID - 1))
    assert Image.open(io.BytesIO(first)).convert("RGB").getpixel((60, 60))[0] > 150, "the red one is not the first"
    assert Image.open(io.BytesIO(last)).convert("RGB").getpixel((60, 60))[2] > 150, "the blue one is not the last"
    path = together.removeprefix(watched.url)
    with urllib.request.urlopen(pictured.url + path, timeout=60) as answer:
        tar = answer.read()
    asked.clear()
    page.route(watched.url + path, lambda route: route.fulfill(body=tar[: len(tar) // 2], content_type="application/x-tar"))
    page.reload()
    wait_for(lambda: widths(page) == [192] * GRID, "the pictures, some by themselves")
    assert 0 < len(asked) - 1 < GRID
    page.unroute_all()
    page.route(watched.url + path, lambda route: route.abort())
    page.reload()
    wait_for(lambda: widths(page) == [192] * GRID, "the pictures by themselves")


def test_originals_where_no_small_ones_can_be_made(pictured: Cluster, profile: Profile) -> None:
    """The library is there in tests: a target without it is played."""
    watched = profile(pictured.url)
    watched.expected += ["status of 409"]
    page = watched.page()
    body = json.dumps({"error": {"code": "missing_library", "message": "small pictures need Pillow", "request_id": ""}})
    page.route("**/*thumbnail=*", lambda route: route.fulfill(status=409, body=body, content_type="application/json"))
    page.goto(f"{watched.url}/ui/shard{SHARD}")
    tiles = page.locator(".tiles li")
    wait_for(lambda: widths(page)[0] == 500, "the original")
    expect(tiles.nth(3).locator(".text")).to_have_text("small pictures need Pillow")


def test_the_size_of_tiles_and_their_fields(pictured: Cluster, profile: Profile) -> None:
    watched = profile(pictured.url)
    watched.expected += ["status of 422"]
    page = watched.open(f"/ui/shard{SHARD}")
    page.get_by_label("Pictures").select_option("large")
    page.get_by_label("Fields").fill("jpg, tif")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_label("Fields")).to_have_value("jpg,tif")
    wait_for(lambda: widths(page) == [384, 384], "larger pictures")
    expect(page.locator(".tiles li").nth(2)).not_to_contain_text("png")
    page.get_by_role("link", name="tif", exact=True).click()
    expect(page.get_by_label("Fields")).to_have_value("jpg")
    page.get_by_role("link", name="png", exact=True).click()
    expect(page.get_by_label("Fields")).to_have_value("jpg,png")
    expect(page.locator("a[aria-current=true]")).to_have_text(["jpg", "png"])
    page.get_by_label("Fields").fill("jpeg")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("None of these samples has a field “jpeg”.")).to_be_visible()
    watched.expected += ["status of 400"]
    assert watched.status_of(f"/ui/shard{SHARD}&pixels=97", page) == 400


def test_a_swipe_leads_to_the_next_sample(pictured: Cluster, profile: Profile) -> None:
    watched = profile(pictured.url, has_touch=True, viewport={"width": 360, "height": 740})
    watched.expected += ["status of 422"]  # the next sample has a picture that cannot be decoded
    page = watched.open(f"/ui/sample{SHARD}&number=0")
    swipe = """([from, to]) => {
        const touch = (x) => new Touch({identifier: 1, target: document.body, clientX: x, clientY: 300});
        document.body.dispatchEvent(new TouchEvent('touchstart', {touches: [touch(from)], bubbles: true}));
        document.body.dispatchEvent(new TouchEvent('touchend', {changedTouches: [touch(to)], bubbles: true}));
    }"""
    page.evaluate(swipe, [200, 170])  # too short to be one
    page.evaluate(swipe, [300, 100])
    expect(page.get_by_text("Sample 1 of this shard")).to_be_visible()
    page.evaluate(swipe, [100, 300])
    expect(page.get_by_text("Sample 0 of this shard")).to_be_visible()
