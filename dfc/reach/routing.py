"""Routing of object requests: to the nodes that have the object, by the cluster map, or through a node that relays.

Reads go to any of these nodes, in order; everything else goes to the first of them, or through the relay.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from dfc.addresses import Addresses, Origins, Refusals, addresses_of
from dfc.errors import BucketNotFound, DfcError, NotFound
from dfc.names import object_path
from dfc.placement.map import ClusterMap, NodeEntry
from dfc.placement.readers import readers_of

UNREACHABLE_S: Final = 30.0  # how long a target that refused a connection is not tried again
REFRESH_INTERVAL_S: Final = 0.5  # so that many threads that fail at once fetch one new map
Query = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Location:
    """The URL of one try. `direct`: the owner itself; otherwise `path` may be requested from any address of the cluster.
    `trusted`: the node may see the token."""

    url: str
    direct: bool
    path: str = ""
    trusted: bool = True


def path_of(bucket: str, name: str, query: Query) -> str:
    """The path and query of an object under `/v1/objects`."""
    return f"/v1/objects{object_path(bucket, name)}" + (f"?{urlencode(query, quote_via=quote)}" if query else "")


class KeptMap:
    """The cluster map, cached until a request contradicts it. Thread-safe.

    `fetch` returns the map of the cluster at `addresses` as JSON; its argument says whether to keep retrying.
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
        """The map, fetched if there is none yet or a node contradicted it. Raises Unreachable if the first fetch fails."""
        with self._lock:
            due = at_once or (self._wanted and self._now_s() - self._fetched_s >= REFRESH_INTERVAL_S)
            if self._map is not None and not due:
                return self._map
            try:
                # Only the first map is worth waiting for: if a refresh fails, the old map stays, and the caller has its own
                # retries.
                self._map = ClusterMap.decode(self._fetch(self._map is None))
                self._wanted = False
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                raise NotFound(f"{self.addresses} does not answer like a DFC node") from None
            except DfcError:
                if self._map is None:
                    raise
            self._fetched_s = self._now_s()
            return self._map

    @property
    def version(self) -> int:
        """The version of the map; 0: there is none yet."""
        return 0 if self._map is None else self._map.version

    def refresh(self) -> None:
        """Fetch the map before the next use: a node has a newer one, or did not answer."""
        self._wanted = True

    def readers(self, bucket: str, name: str) -> list[NodeEntry]:
        """The targets to read an object from, in order; none while they are down. The first also takes its writes. Raises
        BucketNotFound."""
        cluster_map = self.map()
        if cluster_map.bucket(bucket) is None:
            self.refresh()  # the bucket may be younger than the map
            cluster_map = self.map()
        entry = cluster_map.bucket(bucket)
        if entry is None:
            raise BucketNotFound(f"bucket {bucket!r} does not exist")
        return readers_of(cluster_map, entry.id, name)


class Locator(KeptMap):
    """A cached map that also knows which nodes cannot be reached. `url` is one address of the cluster or a list of them."""

    def __init__(self, url: str, fetch: Callable[[bool], bytes], now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(addresses_of(url), fetch, now_s)
        self._refusals = Refusals(UNREACHABLE_S, now_s)

    def mark_unreachable(self, url: str) -> None:
        """Avoid a target for a while; its objects are read elsewhere, or go through a relay."""
        self._refusals.note(url)

    def route(self, bucket: str, name: str, query: Query) -> Location:
        """Where to send the next try for an object to, if it may change it: the primary, or the relay."""
        nodes = self._known_readers(bucket, name)
        if nodes and self.is_reachable(nodes[0].advertise_url):
            return Location(_base(nodes[0]) + path_of(bucket, name, query), direct=True)
        return self.relay(bucket, name, query)

    def reading_routes(self, bucket: str, name: str, query: Query, last: Collection[str] = ()) -> list[Location]:
        """Where to read an object from, in the order to try; never empty. If it has several copies, the relay comes at the end.

        `last` are URLs whose nodes broke off an answer: they are asked after the others.
        """
        nodes = self._known_readers(bucket, name)
        path = path_of(bucket, name, query)
        routes = [Location(_base(node) + path, direct=True) for node in self._reachable(nodes, last)]
        return routes if routes and len(nodes) == 1 else [*routes, self.relay(bucket, name, query)]

    def reading_urls(self, bucket: str, name: str, last: Collection[str] = ()) -> list[str]:
        """The URLs of the targets that an object can be read from, as far as they can be reached from here; none if the bucket
        is not known yet."""
        return [_base(node) for node in self._reachable(self._known_readers(bucket, name), last)]

    def has_other(self, bucket: str, name: str, tried: Collection[str]) -> bool:
        """Whether an object can be read from a target that none of these URLs belongs to."""
        nodes = Origins(tried)
        return any(url not in nodes for url in self.reading_urls(bucket, name))

    def _known_readers(self, bucket: str, name: str) -> list[NodeEntry]:
        try:
            return self.readers(bucket, name)
        except BucketNotFound:
            return []

    def _reachable(self, nodes: list[NodeEntry], last: Collection[str]) -> list[NodeEntry]:
        reachable = [node for node in nodes if self.is_reachable(node.advertise_url)]
        if not last or len(reachable) < 2:
            return reachable
        tried = Origins(last)
        return sorted(reachable, key=lambda node: node.advertise_url in tried)

    def relay(self, bucket: str, name: str, query: Query) -> Location:
        """The route through a node that the client was given."""
        return self.anywhere(path_of(bucket, name, (*query, ("relay", "1"))))

    def anywhere(self, path: str) -> Location:
        """The route to any of the nodes that the client was given."""
        return Location(self.addresses.in_order()[0] + path, direct=False, path=path)

    def redirected(self, location: str) -> Location:
        """The route to the location of a 307. Only nodes of the map are sent the token."""
        trusted = self._knows(location, self.map()) or self._knows(location, self.map(at_once=True))
        self.refresh()
        return Location(location, direct=True, trusted=trusted)

    def _knows(self, url: str, cluster_map: ClusterMap) -> bool:
        urls = (*self.addresses.urls, *(url for node in cluster_map.nodes for url in (node.url, node.advertise_url)))
        return url in Origins(urls)

    def is_reachable(self, url: str) -> bool:
        """Whether the node at a URL has not refused a connection recently."""
        return url not in self._refusals


def _base(node: NodeEntry) -> str:
    return node.advertise_url.rstrip("/")
