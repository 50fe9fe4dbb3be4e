"""Detect which web servers are DFC nodes, once per process and origin, and read objects from the nodes that own them.

Caches belong to one process: after a fork (a DataLoader's workers) the child makes its own connections.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from dfc.addresses import addresses_of
from dfc.errors import BadName, DfcError, ServerTrouble
from dfc.http.blocking import Response, Transport, WrongAddress, check_answers
from dfc.http.retry import Cancellation, Cancelled, RetryPolicy, error_from_answer, is_worth_retrying
from dfc.inputs.sources.streams import StreamOptions, kind_of, origin_of, shown, split_cluster_url
from dfc.limits import INPUT_MAP_BYTES_MAX
from dfc.names import check_bucket_name, check_object_name, parse_object_path
from dfc.placement.map import ClusterMap
from dfc.reach.objects import Locator, ObjectCalls
from dfc.wire import JSON

if TYPE_CHECKING:
    from dfc.client import Client

_ONCE: Final = RetryPolicy(retries=0)  # streams do their own retries
_OBJECTS: Final = "/v1/objects"


class SourceCluster:
    """A DFC cluster, reached at one origin or any of several (`url` is then a list, separated by commas)."""

    def __init__(self, url: str, token: str | None, transport: Transport) -> None:
        self._url = url
        self._token = token
        self._router = Locator(url, lambda _patient: fetch_map(url, token, transport))
        self._cancellation = Cancellation()  # a stream's own takes precedence

    @cached_property
    def client(self) -> Client:
        """The client for listings, counts and batches. Made on first use, since streams need none and start sooner without."""
        from dfc.client import Client

        return Client(self._url, self._token)

    def request(
        self, place: ObjectPlace, headers: Mapping[str, str], transport: Transport, last: Collection[str] = ()
    ) -> Response:
        """Try once to get an object, from the nodes that have it or through the given node. Raises the node's errors.

        The nodes of the URLs in `last` are asked after others with the same object.
        """
        calls = ObjectCalls(self._router, transport, self._token, _ONCE, self._cancellation)
        return calls.call("GET", place.bucket, place.name, headers=headers, last=last)

    def has_other(self, place: ObjectPlace, tried: Collection[str]) -> bool:
        """Whether an object can be read from a node that none of these URLs belongs to."""
        return self._router.has_other(place.bucket, place.name, tried)

    def refresh(self) -> None:
        """Look up the owner again before the next try."""
        self._router.refresh()

    def close(self) -> None:
        """Close idle connections."""
        if "client" in self.__dict__:
            self.client.close()

    def forget(self) -> None:
        """Drop the parent's connections, in a child after a fork."""
        if "client" in self.__dict__:
            self.client._forget()


class ObjectPlace(NamedTuple):
    """An object of a cluster; with an empty name, the whole bucket."""

    cluster: SourceCluster
    bucket: str
    name: str


class _Caches:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clusters: dict[tuple[str, str | None], SourceCluster] = {}
        self.transports: dict[tuple[float, float], Transport] = {}
        self.reached: set[str] = set()  # origins that have answered anything; survives a fork, like `known`
        # Whether an origin is a DFC node. By token, too, since a node may reveal nothing without one.
        self.known: dict[tuple[str, str | None], bool] = {}


_CACHES: Final = _Caches()


def _forget() -> None:
    """Reset the caches in a child after a fork, where the parent's locks may be held by threads that no longer exist."""
    for transport in _CACHES.transports.values():
        transport.forget()
    for cluster in _CACHES.clusters.values():
        cluster.forget()
    kept = _CACHES.known, _CACHES.reached
    _CACHES.__init__()  # type: ignore[misc]
    _CACHES.known, _CACHES.reached = kept


def _close() -> None:
    """Close idle connections properly at the end of the process."""
    for transport in _CACHES.transports.values():
        transport.close()
    for cluster in _CACHES.clusters.values():
        cluster.close()


os.register_at_fork(after_in_child=_forget)
atexit.register(_close)


def transport_for(options: StreamOptions) -> Transport:
    """The connections of this process for these options."""
    key = (options.connect_timeout_s, options.read_timeout_s)
    with _CACHES.lock:
        found = _CACHES.transports.get(key)
        if found is None:
            found = _CACHES.transports[key] = Transport(
                Cancellation(), read_timeout_s=options.read_timeout_s, connect_timeout_s=options.connect_timeout_s
            )
        return found


