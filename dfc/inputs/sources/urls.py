"""Kinds of URLs, their parts, and how they are shown in messages. Pure; no I/O.

| URL | kind |
| --- | --- |
| `http://…`, `https://…` | web |
| `dfc:bucket/object`, `dfc://bucket/object` | cluster: that of `DFC_URL` |
| `pipe:command` | pipe |
| `-` | stdin |
| `file:///path`, `file:path`, a path | file |
| any other `scheme://…`, and `a::b` chains | fsspec |
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal
from urllib.parse import unquote, urlsplit, urlunsplit

from dfc.addresses import split_addresses

Kind = Literal["web", "cluster", "pipe", "stdin", "file", "fsspec"]
# Extensions by which shards are recognised among other files.
SHARD_ENDINGS: Final = (".tar", ".tgz", ".tar.gz", ".tar.zst", ".tar.lz4", ".tar.bz2", ".tar.xz")
_FOREIGN: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(://|::)")
_USER: Final = re.compile(r"//[^/]*@")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}/|localhost/")
_WEB: Final = re.compile(r"https?://", re.IGNORECASE)


def kind_of(url: str) -> Kind:
    """The kind of a URL, decided by its beginning."""
    if _WEB.match(url):
        return "web"
    if url.startswith("dfc:"):
        return "cluster"
    if url.startswith("pipe:"):
        return "pipe"
    if url == "-":
        return "stdin"
    if url.startswith("file:") or not _FOREIGN.match(url):
        return "file"
    return "fsspec"


def local_path(url: str) -> str:
    """The path of a URL of the kind `file`. Only `file://` has escapes; its host must be empty or localhost."""
    if not url.startswith("file:"):
        return url
    if not url.startswith("file://"):
        return url.removeprefix("file:")
    host, slash, path = url.removeprefix("file://").partition("/")
    if host not in ("", "localhost"):
        raise ValueError(f"a file: URL must name a file of this machine, not of {host!r}")
    return unquote(slash + path)


def split_cluster_url(url: str) -> tuple[str, str]:
    """Split a `dfc:` URL into the bucket and the rest, without decoding. ValueError if there is no bucket."""
    bucket, _, name = url.removeprefix("dfc:").removeprefix("//").partition("/")
    if not bucket:
        raise ValueError(f"a dfc: URL must be dfc:bucket/object, not {url!r}")
    return bucket, name


def hint_at_scheme(path: str) -> str:
    """A hint for the error about a missing file, if its path looks like the URL of a server."""
    return f"; did you mean http://{path} ?" if _HOST.match(path) else ""


def origin_of(url: str) -> str:
    """Scheme, host and port of a web URL, normalised: in lower case, without user and default port."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    host = parts.netloc.rpartition("@")[2].lower()
    return f"{scheme}://{host.removesuffix(':80' if scheme == 'http' else ':443')}"


@lru_cache(64)
def origins_of(urls: str) -> tuple[str, ...]:
    """The origins of the addresses of a cluster, separated by commas. BadRequest."""
    return tuple(map(origin_of, split_addresses(urls)))


def shown(url: str) -> str:
    """A URL for messages: without user, password and query, which may hold signatures."""
    if kind_of(url) != "web":
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return _USER.sub("//", url.partition("?")[0])
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "…" if parts.query else "", ""))
