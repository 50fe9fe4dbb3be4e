"""Shards as raw bytes: what every kind of stream can do, and the options with which they are opened (`opening`)."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from dfc.http.calls.blocking import CONNECT_TIMEOUT_S, READ_TIMEOUT_S
from dfc.http.calls.retry import RetryPolicy
from dfc.inputs.sources.urls import origins_of
from dfc.limits import INPUT_RETRIES
from dfc.wire import DEFAULT_URL


@dataclass(frozen=True)
class StreamOptions:
    """How shards are opened; plain values, so that they travel to worker processes.

    `cluster` (a URL, or several separated by commas, tried in turn) and `token` are those of `dfc:` URLs, by default `DFC_URL`
    and `DFC_TOKEN`. The token goes to the nodes of that cluster; when it is given without `cluster`, to all servers that URLs
    name; never to where those redirect. `retries` are tries without a new byte; the wait between them doubles from 0.25 to
    4 s. `direct`: find out whether a web server is a DFC node and then read from the owner of each object. `verify`: compare
    what was read whole with the checksum that DFC names. `headers` go with every request to the server that the URL names.
    `storage_options` are for fsspec. `cache_dir` is a directory where whole shards are kept, up to `cache_bytes` (None: as
    the disk has room); see `cache`.
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
        """The waits between tries."""
        return RetryPolicy(retries=self.retries)

    @property
    def cluster_origins(self) -> tuple[str, ...]:
        """Where the cluster that `dfc:` means can be reached: origins of its nodes. BadRequest."""
        return origins_of(self.cluster or os.environ.get("DFC_URL") or DEFAULT_URL)

    @property
    def cluster_url(self) -> str:
        """These as the URL of that cluster."""
        return ",".join(self.cluster_origins)

    @property
    def cluster_token(self) -> str | None:
        """The token for that cluster."""
        return self.token or os.environ.get("DFC_TOKEN") or None


DEFAULT_OPTIONS: Final = StreamOptions()


class Stream(ABC):
    """The bytes of one shard, or of a range of it. Belongs to one thread at a time, but for `abort`.

    `url` is where it is read from now (one of its replicas), `etag` what the server calls this version (empty: nothing), `size`
    the bytes of the whole object (None: not known). `indexed`: a DFC node has parsed this tar when it was uploaded, so the
    checksums of its headers need not be looked at again.
    """

    url: str
    etag: str = ""
    size: int | None = None
    indexed: bool = False

    @abstractmethod
    def readinto(self, buffer: bytearray | memoryview) -> int:
        """Fill the buffer, except at the end; 0 there.

        Raises ShardUnreadable when it breaks off for good, ShardChanged when it is another object by then, ShardBroken when the
        bytes are not those that were stored. What came before an error is handed out first.
        """

    @abstractmethod
    def close(self) -> None:
        """Cheap at any point, and idempotent."""

    def abort(self) -> None:  # noqa: B027  (reading a local file ends soon anyway)
        """From any thread: what waits in `readinto` ends soon, with `Cancelled` or an error. `close` is still to be called."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
