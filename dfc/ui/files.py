"""The files of the pages: style, scripts, icon. They never change while a node runs, so browsers keep them."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from functools import cached_property
from importlib.resources import files
from typing import Final, NamedTuple

from dfc.errors import NotFound
from dfc.http.answers import Answer
from dfc.http.exchange import Exchange

TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
KEPT: Final = "public, max-age=31536000, immutable"
KEPT_A_DAY: Final = "public, max-age=86400"


class PageFile(NamedTuple):
    """A file, as it is and compressed."""

    content: bytes
    compressed: bytes
    type: str


class PageFiles:
    """All files in `static`, read when the first one is asked for; by URLs that change with any of them."""

    @cached_property
    def _found(self) -> Mapping[str, PageFile]:
        found = {}
        for path in files("dfc.ui").joinpath("static").iterdir():
            kind = TYPES.get(path.name.rpartition(".")[2])
            if kind is not None:
                content = path.read_bytes()
                found[path.name] = PageFile(content, gzip.compress(content, 9, mtime=0), kind)
        return found

    @cached_property
    def version(self) -> str:
        """What the URLs of files begin with."""
        whole = hashlib.sha256()
        for name, file in sorted(self._found.items()):
            whole.update(name.encode() + b"\0" + file.content)
        return whole.hexdigest()[:12]

    def url(self, name: str) -> str:
        """Return the path of a file. KeyError."""
        assert self._found[name]
        return f"/ui/static/{self.version}/{name}"

    def icon(self, exchange: Exchange) -> Answer:
        """Answer with the icon, at an address that stays the same."""
        answer = self.answer(exchange, self.version, "icon.svg")
        answer.headers = answer.headers.replace(KEPT, KEPT_A_DAY)
        return answer

    def answer(self, exchange: Exchange, version: str, name: str) -> Answer:
        """Answer with a file. NotFound, also for files of another version: a page and its script belong together."""
        file = self._found.get(name)
        if file is None or version != self.version:
            raise NotFound("no such file of the pages, or one of another version of DFC: load the page again")
        headers = [("Content-Type", file.type), ("Cache-Control", KEPT), ("X-Content-Type-Options", "nosniff"), VARY]
        if takes_gzip(exchange):
            return Answer(200, file.compressed, [*headers, ("Content-Encoding", "gzip")])
        return Answer(200, file.content, headers)


VARY: Final = ("Vary", "Accept-Encoding")


def takes_gzip(exchange: Exchange) -> bool:
    """Whether the client says that it takes gzip."""
    given = exchange.headers.get("Accept-Encoding", "").lower().replace(" ", "")
    return any(each.partition(";")[0] == "gzip" and not each.endswith((";q=0", ";q=0.0")) for each in given.split(","))
