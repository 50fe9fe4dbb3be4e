"""A worker's connections to the nodes: the cluster map, the nodes of objects, and requests with retries."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from dfc.addresses import Origins, Refusals, addresses_of
from dfc.engine.base import WorkerSettings
from dfc.errors import DfcError, NotConnected, Unavailable
from dfc.http.blocking import Response, Transport, Upload, check_answers
from dfc.http.retry import Cancellation, RetryPolicy, retried
from dfc.jobs.tasks import Task
from dfc.limits import CLUSTER_MAP_BYTES_MAX, ERROR_BODY_BYTES_MAX
from dfc.placement.map import NodeEntry
from dfc.placement.mapped import in_order, replica_of
from dfc.reach.objects import KeptMap, may_serve_elsewhere
from dfc.wire import MSGPACK

T = TypeVar("T")
REDIRECT: Final = 307
STALL_S: Final = 120.0  # a node sends nothing while it hashes, syncs or decompresses


class Nodes(KeptMap):
    """The nodes of the cluster, for one thread. `check` is called between tries and raises if retrying is pointless."""

    def __init__(self, settings: WorkerSettings, check: Callable[[], None] = lambda: None) -> None:
        super().__init__(addresses_of(settings.proxy_url), self._fetch_map)
        self._headers = {"Authorization": f"Bearer {settings.token}"} if settings.token else {}
        self._transport = Transport(Cancellation(), STALL_S)
        self._refusals = Refusals()
        self.policy = RetryPolicy()
        self.check = check

    def close(self) -> None:
        self._transport.close()

    def refresh(self) -> None:
        """Forget the map: an owner according to a stale map would keep refusing what it no longer holds."""
        self._map = None

    def know(self, version: int) -> None:
        """Fetch the map if the kept one is older than this version. Unavailable."""
        if self.version < version:
            self.refresh()
            self.map()

    def owner(self, bucket: str, name: str) -> NodeEntry:
        """Return the target that decides about an object or will do so. Unavailable while it is down; BucketNotFound."""
        return _first(self.readers(bucket, name), bucket, name)

    def sources(self, bucket: str, name: str, last: Collection[str] = ()) -> list[NodeEntry]:
        """Return the targets to read an object from, in the order to ask them: those of the URLs in `last` after the others.
        Unavailable while all are down; BucketNotFound."""
        found = self.readers(bucket, name)
        if len(found) < 2:
            return [_first(found, bucket, name)]
        return in_order(in_order(found, self._refusals), Origins(last))

    def first_to_serve(self, sources: Sequence[NodeEntry], attempt: Callable[[NodeEntry], T]) -> T:
        """Return the result of `attempt` at the first of these targets that serves the read; without waiting. Raises the error
        of the last one."""
        *others, last = sources
        for node in others:
            try:
                return attempt(node)
            except DfcError as error:
                if not may_serve_elsewhere(error):
                    raise
                if isinstance(error, NotConnected):
                    self._refusals.note(node.url)
        return attempt(last)

    def output_owner(self, task: Task, name: str) -> NodeEntry:
        """Return the target that will hold an output of a task, or holds a temporary object. Unavailable while it is down: the
        one that is read in its place does not have what was staged."""
        replica = replica_of(self.map(), task.output_bucket_id, name)
        return _first([replica] if replica is not None and replica.state == "up" else [], task.output_bucket, name)

    def _fetch_map(self, _patient: bool) -> bytes:
        with self._of_proxy("/v1/cluster") as answer:
            return answer.read_all(CLUSTER_MAP_BYTES_MAX)

    def retrying(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` and return its result. On errors such as from a node restart, retry after a delay, with a new map."""
        return retried(attempt, self.policy, self.wait)

    def wait(self, seconds: float) -> None:
        """Wait before another try, unless `check` raises, and forget the map."""
        self.check()
        time.sleep(seconds)
        self.refresh()

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> Response:
        """GET from a node, without retries. Errors are classes of `dfc.errors`."""
        return self._request("GET", url, headers or {})

    def post_batch(self, url: str, body: bytes) -> Response:
        """Read a batch of items from one target, without retries. `body` is msgpack."""
        return self._request("POST", f"{url}/v1/node/batch", {"Content-Type": MSGPACK}, _Bytes(body))

    def ask(self, find_url: Callable[[], str], limit: int = ERROR_BODY_BYTES_MAX) -> Any:
        """Return the decoded answer to a small GET, with retries; each one asks `find_url` again."""

        def attempt() -> Any:
            with self.get(find_url()) as answer:
                packed = (answer.headers.get("Content-Type") or "").startswith(MSGPACK)
                body = answer.read_all(limit)
            return msgspec.msgpack.decode(body) if packed else msgspec.json.decode(body)

        return self.retrying(attempt)

    def ask_proxy(self, path: str) -> None:
        """GET from the proxy, without retries, ignoring the body of the answer."""
        self._of_proxy(path).close()

    def begin_put(self, url: str, size: int | None) -> Upload:
        """Start a PUT whose body is sent piece by piece."""
        return self._transport.begin("PUT", url, self._headers, size)

    def put(self, url: str, body: bytes) -> bytes:
        """Send a small PUT and return the body of the answer."""
        with self._request("PUT", url, {}, _Bytes(body)) as answer:
            return answer.read_all(ERROR_BODY_BYTES_MAX)

    def _of_proxy(self, path: str) -> Response:
        """GET from the proxy, trying each of its addresses once."""
        return self.addresses.reach(
            lambda base, limit_s: self._request("GET", base + path, {}, limit_s=limit_s), check_answers, repeatable=True
        )

    def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: _Bytes | None = None, limit_s: float | None = None
    ) -> Response:
        answer = self._transport.request(method, url, {**self._headers, **headers}, body, limit_s=limit_s)
        if answer.status < 300:
            return answer
        if answer.status == REDIRECT:  # a target that does not have the object passes the request on to a proxy
            answer.close()
            raise Unavailable(f"{method} {url}: the object is on another target by now; the map may be changing")
        raise answer.error()


def _first(readers: list[NodeEntry], bucket: str, name: str) -> NodeEntry:
    if not readers:
        raise Unavailable(f"the target that holds {bucket}/{name} is down")
    return readers[0]


class _Bytes:
    """A body in memory."""

    replayable = True

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size: int | None = len(data)

    def chunks(self) -> Any:
        if self._data:
            yield self._data


def staged_path(job: str, bucket: str, name: str, temporary: bool) -> str:
    """Return path and query of a staged object on its owner."""
    return f"/v1/node/staged/{job}/{bucket}/{quote(name)}" + ("?temporary=1" if temporary else "")


def site_path(bucket: str, name: str, temporary: bool) -> str:
    """Return path and query of the request that asks the owner where a worker on its machine can write an output."""
    return "/v1/node/deposits?" + query(bucket=bucket, object=name, temporary="1" if temporary else "")


def query(**fields: str) -> str:
    """Make a query string of the fields that are not empty."""
    return urlencode([(name, value) for name, value in fields.items() if value], quote_via=quote)
