"""Requests for an object by the cluster map: what an answer says of it, which nodes have it, and when to try again."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import quote, urlencode, urljoin

import msgspec

from dfc.addresses import CONNECT_LIMIT_S, Addresses, Origins, Refusals, addresses_of
from dfc.checksum import CHECKSUM_NAME, is_checksum
from dfc.errors import BucketNotFound, DfcError, NotConnected, NotFound, NotThePrimary, ServerTrouble, Unavailable, Unreachable
from dfc.http.blocking import Body, Broken, Response, Transport, check_answers
from dfc.http.retry import (
    Cancellation,
    Headers,
    RetryPolicy,
    current_cancellation,
    error_from_answer,
    is_worth_retrying,
    retried,
)
from dfc.names import object_path
from dfc.placement.map import ClusterMap, NodeEntry
from dfc.placement.mapped import readers_of
from dfc.wire import CHECKSUM_HEADER, LOST_HEADER, MAP_HEADER

# --- What the head of an answer says about an object: the offset of its bytes, its version, size and checksum.

_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")  # int() refuses thousands of digits
_UNSATISFIED: Final = re.compile(r"bytes \*/(\d{1,19})")


@dataclass
class Facts:
    """What a server says about an object, to tell whether it has changed. Empty or None: not stated."""

    etag: str = ""
    strong: bool = True
    modified: str = ""
    size: int | None = None

    def differs(self, other: Facts) -> bool:
        """Whether the two contradict each other."""
        if self.size is not None and other.size is not None and self.size != other.size:
            return True
        if self.etag and other.etag:
            return self.etag != other.etag
        return bool(self.modified and other.modified and self.modified != other.modified)

    def updated(self, other: Facts) -> Facts:
        """Combine with a later answer: answers to `If-Range` may omit what the first one said."""
        tagged = other if other.etag else self
        size = self.size if other.size is None else other.size
        return Facts(tagged.etag, tagged.strong, other.modified or self.modified, size)


def described(answer: Response) -> tuple[int, Facts]:
    """The offset at which an unread answer begins, and the facts about its object. Raises Broken."""
    tag = answer.headers.get("ETag") or ""
    version = Facts(etag_in(answer.headers), not tag.startswith("W/"), answer.headers.get("Last-Modified") or "")
    if answer.status == 206:
        match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range") or "")
        if match is None:
            answer.close()
            raise Broken("a partial answer has no Content-Range")
        version.size = None if match[3] == "*" else int(match[3])
        return int(match[1]), version
    version.size = answer.length  # a Content-Length next to chunked encoding means nothing
    return 0, version


def etag_in(headers: Headers) -> str:
    """The ETag, or an empty string."""
    return (headers.get("ETag") or "").removeprefix("W/").strip('"')


def checksum_in(headers: Headers) -> str:
    """The checksum of the whole object, as a DFC node states it, else empty."""
    kind, _, value = (headers.get(CHECKSUM_HEADER) or "").partition("=")
    return value if kind == CHECKSUM_NAME and is_checksum(value) else ""


def size_beyond(problem: DfcError) -> int | None:
    """The size of the object, from an answer whose range is beyond the end (416)."""
    match = _UNSATISFIED.fullmatch(problem.headers.get("Content-Range", ""))
    return int(match[1]) if match else None


# --- Routing of object requests: to the nodes that have the object, by the cluster map, or through a node that relays.
#
# Reads go to any of these nodes, in order; everything else goes to the first of them, or through the relay.

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
        self, addresses: Addresses, fetch: Callable[[bool], bytes], now_s: Callable[[], float] = time.monotonic
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


# --- Object requests with retries: the nodes that have the object first, a relay if they cannot be reached, then backoff.
#
# States of a try: direct → (cannot connect) relay, at one address after the other → (503, broken) wait, new map → direct … A
# read of an object with several copies asks the next node that has one, at once, whatever kept the one before from serving it.
# A 307 is followed; a 421 `not_the_primary` leads to the owner by a new map. Uploads are retried only from sources that can be
# replayed; every method used here is idempotent.

_REDIRECTS: Final = frozenset((307, 308))
_HOPS_MAX: Final = 5
_NOT_MODIFIED: Final = 304
_CONDITIONS: Final = frozenset(("If-Match", "If-None-Match"))
_READS: Final = frozenset(("GET", "HEAD", "POST"))  # only the list of a batch read is posted here
_OBJECT_READS: Final = frozenset(("GET", "HEAD"))
_FOR_CALLERS: Final = _REDIRECTS | {_NOT_MODIFIED}


class SpendableBody(Body, Protocol):
    """A request body that, once `begun`, can be sent again only if it is `replayable`."""

    @property
    def begun(self) -> bool: ...


@dataclass(slots=True)
class Tries:
    """What happened during the tries. `broken`: an earlier connection broke, so the node may have done the work already."""

    broken: bool = False


def may_be_done(error: DfcError) -> bool:
    """Whether a request that failed with this error may have been carried out, its answer being lost."""
    if isinstance(error, Unreachable):
        return not isinstance(error, NotConnected)
    return LOST_HEADER in error.headers


def may_serve_elsewhere(error: DfcError) -> bool:
    """Whether a read that failed with this error may succeed at another node with a copy: all that is wrong is this node."""
    return isinstance(error, Unreachable | ServerTrouble | NotThePrimary)


class ObjectCalls:
    """Makes the object requests of one client. Thread-safe."""

    def __init__(
        self, router: Locator, transport: Transport, token: str | None, policy: RetryPolicy, cancellation: Cancellation
    ) -> None:
        self.policy = policy
        self._router = router
        self._transport = transport
        self._token = token
        self._cancellation = cancellation

    def call(
        self,
        method: str,
        bucket: str,
        name: str,
        *,
        query: Query = (),
        headers: Mapping[str, str] | None = None,
        source: SpendableBody | None = None,
        tries: Tries | None = None,
        last: Collection[str] = (),
    ) -> Response:
        """Return a successful answer, its body unread, or raise the error of the last try. `tries` records what happened.

        Nodes to which the URLs in `last` belong are asked after others with the same object.
        """
        self._router.map()  # with its own tries, before those of the object: without the map, the cluster is unknown
        return self._retrying(lambda: self._try(method, bucket, name, query, headers or {}, source, last), source, tries)

    def has_other(self, bucket: str, name: str, tried: Collection[str]) -> bool:
        """Whether an object can be read from a node that none of these URLs belongs to."""
        return self._router.has_other(bucket, name, tried)

    def stream(
        self,
        path: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        source: SpendableBody | None = None,
        *,
        near: tuple[str, str] | None = None,
    ) -> Response:
        """Read any path (and query) from a node that the client was given; returns a successful answer, its body unread.

        With `near`, the bucket and name of an object, the nodes that have it are tried first, once.
        """
        if near is not None and (answer := self._near(path, method, headers or {}, source, near)) is not None:
            return answer
        route = self._router.anywhere(path)
        answer = self._retrying(lambda: self._ask(method, route, headers or {}, source), source, None)
        if answer.status < 300:
            return answer
        answer.close()
        raise error_from_answer(answer.status, answer.headers, b"", f"{method} {answer.url}")

    def _near(
        self, path: str, method: str, headers: Mapping[str, str], source: SpendableBody | None, near: tuple[str, str]
    ) -> Response | None:
        """The answer of a node that has the object, or None if another node should be tried. Final errors are raised."""
        if source is not None and not source.replayable:
            return None
        for url in self._router.reading_urls(*near):
            try:
                answer = self._ask(method, Location(url + path, direct=True), headers, source)
            except NotConnected:
                current_cancellation(self._cancellation).check()
                self._router.mark_unreachable(url)
                continue
            except DfcError as error:
                current_cancellation(self._cancellation).check()
                if not is_worth_retrying(error):
                    raise
                continue
            if answer.status < 300:
                return answer
            answer.close()
            break
        return None

    def _retrying(self, attempt: Callable[[], Response], source: SpendableBody | None, tries: Tries | None) -> Response:
        def worth(error: DfcError) -> bool:
            spent = source is not None and source.begun and not source.replayable
            again = is_worth_retrying(error) and not spent
            if again and tries is not None and may_be_done(error):
                tries.broken = True
            return again

        return retried(attempt, self.policy, self.wait, worth, current_cancellation(self._cancellation).check)

    def wait(self, seconds: float) -> None:
        """Wait before the next try, unless cancelled, and fetch the map again after it."""
        current_cancellation(self._cancellation).wait(seconds)
        self._router.refresh()

    def _try(
        self,
        method: str,
        bucket: str,
        name: str,
        query: Query,
        headers: Mapping[str, str],
        source: SpendableBody | None,
        last: Collection[str],
    ) -> Response:
        if method in _OBJECT_READS:
            route, *others = self._router.reading_routes(bucket, name, query, last)
        else:
            route, others = self._router.route(bucket, name, query), []
        for _ in range(_HOPS_MAX + len(others)):
            try:
                answer = self._ask(method, route, headers, source, CONNECT_LIMIT_S if others else None)
            except DfcError as error:
                if isinstance(error, NotConnected) and route.direct:
                    self._router.mark_unreachable(route.url)
                if others and may_serve_elsewhere(error):
                    current_cancellation(self._cancellation).check()
                    self._router.refresh()
                    route = others.pop(0)
                else:
                    route = self._elsewhere(error, route, bucket, name, query)
                continue
            location = answer.headers.get("Location")
            if answer.status in _REDIRECTS and location:
                route = self._router.redirected(urljoin(answer.url, location))
                if not self._router.is_reachable(route.url):
                    route = self._router.relay(bucket, name, query)
            else:
                return answer
            answer.close()
        raise Unavailable(f"{method} {bucket}/{name}: redirected more than {_HOPS_MAX} times")

    def _elsewhere(self, error: DfcError, route: Location, bucket: str, name: str, query: Query) -> Location:
        """Where the only node to ask may be reached, or who it is by a newer map. Raises the error if it is about neither."""
        if isinstance(error, NotConnected) and route.direct:
            self._router.refresh()
            return self._router.relay(bucket, name, query)
        if isinstance(error, NotThePrimary):
            self._router.map(at_once=True)
            newer = self._router.route(bucket, name, query)
            # If that is the same, the node's map is the older one, and another node finds the owner.
            return self._router.relay(bucket, name, query) if newer.url == route.url else newer
        raise error

    def _ask(
        self,
        method: str,
        route: Location,
        headers: Mapping[str, str],
        source: SpendableBody | None,
        limit_s: float | None = None,
    ) -> Response:
        """Send one request; unsuccessful answers are raised as errors. Connecting to the node of a direct route takes at most
        `limit_s`."""
        if self._token and route.trusted:
            headers = {**headers, "Authorization": f"Bearer {self._token}"}
        if route.direct and (source is None or source.replayable):
            # So that a node which is not the owner says so. What cannot be sent again it passes on.
            headers = {**headers, MAP_HEADER: str(self._router.version)}
        # A second try may get another answer, so the caller must know of it: `Tries` says so.
        once = method == "DELETE" or not _CONDITIONS.isdisjoint(headers)

        def ask(url: str, limit_s: float | None = None) -> Response:
            return self._transport.request(method, url, headers, source, limit_s=limit_s, once=once)

        if route.direct:
            answer = ask(route.url, limit_s)
        else:
            addresses = self._router.addresses
            answer = addresses.reach(
                lambda base, limit_s: ask(base + route.path, limit_s), check_answers, repeatable=method in _READS
            )
        if answer.status < 300 or answer.status in _FOR_CALLERS:
            return answer
        raise answer.error()