def locate(url: str, options: StreamOptions) -> ObjectPlace | None:
    """The object that a URL names (with a trailing slash: the bucket or prefix) if its server is a DFC node, else None.

    ValueError for a `dfc:` URL without a bucket.
    """
    if kind_of(url) == "cluster":
        bucket, name = split_cluster_url(url)
        return ObjectPlace(cluster_at(options.cluster_url, options), check_bucket_name(bucket), _checked(name))
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or parts.query or parts.username or options.headers or not options.direct:
        return None
    path = parts.path.removeprefix(_OBJECTS) if parts.path.startswith(_OBJECTS + "/") else parts.path
    try:
        bucket, name = _parse_path(path or "/")
    except BadName:
        return None
    origin = origin_of(url)
    return ObjectPlace(cluster_at(origin, options), bucket, name) if is_cluster(origin, options) else None


def cluster_at(origin: str, options: StreamOptions) -> SourceCluster:
    """The cluster of a node, or of a list of nodes. This process has one object for each origin and token."""
    key = (origin, token_for(origin, options))
    transport = transport_for(options)
    with _CACHES.lock:
        found = _CACHES.clusters.get(key)
        if found is None:
            found = _CACHES.clusters[key] = SourceCluster(*key, transport)
        return found


def token_for(origin: str, options: StreamOptions) -> str | None:
    """The token to send to a server: the one of the `dfc:` cluster, or one given without a cluster, which goes everywhere."""
    everywhere = options.token is not None and options.cluster is None
    own = origin in options.cluster_origins or origin == options.cluster_url
    return options.cluster_token if everywhere or own else None


def is_cluster(origin: str, options: StreamOptions) -> bool:
    """Whether a server returns a cluster map, like a DFC node. False if it cannot be reached now; it is then asked again."""
    return _look(origin, options) is True


def trouble_with(url: str, options: StreamOptions) -> DfcError | None:
    """The error that prevents telling whether a URL's server is a DFC node; None if known. Makes a request if not."""
    found = _look(origin_of(url), options)
    return None if isinstance(found, bool) else found


def is_in_vain(problem: DfcError, url: str, options: StreamOptions) -> bool:
    """Whether retrying this URL is pointless, because its host or scheme is wrong.

    If the server has answered before, its host may be wrong only for a while: names of containers come and go with them.
    """
    if not isinstance(problem, WrongAddress):
        return False
    return _CACHES.reached.isdisjoint(options.cluster_origins if kind_of(url) == "cluster" else (origin_of(url),))


def hint_at_bucket(url: str, options: StreamOptions) -> str:
    """A hint for the error about a missing object, if a bucket has that name and only the trailing slash is missing."""
    place = locate(url, options)
    if place is None or kind_of(url) != "web" or urlsplit(url).path.removeprefix(_OBJECTS).count("/") != 1:
        return ""
    try:
        place.cluster.client.bucket(place.name)
    except DfcError:
        return ""
    return f"; did you mean {shown(url)}/ ?"


def _look(origin: str, options: StreamOptions) -> bool | DfcError:
    """Whether an origin is a DFC node, or the error that prevents telling."""
    key = (origin, token_for(origin, options))
    known = _CACHES.known.get(key)
    if known is not None:
        return known
    found = _ask(origin, options)
    if isinstance(found, bool):
        _CACHES.known[key] = found
    return found


def _ask(origin: str, options: StreamOptions) -> bool | DfcError:
    try:
        data = fetch_map(origin, token_for(origin, options), transport_for(options))
        return bool(ClusterMap.decode(data).cluster_id)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    except Cancelled:
        raise  # it says nothing about the server
    except DfcError as problem:
        undecided = is_worth_retrying(problem) or type(problem) is ServerTrouble
        return problem if undecided else False


def fetch_map(origin: str, token: str | None, transport: Transport) -> bytes:
    """Fetch the JSON of a cluster map, or whatever the server answers; one try."""
    headers = {"Accept": JSON} | ({"Authorization": f"Bearer {token}"} if token else {})

    def ask(base: str, limit_s: float | None) -> Response:
        answer = transport.request("GET", f"{base}/v1/cluster", headers, limit_s=limit_s)
        _CACHES.reached.add(base)
        return answer

    with addresses_of(origin).reach(ask, check_answers, repeatable=True) as answer:
        if answer.status == 200:
            return answer.read_all(INPUT_MAP_BYTES_MAX)
        raise error_from_answer(answer.status, answer.headers, b"", f"GET {answer.url}")


def _parse_path(path: str) -> tuple[str, str]:
    """`parse_object_path`, extended by prefixes within a bucket."""
    if path.endswith("/") and path.count("/") > 2:
        bucket, name = parse_object_path(path[:-1])
        return bucket, name + "/"
    return parse_object_path(path)


def _checked(name: str) -> str:
    return name if not name or name.endswith("/") else check_object_name(name)
