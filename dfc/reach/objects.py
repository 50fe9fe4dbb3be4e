"""Object requests with retries: the nodes that have the object first, a relay if they cannot be reached, then backoff.

States of a try: direct → (cannot connect) relay, at one address after the other → (503, broken) wait, new map → direct …
A read of an object with several copies asks the next node that has one, at once, whatever kept the one before from serving it.
A 307 is followed; a 421 `not_the_primary` leads to the owner by a new map. Uploads are retried only from sources that can be
replayed; every method used here is idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urljoin

from dfc.addresses import CONNECT_LIMIT_S
from dfc.errors import DfcError, NotConnected, NotThePrimary, ServerTrouble, Unavailable, Unreachable
from dfc.http.calls.blocking import Body, Response, Transport
from dfc.http.calls.lookup import check_answers
from dfc.http.calls.problems import error_from_answer, is_worth_retrying
from dfc.http.calls.retry import Cancellation, RetryPolicy, current_cancellation, retried
from dfc.reach.routing import Location, Locator, Query
from dfc.wire import LOST_HEADER, MAP_HEADER

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
        headers = self._with_token(headers, route)
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

    def _with_token(self, headers: Mapping[str, str], route: Location) -> Mapping[str, str]:
        if not self._token or not route.trusted:
            return headers
        return {**headers, "Authorization": f"Bearer {self._token}"}
