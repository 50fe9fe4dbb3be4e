"""Streams of raw shard bytes: their interface, their options, and kinds of URLs."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, Self
from urllib.parse import unquote, urlsplit, urlunsplit

from dfc.addresses import split_addresses
from dfc.http.blocking import CONNECT_TIMEOUT_S, READ_TIMEOUT_S
from dfc.http.retry import RetryPolicy
from dfc.limits import INPUT_RETRIES
from dfc.wire import DEFAULT_URL

# --- Kinds of URLs, their parts, and how they are shown in messages. Pure; no I/O.

Kind = Literal["web", "cluster", "pipe", "stdin", "file", "fsspec"]
# Extensions by which shards are recognised among other files.
SHARD_ENDINGS: Final = (".tar", ".tgz", ".tar.gz", ".tar.zst", ".tar.lz4", ".tar.bz2", ".tar.xz")
_FOREIGN: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(://|::)")  # of fsspec, whose URLs may be chains `a::b`
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


# --- The interface of streams of raw shard bytes, and the options for opening them (`opening`).


@dataclass(frozen=True)
class StreamOptions:
    """Options for opening shards: plain values that can be sent to worker processes.

    `cluster` (a URL, or several separated by commas, tried in turn) and `token` are for `dfc:` URLs and default to `DFC_URL`
    and `DFC_TOKEN`. The token is sent to the nodes of that cluster, or, if given without `cluster`, to all servers that URLs
    name, but never to other servers after a redirect. `retries` counts tries without a new byte; the wait between them doubles
    from 0.25 to 4 s. `direct`: detect whether a web server is a DFC node, and read each object from its owner. `verify`:
    compare whole objects with DFC's checksum. `headers` are sent with every request to the server that the URL names.
    `storage_options` are for fsspec. `cache_dir` is a directory that caches whole shards, up to `cache_bytes` (None: as the
    disk has room); see `cache`.
    """

    cluster: str | None = None
    token: str | None = field(default=None, repr=False)
    retries: int = INPUT_RETRIES
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    read_timeout_s: float = READ_TIMEOUT_S
    direct: bool = True
    verify: bool = True
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    cache_dir: str | None = None
    cache_bytes: int | None = None

    @property
    def policy(self) -> RetryPolicy:
        """The retry policy."""
        return RetryPolicy(retries=self.retries)

    @property
    def cluster_origins(self) -> tuple[str, ...]:
        """The origins of nodes of the cluster that `dfc:` URLs mean. BadRequest."""
        return origins_of(self.cluster or os.environ.get("DFC_URL") or DEFAULT_URL)

    @property
    def cluster_url(self) -> str:
        """The `cluster_origins` as one URL, separated by commas."""
        return ",".join(self.cluster_origins)

    @property
    def cluster_token(self) -> str | None:
        """The token for that cluster."""
        return self.token or os.environ.get("DFC_TOKEN") or None


DEFAULT_OPTIONS: Final = StreamOptions()


class Stream(ABC):
    """The bytes of one shard, or of a range of it. Used by one thread at a time, except for `abort`.

    `url` is the replica being read, `etag` the server's name for this version (empty if none), `size` the bytes of the whole
    object (None if unknown). `indexed`: a DFC node parsed this tar when it was uploaded, so its header checksums need not be
    checked again.
    """

    url: str
    etag: str = ""
    size: int | None = None
    indexed: bool = False

    @abstractmethod
    def readinto(self, buffer: bytearray | memoryview) -> int:
        """Fill the buffer, except at the end; 0 there.

        Raises ShardUnreadable if reading fails after all retries, ShardChanged if the object was replaced meanwhile,
        ShardBroken if the bytes are not those that were stored. Bytes received before an error are returned first.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the stream. Cheap at any point, and idempotent."""

    def abort(self) -> None:  # noqa: B027  (reading a local file ends soon anyway)
        """Cancel a waiting `readinto`, from any thread: it soon raises `Cancelled` or an error. Call `close` afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
