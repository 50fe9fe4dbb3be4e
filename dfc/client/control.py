"""Small calls of the client, and those about the cluster itself. No other module uses httpx.

Every call goes to a URL that the client was given. Errors are classes of `dfc.errors`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import httpx
import msgspec

from dfc import __version__
from dfc.addresses import addresses_of
from dfc.errors import BadRequest, BucketNotFound, DfcError, NotConnected, NotFound, Unreachable
from dfc.http.blocking import check_answers, connect_share_s
from dfc.http.retry import Cancellation, Retries, RetryPolicy, current_cancellation, error_from_answer
from dfc.names import check_bucket_name
from dfc.placement.map import ClusterMap
from dfc.reach.objects import may_be_done
from dfc.wire import JSON, prepared
from dfc.wire.objects import BucketInfo, BucketList, OperationInfo, OperationList
from dfc.wire.status import ClusterCheck, ClusterProblem, ClusterStats, ClusterStatus, ProblemList, Rebalance

T = TypeVar("T")
CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 60.0  # a listing waits for every target
# If no node has ever answered, the URL is wrong or the cluster is down, and the user should learn that quickly.
FIRST_CONTACT_RETRIES: Final = 1
_ONCE: Final = RetryPolicy(retries=0)
_TIMEOUT: Final = httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)


class Control:
    """Makes control calls to one URL, or to any of several. Thread-safe."""

    def __init__(self, url: str, token: str | None, policy: RetryPolicy, cancellation: Cancellation) -> None:
        self._addresses = addresses_of(url)
        self._policy = policy
        self._cancellation = cancellation
        self._was_reached = False
        headers = {"User-Agent": f"dfc/{__version__}"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.Client(
            headers=headers,
            timeout=_TIMEOUT,
            # Otherwise proxies and .netrc of the environment would apply here, but not to the bulk channel.
            trust_env=False,
            verify=ssl.create_default_context() if "https:" in url else False,
        )

    def close(self) -> None:
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        body: Any = None,
        accept: str = JSON,
        patient: bool = True,
        done: type[DfcError] | None = None,
    ) -> bytes:
        """Make a call and return the body of the answer. `body` is sent as JSON. Calls are idempotent; if `patient`, they are
        retried. `done` is the error which shows, after a try whose answer was lost, that the call had succeeded.

        Raises the node's error, or Unreachable.
        """
        cancellation = current_cancellation(self._cancellation)
        retries = Retries(self._policy if patient else _ONCE)
        lost = False
        while True:
            cancellation.check()
            try:
                return self._once(method, path, params, body, accept)
            except DfcError as error:
                if lost and done is not None and isinstance(error, done):
                    return b""
                lost = lost or may_be_done(error)
                if isinstance(error, Unreachable) and not self._was_reached:
                    # NotConnected means that all URLs were tried; otherwise only the one to which the request was sent.
                    others = 0 if isinstance(error, NotConnected) else len(self._addresses.urls) - 1
                    if retries.number >= max(FIRST_CONTACT_RETRIES, others):
                        raise
                delay_s = retries.delay_s(error)
                if delay_s is None:
                    raise
            cancellation.wait(delay_s)

    def lines(self, path: str) -> Iterator[str]:
        """Yield the lines of a streamed answer as they arrive. Unreachable if it breaks off; no retries."""
        cancellation = current_cancellation(self._cancellation)
        answer = self._send("GET", path, {"Accept": "text/event-stream"}, stream=True)
        what = f"GET {answer.url}"
        try:
            with _own_errors(what):
                if not answer.is_success:
                    raise error_from_answer(answer.status_code, answer.headers, answer.read(), what)
                for line in answer.iter_lines():
                    cancellation.check()
                    yield line
        finally:
            answer.close()

    def pause(self, seconds: float) -> None:
        """Sleep. Raises Cancelled if the call is cancelled."""
        current_cancellation(self._cancellation).wait(seconds)

    def _once(self, method: str, path: str, params: Mapping[str, str | int] | None, body: Any, accept: str) -> bytes:
        content = None if body is None else msgspec.json.encode(body)
        headers = {"Accept": accept}
        if content is not None:
            headers["Content-Type"] = JSON
        answer = self._send(method, path, headers, params=params, content=content)
        self._was_reached = True
        if answer.is_success:
            return answer.content
        what = f"{method} {answer.url.copy_with(query=None)}"
        raise error_from_answer(answer.status_code, answer.headers, answer.content, what)

    def _send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        *,
        params: Mapping[str, str | int] | None = None,
        content: bytes | None = None,
        stream: bool = False,
    ) -> httpx.Response:
        """Return the answer of the first address that gives one."""
        cancellation = current_cancellation(self._cancellation)

        def attempt(base: str, limit_s: float | None) -> httpx.Response:
            cancellation.check()
            with _own_errors(f"{method} {base}{path}"):
                timeout = self._timeout(base, limit_s)
                request = self._http.build_request(
                    method, base + path, params=params, content=content, headers=headers, timeout=timeout
                )
                return self._http.send(request, stream=stream)

        return self._addresses.reach(attempt, check_answers, repeatable=method == "GET")

    def _timeout(self, base: str, limit_s: float | None) -> httpx.Timeout:
        if limit_s is None:
            return _TIMEOUT
        if base != self._addresses.last:  # else it is connected, or its name was resolved a moment ago
            parts = urlsplit(base)
            limit_s = connect_share_s(parts.hostname or "", parts.port or 0, limit_s)
        return httpx.Timeout(ANSWER_TIMEOUT_S, connect=limit_s)


@contextmanager
def _own_errors(what: str) -> Iterator[None]:
    """Convert errors of httpx and the operating system to those of `dfc.errors`."""
    try:
        yield
    except httpx.InvalidURL as problem:
        raise BadRequest(f"{what}: {problem}") from None
    except (httpx.ConnectError, httpx.ConnectTimeout) as problem:
        raise NotConnected(f"{what}: cannot connect: {problem or type(problem).__name__}") from None
    except httpx.HTTPError as problem:
        raise Unreachable(f"{what}: {problem or type(problem).__name__}") from None
    except (OSError, UnicodeError) as problem:  # from resolving the host name
        raise NotConnected(f"{what}: cannot connect: {problem}") from None


# --- The part of the client that is about the cluster itself: buckets, operations, the map, its state and its problems.

DISK_PREFIX_MIN: Final = 8  # characters of the id of a disk by which it may be named


class _Expected(msgspec.Struct):
    expected_by: str


class _Used(msgspec.Struct, frozen=True):
    disks: tuple[str, ...] = ()
    weights: dict[str, float] = {}


class _Check(msgspec.Struct, frozen=True):
    check: str


class ClusterCalls:
    """Calls that go to the node whose URL was given."""

    _control: Control

    # Buckets.

    def list_buckets(self) -> tuple[BucketInfo, ...]:
        """Return all buckets with their counts."""
        return decode(self._control.call("GET", "/v1/buckets"), BucketList).buckets

    def bucket(self, name: str) -> BucketInfo:
        """Return the settings and counts of a bucket. BucketNotFound."""
        return decode(self._control.call("GET", f"/v1/buckets/{check_bucket_name(name)}"), BucketInfo)

    def create_bucket(
        self, name: str, *, durability: str = "fsync", copies: int | None = None, min_copies: int | None = None
    ) -> None:
        """Create a bucket, unless it exists with the same settings. BucketConflict if they differ. TooFewDomains.

        `copies`: None for as many as the cluster gives to new buckets. `min_copies`: with how many a write may count if no more
        can be had; None for half of them.
        """
        given = {"copies": copies, "min_copies": min_copies, "durability": durability}
        body = {key: value for key, value in given.items() if value is not None}
        self._control.call("PUT", f"/v1/buckets/{check_bucket_name(name)}", body=body)

    def change_bucket(
        self, name: str, *, durability: str | None = None, copies: int | None = None, min_copies: int | None = None
    ) -> BucketInfo:
        """Change the given settings of a bucket. BucketNotFound, TooFewDomains."""
        given = {"copies": copies, "min_copies": min_copies, "durability": durability}
        body = {key: value for key, value in given.items() if value is not None}
        self._control.call("PATCH", f"/v1/buckets/{check_bucket_name(name)}", body=body)
        return self.bucket(name)

    def delete_bucket(self, name: str, *, force: bool = False) -> None:
        """Delete a bucket. BucketNotEmpty unless it is empty, or `force` is set, which also deletes its objects."""
        params: dict[str, str | int] | None = {"force": 1} if force else None
        self._control.call("DELETE", f"/v1/buckets/{check_bucket_name(name)}", params=params, done=BucketNotFound)

    # Operations of jobs.

    def operations(self) -> tuple[OperationInfo, ...]:
        """Return the operations that jobs can have, with their options."""
        return decode(self._control.call("GET", "/v1/operations"), OperationList).operations

    # Cluster.

    def cluster_status(self) -> ClusterStatus:
        """Return how the cluster is: its health, its problems, how many objects lack copies, and what is being done."""
        return decode(self._control.call("GET", "/v1/cluster/status"), ClusterStatus)

    def cluster_problems(self) -> tuple[ClusterProblem, ...]:
        """Return the problems of the cluster, the worst first; none while all is well."""
        return decode(self._control.call("GET", "/v1/cluster/problems"), ProblemList).problems

    def cluster_stats(self, seconds: int = 60) -> ClusterStats:
        """Return what all nodes have done in the last seconds, at most 900: bytes, requests, errors, connections, use of disks.
        BadRequest."""
        return decode(self._control.call("GET", "/v1/cluster/stats", params={"seconds": seconds}), ClusterStats)

    def node_info(self, node: str) -> dict[str, Any]:
        """Return what a target or a proxy is, as it says: version, start, settings, memory, disks. NotFound; Unavailable if it
        does not answer."""
        answer = self._control.call("GET", f"/v1/cluster/nodes/{quote(node, safe='')}", patient=False)
        return decode(answer, dict[str, Any])

    def cluster_map(self) -> ClusterMap:
        """Fetch the cluster map: nodes, disks and buckets."""
        return ClusterMap.decode(self._fetch_map(True))

    def own_map(self) -> ClusterMap:
        """Return the map that the target at the client's URL goes by; it asks no proxy for a newer one."""
        return ClusterMap.decode(self._control.call("GET", "/v1/cluster", params={"own": 1}, patient=False))

    def drain(self, subject: str) -> tuple[str, ...]:
        """Move all objects away from a disk, or from all disks of a target, by its id; return the ids of the disks. That is
        done in the background: see `cluster_status`. NotFound, TooFewDomains."""
        return self._use(subject, {"state": "draining"}).disks

    def activate(self, subject: str) -> tuple[str, ...]:
        """Give a disk, or all disks of a target, their share of the objects; otherwise like `drain`."""
        return self._use(subject, {"state": "active"}).disks

    def set_weight(self, subject: str, weight: float) -> dict[str, float]:
        """Give a disk another weight, on which its share of all objects depends, or the disks of a target together, in
        proportion; return the weights of these disks. Objects are moved in the background: see `cluster_status`. NotFound;
        BadRequest if it is not between 1e-6 and 1e9, for each of the disks."""
        return self._use(subject, {"weight": weight}).weights

    def _use(self, subject: str, body: dict[str, Any]) -> _Used:
        path = f"/v1/cluster/{self._path_of(subject)}"
        return decode(self._control.call("PATCH", path, body=body), _Used)

    def expect_down(self, target: str, seconds: int) -> str:
        """Say that a target will be down for a while, at most 30 days, so that its objects get no other replicas; 0: it will
        not. Returns the time by which it is expected back, in UTC. NotFound."""
        path = f"/v1/cluster/nodes/{quote(target, safe='')}"
        return decode(self._control.call("PATCH", path, body={"expect_down_s": seconds}), _Expected).expected_by

    def rebalance(self, *, paused: bool | None = None, rate_bytes_per_s: int | None = None) -> Rebalance:
        """Pause moves of objects between disks or let them go on, or set how many bytes a second each disk sends for them (0:
        no limit); what is None stays. Returns what holds now."""
        said = {"paused": paused, "rate_bytes_per_s": rate_bytes_per_s}
        body = {key: value for key, value in said.items() if value is not None}
        method = "POST" if body else "GET"
        return decode(self._control.call(method, "/v1/cluster/rebalance", body=body or None), Rebalance)

    def remove_from_cluster(self, subject: str, *, accept_loss: bool = False) -> tuple[str, ...]:
        """Forget a disk, or a target, by its id, that holds no objects any more and is stopped; or is lost, and was evicted.
        Then everything is moved to the other disks in the background, and the ids of the lost disks are returned.
        `accept_loss`: also if objects are on them that nothing else has, or they have not been evicted yet. NotFound,
        Conflict, WouldLoseObjects, TooFewDomains."""
        params: dict[str, str | int] | None = {"accept_loss": 1} if accept_loss else None
        answer = self._control.call("DELETE", f"/v1/cluster/{self._path_of(subject)}", params=params)
        return decode(answer, _Used).disks if answer else ()

    def _path_of(self, subject: str) -> str:
        """The path of what has this id, below `/v1/cluster/`; of a disk, 8 characters or more with which only its id begins
        will do. NotFound; BadRequest if several begin so."""
        nodes = self.cluster_map().nodes
        if any(node.id == subject for node in nodes):
            return f"nodes/{quote(subject, safe='')}"
        disks = {disk.id for node in nodes for disk in node.disks}
        enough = len(subject) >= DISK_PREFIX_MIN
        found = [subject] if subject in disks else [disk for disk in disks if enough and disk.startswith(subject)]
        if len(found) > 1:
            raise BadRequest(f"the ids of {len(found)} disks begin with {subject}: give more of it")
        if found:
            return f"disks/{quote(found[0], safe='')}"
        raise NotFound(f"there is no disk and no target {subject} in this cluster; `dfc cluster status` shows their ids")

    def health(self, *, patient: bool = True) -> dict[str, Any]:
        """Return role, id and map version of the node at the client's URL. Unavailable while it is not ready; if `patient`,
        that is waited for."""
        return decode(self._control.call("GET", "/v1/health", patient=patient), dict[str, Any])

    def check_stop(self, node: str) -> None:
        """Check that everything can still be read when this target or proxy is stopped. StillNeeded, with the number of objects
        that could not; NotFound."""
        self._control.call("GET", f"/v1/health/without/{quote(node, safe='')}")

    def start_scrub(self) -> None:
        """Start a scrub: every target reads and verifies everything it holds."""
        self._control.call("POST", "/v1/cluster/scrub")

    def scrub_status(self) -> dict[str, Any]:
        """Return `disks`: state, bytes done and total, errors, repaired and quarantined objects of each."""
        return decode(self._control.call("GET", "/v1/cluster/scrub"), dict[str, Any])

    def start_check(self, buckets: Sequence[str] = ()) -> str:
        """Begin to compare all copies of objects with each other, or those of some buckets, and to repair what differs; in the
        place of one that is under way. Returns by what it is known. BucketNotFound."""
        body = {"buckets": list(buckets)}
        return decode(self._control.call("POST", "/v1/cluster/check", body=body), _Check).check

    def check_status(self) -> ClusterCheck:
        """Return how far the last comparison of copies is, and what it has found."""
        return decode(self._control.call("GET", "/v1/cluster/check"), ClusterCheck)

    def _fetch_map(self, patient: bool) -> bytes:
        return self._control.call("GET", "/v1/cluster", patient=patient)


def decode(body: bytes, kind: type[T]) -> T:
    """Decode the JSON of an answer. BadRequest if it is not what a node answers."""
    try:
        return msgspec.json.decode(body, type=prepared(kind))
    except msgspec.MsgspecError as problem:
        raise BadRequest(f"invalid answer (is this a DFC node?): {problem}") from None
