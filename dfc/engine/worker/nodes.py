"""The nodes as a worker sees them: the map, who owns what, and requests that are tried again while a node is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from dfc.addresses import addresses_of
from dfc.engine.settings import WorkerSettings
from dfc.errors import Unavailable
from dfc.http.calls.blocking import ERROR_BODY_BYTES_MAX, Response, Transport, Upload
from dfc.http.calls.retry import Cancellation, RetryPolicy, retried
from dfc.limits import CLUSTER_MAP_BYTES_MAX
from dfc.placement.map import NodeEntry
from dfc.reach.routing import KeptMap
from dfc.wire import MSGPACK

T = TypeVar("T")
STALL_S: Final = 120.0  # a node that hashes, syncs or decompresses sends nothing meanwhile


class Nodes(KeptMap):
    """For one thread. `check` is called between tries: it raises when there is no more use in trying."""

    def __init__(self, settings: WorkerSettings, check: Callable[[], None] = lambda: None) -> None:
        super().__init__(addresses_of(settings.proxy_url), self._fetch_map)
        self._headers = {"Authorization": f"Bearer {settings.token}"} if settings.token else {}
        self._transport = Transport(Cancellation(), STALL_S)
        self.policy = RetryPolicy()
        self.check = check

    def close(self) -> None:
        self._transport.close()

    def refresh(self) -> None:
        """Forget the map: an owner of the old one may refuse for good what it does not hold any more."""
        self._map = None

    def owner(self, bucket: str, name: str) -> NodeEntry:
        """The target that holds an object, or is to; Unavailable while it is down. BucketNotFound."""
        holder = self.holder(bucket, name)
        if holder is None:
            raise Unavailable(f"the target that holds {bucket}/{name} is down")
        return holder

    def _fetch_map(self, _patient: bool) -> bytes:
        with self._of_proxy("/v1/cluster") as answer:
            return answer.read_all(CLUSTER_MAP_BYTES_MAX)

    def retrying(self, attempt: Callable[[], T]) -> T:
        """What the attempt gives; while it fails as it would when a node restarts, again after a while, with a new map."""
        return retried(attempt, self.policy, self.wait)

    def wait(self, seconds: float) -> None:
        """Wait before another try, if there is still use in it, and expect a new map."""
        self.check()
        time.sleep(seconds)
        self.refresh()

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> Response:
        """One try of a GET of a node; its error as `dfc.errors`."""
        return self._request("GET", url, headers or {})

    def post_batch(self, url: str, body: bytes) -> Response:
        """One try of a batch read of what one target holds, asked for in msgpack."""
        return self._request("POST", f"{url}/v1/node/batch", {"Content-Type": MSGPACK}, _Bytes(body))

    def ask(self, find_url: Callable[[], str], limit: int = ERROR_BODY_BYTES_MAX) -> Any:
        """The decoded answer to a small GET, with retries; the URL is found anew for each."""

        def attempt() -> Any:
            with self.get(find_url()) as answer:
                packed = (answer.headers.get("Content-Type") or "").startswith(MSGPACK)
                body = answer.read_all(limit)
            return msgspec.msgpack.decode(body) if packed else msgspec.json.decode(body)

        return self.retrying(attempt)

    def ask_proxy(self, path: str) -> None:
        """One try of a GET whose answer does not matter."""
        self._of_proxy(path).close()

    def begin_put(self, url: str, size: int | None) -> Upload:
        """Begin a PUT whose body comes piece by piece."""
        return self._transport.begin("PUT", url, self._headers, size)

    def put(self, url: str, body: bytes) -> bytes:
        """A small PUT; the body of the answer."""
        with self._request("PUT", url, {}, _Bytes(body)) as answer:
            return answer.read_all(ERROR_BODY_BYTES_MAX)

    def _of_proxy(self, path: str) -> Response:
        """One try of a GET, at one address of the proxy after the other."""
        return self.addresses.reach(
            lambda base, limit_s: self._request("GET", base + path, {}, limit_s=limit_s), repeatable=True
        )

    def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: _Bytes | None = None, limit_s: float | None = None
    ) -> Response:
        answer = self._transport.request(method, url, {**self._headers, **headers}, body, limit_s=limit_s)
        if answer.status < 300:
            return answer
        raise answer.error()


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
    """Path and query of a staged object at its owner."""
    return f"/v1/node/staged/{job}/{bucket}/{quote(name)}" + ("?temporary=1" if temporary else "")


def site_path(bucket: str, name: str, temporary: bool) -> str:
    """Path and query of the question where the owner lets a worker of its machine write an output."""
    return "/v1/node/deposits?" + query(bucket=bucket, object=name, temporary="1" if temporary else "")


def query(**fields: str) -> str:
    """A query string of the fields that are not empty."""
    return urlencode([(name, value) for name, value in fields.items() if value], quote_via=quote)
