"""The control channel: small JSON or msgpack calls over httpx. No other module uses httpx.

Every call goes to a URL that the client was given. Errors are classes of `dfc.errors`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import msgspec

from dfc import __version__
from dfc.addresses import addresses_of
from dfc.errors import BadRequest, DfcError, NotConnected, Unreachable
from dfc.http.calls.lookup import check_answers, connect_share_s
from dfc.http.calls.problems import error_from_answer
from dfc.http.calls.retry import Cancellation, Retries, RetryPolicy, current_cancellation
from dfc.reach.objects import may_be_done
from dfc.wire import JSON

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
