"""Which web servers are DFC nodes: asked once a process and origin, then objects are read from the node that owns them.

Caches belong to one process: after a fork (a DataLoader's workers) the child makes connections of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from dfc.errors import BadName, DfcError
from dfc.http.blocking import Answer, Transport
from dfc.http.retry import Cancellation, RetryPolicy
from dfc.inputs.streams import StreamOptions
from dfc.inputs.urls import kind_of, origin_of, split_cluster_url
from dfc.limits import INPUT_MAP_BYTES_MAX
from dfc.names import check_bucket_name, check_object_name, parse_object_path

if TYPE_CHECKING:
    from dfc.client import Client

_ONCE: Final = RetryPolicy(retries=0)  # streams have tries of their own
_OBJECTS: Final = "/v1/objects"
# An answer that means "ask again": the node starts, or something before it is busy.
_UNDECIDED: Final = frozenset((408, 429, 500, 502, 503, 504))


class Cluster:
    """A DFC cluster as one origin shows it. `client` is for listings, counts and batches."""

    def __init__(self, url: str, token: str | None) -> None:
        # Half of the time that importing this module takes would be this.
        from dfc.client import Client
        from dfc.client.exchange import ObjectCalls

        self.client: Client = Client(url, token)
        self._calls = ObjectCalls
        self._token = token

    def request(self, place: Place, headers: Mapping[str, str], transport: Transport) -> Answer:
        """One try to get an object: from its owner, or through the node that was named. Its errors are those of the node."""
        client = self.client
        calls = self._calls(client.router, transport, self._token, _ONCE, client.cancellation)
        return calls.call("GET", place.bucket, place.name, headers=headers)

    def refresh(self) -> None:
        """Expect another owner before the next try."""
        self.client.router.refresh()


class Place(NamedTuple):
    """An object of a cluster; with an empty name the whole bucket."""

    cluster: Cluster
    bucket: str
    name: str


class _Caches:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clusters: dict[tuple[str, str | None], Cluster] = {}
        self.transports: dict[tuple[float, float], Transport] = {}
        self.known: dict[str, bool] = {}  # by origin: whether it is a DFC node; survives a fork


_CACHES: Final = _Caches()


def _forget() -> None:
    """In a child after a fork. Locks of the parent may be held by threads that the child does not have."""
    for transport in _CACHES.transports.values():
        transport.forget()
    for cluster in _CACHES.clusters.values():
        cluster.client.forget()
    known = _CACHES.known
    _CACHES.__init__()  # type: ignore[misc]
    _CACHES.known = known


os.register_at_fork(after_in_child=_forget)


def transport_for(options: StreamOptions) -> Transport:
    """The connections of this process."""
    key = (options.connect_timeout_s, options.read_timeout_s)
    with _CACHES.lock:
        found = _CACHES.transports.get(key)
        if found is None:
            found = _CACHES.transports[key] = Transport(
                Cancellation(), read_timeout_s=options.read_timeout_s, connect_timeout_s=options.connect_timeout_s
            )
        return found


def locate(url: str, options: StreamOptions) -> Place | None:
    """The object, or with a final slash the bucket or prefix, that a URL names if its server is a DFC node, else None.

    ValueError for a `dfc:` URL that names nothing.
    """
    if kind_of(url) == "cluster":
        bucket, name = split_cluster_url(url)
        return Place(cluster_at(origin_of(options.cluster_url), options), check_bucket_name(bucket), _checked(name))
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or parts.query or parts.username or options.headers or not options.direct:
        return None
    path = parts.path.removeprefix(_OBJECTS) if parts.path.startswith(_OBJECTS + "/") else parts.path
    try:
        bucket, name = _parse_path(path or "/")
    except BadName:
        return None
    origin = origin_of(url)
    return Place(cluster_at(origin, options), bucket, name) if is_cluster(origin, options) else None


def cluster_at(origin: str, options: StreamOptions) -> Cluster:
    """The cluster that a node belongs to; one for each origin and token in this process."""
    key = (origin, token_for(origin, options))
    with _CACHES.lock:
        found = _CACHES.clusters.get(key)
        if found is None:
            found = _CACHES.clusters[key] = Cluster(*key)
        return found


def token_for(origin: str, options: StreamOptions) -> str | None:
    """The token that a server may see: that of the cluster of `dfc:`, or one that was given without saying for which."""
    everywhere = options.token is not None and options.cluster is None
    return options.cluster_token if everywhere or origin == origin_of(options.cluster_url) else None


def is_cluster(origin: str, options: StreamOptions) -> bool:
    """Whether a server answers for a cluster's map like a DFC node. No when it cannot be asked now; then it is asked again."""
    known = _CACHES.known.get(origin)
    if known is None:
        known = _ask(origin, options)
        if known is None:
            return False
        _CACHES.known[origin] = known
    return known


def is_decided(url: str, options: StreamOptions) -> bool:
    """Whether it is known what serves a URL; asks."""
    origin = origin_of(url)
    return is_cluster(origin, options) or origin in _CACHES.known


def _ask(origin: str, options: StreamOptions) -> bool | None:
    from msgspec import MsgspecError

    from dfc.placement.map import ClusterMap

    token = token_for(origin, options)
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        with transport_for(options).request("GET", f"{origin}/v1/cluster", headers) as answer:
            if answer.status != 200:
                return None if answer.status in _UNDECIDED else False
            if "json" not in (answer.headers.get("Content-Type") or ""):
                return False
            return bool(ClusterMap.decode(answer.read_all(INPUT_MAP_BYTES_MAX)).cluster_id)
    except MsgspecError:
        return False
    except DfcError:
        return None


def _parse_path(path: str) -> tuple[str, str]:
    """`parse_object_path`, which knows no prefixes within a bucket."""
    if path.endswith("/") and path.count("/") > 2:
        bucket, name = parse_object_path(path[:-1])
        return bucket, name + "/"
    return parse_object_path(path)


def _checked(name: str) -> str:
    return name if not name or name.endswith("/") else check_object_name(name)
