"""Whom to ask for an object: its owner, computed here from the map, or the relay of a node that the caller was given."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from dfc.addresses import Addresses, addresses_of
from dfc.errors import BucketNotFound, DfcError, NotFound
from dfc.names import object_path
from dfc.placement.map import ClusterMap, NodeEntry

UNREACHABLE_S: Final = 30.0  # a target that did not accept a connection is not tried again for so long
REFRESH_INTERVAL_S: Final = 0.5  # many threads that fail at once ask for one new map
Query = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Location:
    """A URL for one try. `direct` means the owner itself; without it, `path` may be asked for at any of the cluster's
    addresses. `trusted`: the node may see the token."""

    url: str
    direct: bool
    path: str = ""
    trusted: bool = True


def path_of(bucket: str, name: str, query: Query) -> str:
    """The path and query of an object under `/v1/objects`."""
    return f"/v1/objects{object_path(bucket, name)}" + (f"?{urlencode(query, quote_via=quote)}" if query else "")


class KeptMap:
    """The cluster map, kept until a request contradicts it. Thread-safe.

    `fetch` gives the JSON of the map of the cluster at `addresses`; its argument says whether it should try for long.
    """

    def __init__(
        self,
        addresses: Addresses,
        fetch: Callable[[bool], bytes],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.addresses = addresses
        self._fetch = fetch
        self._now_s = now_s
        self._lock = threading.Lock()
        self._map: ClusterMap | None = None
        self._fetched_s = 0.0
        self._wanted = True

    def map(self, *, at_once: bool = False) -> ClusterMap:
        """The map, fetched when there is none yet or a node contradicted it. Unreachable when that fails the first time."""
        with self._lock:
            due = at_once or (self._wanted and self._now_s() - self._fetched_s >= REFRESH_INTERVAL_S)
            if self._map is not None and not due:
                return self._map
            try:
                # Only the first map is worth waiting for: a refresh that fails leaves the old one, and whoever asked for it has
                # tries of its own.
                self._map = ClusterMap.decode(self._fetch(self._map is None))
                self._wanted = False
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                raise NotFound(f"{self.addresses} does not answer like a DFC node") from None
            except DfcError:
                if self._map is None:
                    raise
            self._fetched_s = self._now_s()
            return self._map

    def refresh(self) -> None:
        """Fetch the map before it is used again: a node said that it moved on, or did not answer."""
        self._wanted = True

    def holder(self, bucket: str, name: str) -> NodeEntry | None:
        """The target that holds an object, or is to; None while it is down. BucketNotFound."""
        cluster_map = self.map()
        if cluster_map.bucket(bucket) is None:
            self.refresh()  # the bucket may be younger than the map
            cluster_map = self.map()
        entry = cluster_map.bucket(bucket)
        if entry is None:
            raise BucketNotFound(f"bucket {bucket!r} does not exist")
        owner = cluster_map.owner(entry, name)
        return owner.node if owner is not None and owner.node.state == "up" else None


class Locator(KeptMap):
    """Knows also which nodes cannot be reached from here. `url` is the cluster's, or a list of them."""

    def __init__(self, url: str, fetch: Callable[[bool], bytes], now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(addresses_of(url), fetch, now_s)
        self._unreachable: dict[str, float] = {}

    def mark_unreachable(self, url: str) -> None:
        """Leave a target alone for a while; its objects go through the relay."""
        with self._lock:
            self._unreachable[_origin(url)] = self._now_s() + UNREACHABLE_S

    def route(self, bucket: str, name: str, query: Query) -> Location:
        """Where to send the next try for an object."""
        owner = self.owner_url(bucket, name)
        if owner is not None:
            return Location(owner + path_of(bucket, name, query), direct=True)
        return self.relay(bucket, name, query)

    def owner_url(self, bucket: str, name: str) -> str | None:
        """The URL of the target that owns an object, None while it is down or cannot be reached from here, or the bucket is not
        known yet."""
        try:
            holder = self.holder(bucket, name)
        except BucketNotFound:
            return None
        if holder is None or not self.is_reachable(holder.advertise_url):
            return None
        return holder.advertise_url.rstrip("/")

    def relay(self, bucket: str, name: str, query: Query) -> Location:
        """Through a node that the client was given."""
        return self.anywhere(path_of(bucket, name, (*query, ("relay", "1"))))

    def anywhere(self, path: str) -> Location:
        """To any of the nodes that the client was given."""
        return Location(self.addresses.in_order()[0] + path, direct=False, path=path)

    def redirected(self, location: str) -> Location:
        """The route that a 307 names. The token goes to nodes of the map and to nobody else."""
        trusted = self._knows(location, self.map()) or self._knows(location, self.map(at_once=True))
        self.refresh()
        return Location(location, direct=True, trusted=trusted)

    def _knows(self, url: str, cluster_map: ClusterMap) -> bool:
        urls = (*self.addresses.urls, *(url for node in cluster_map.nodes for url in (node.url, node.advertise_url)))
        return _origin(url) in map(_origin, urls)

    def is_reachable(self, url: str) -> bool:
        """Whether the node of a URL has not refused a connection lately."""
        return self._unreachable.get(_origin(url), 0.0) <= self._now_s()


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()
