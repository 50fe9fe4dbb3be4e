"""The pages do nothing that the API does not do, their files are of one version, and a template knows all that it prints."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from layers import ROOT

from dfc.ui.rendering import PageFiles

UI = ROOT / "dfc" / "ui"
PUBLIC = (ROOT / "dfc" / "api" / "v1", ROOT / "dfc" / "api" / "web.py")
# What the API answers by passing a request on to the target that has the object: by which route.
PASSED_ON = {
    "shards.shard": "`GET, HEAD /{bucket}/{object…}`",
    "listings.page": "`GET /v1/buckets/{bucket}/objects`",  # by `dfc.api.shared`
    "shards.samples": "`?list=samples`",
    "shards.members": "`?list=members`",
    "shards.unsampled": "`?list=unsampled`",
    "shards.unsampled_count": "`?list=unsampled`",
    "shards.beginnings": "`POST /v1/batch`",
    "shards.head": "`GET, HEAD /{bucket}/{object…}`",
    "shards.beginning": "`?number=N&ext=EXT`",
}
USES = {
    "shards", "objects", "buckets", "listings", "keys", "batches", "jobs", "admin", "checks", "operations", "rates", "nodes",
    "search",
}  # fmt: skip


def used(sources: Iterable[str]) -> set[str]:
    """`buckets.create` for `self._buckets.create` or `uses.buckets.create`: what of the use cases is called."""
    found = set()
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
                subject = node.value.attr.lstrip("_")
                if subject in USES:
                    found.add(f"{subject}.{node.attr}")
    return found


def sources_of(*places: Path) -> list[str]:
    paths = [path for place in places for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])]
    return [path.read_text(encoding="utf-8") for path in paths]


def test_pages_use_what_the_api_uses_and_nothing_else() -> None:
    pages, public = used(sources_of(UI)), used(sources_of(*PUBLIC))
    assert {"admin.state", "buckets.create", "listings.page", "operations.all"} <= pages
    assert pages - public - set(PASSED_ON) == set()
    text = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    assert [route for route in PASSED_ON.values() if route not in text] == []


def test_another_use_would_be_found() -> None:
    assert used(["class A:\n    def f(self):\n        return self._admin.forget_everything()"]) == {"admin.forget_everything"}


def test_files_are_small_and_their_urls_change_with_them() -> None:
    files = PageFiles()
    sizes = {name: len(file.content) for name, file in files._found.items()}
    assert {"style.css", "page.js", "worker.js", "upload.js", "icon.svg"} <= set(sizes)
    assert sizes["style.css"] <= 12_000
    own = [UI / "static" / name for name in ("page.js", "worker.js", "upload.js")]
    assert sum(len(path.read_text().splitlines()) for path in own) <= 600
    assert files.url("style.css") == f"/ui/static/{files.version}/style.css"
    other = PageFiles()
    other.__dict__["_found"] = {**files._found, "page.js": files._found["page.js"]._replace(content=b"other")}
    assert other.version != files.version


@pytest.mark.parametrize("path", sorted((UI / "templates").iterdir()), ids=lambda path: path.name)
def test_templates_have_no_inline_scripts_and_styles_and_switch_nothing_off(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=|javascript:", text)
    assert not re.search(r"\|\s*safe\b|autoescape|https?://", text)


def test_a_dark_page_differs_from_a_light_one_in_the_values_of_colours() -> None:
    """So one of them is enough where tests look at how wide things are."""
    style = PageFiles()._found["style.css"].content.decode()
    assert style.count("prefers-color-scheme") == 1
    assert "light-dark(" not in style
    [block] = re.findall(r"@media \(prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}\s*\}", style, re.DOTALL)
    dark = dict(re.findall(r"(--[a-z-]+): (#[0-9a-f]{3,8});", block))
    assert re.sub(r"--[a-z-]+: #[0-9a-f]{3,8};|\s", "", block) == ""
    assert len(dark) > 10
    first, _, _ = style.partition("@media")
    assert all(re.search(rf"{name}: #[0-9a-f]{{3,8}};", first) for name in dark), "colours in the light as well"
