"""The control channel: small JSON or msgpack calls over httpx, the only module that knows httpx.

Every call goes to the URL that the client was given. Failures are raised as classes of `dfc.errors`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Final

import httpx
import msgspec

from dfc import __version__
from dfc.errors import BadRequest, DfcError, Unreachable
from dfc.http.calls.problems import error_from_answer, is_worth_retrying, retry_after_s
from dfc.http.calls.retry import Cancellation, RetryPolicy, current_cancellation
from dfc.wire import JSON

CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 60.0  # a listing waits for every target
# Nobody has answered yet: the URL is wrong or the cluster is down, and the person who typed it should hear so soon.
FIRST_CONTACT_RETRIES: Final = 1


class Control:
    """Calls to one node. Thread-safe."""

    def __init__(self, url: str, token: str | None, policy: RetryPolicy, cancellation: Cancellation) -> None:
        self._url = url
        self._policy = policy
        self._cancellation = cancellation
        self._was_reached = False
        headers = {"User-Agent": f"dfc/{__version__}"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.Client(
            base_url=url,
            headers=headers,
            timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            # Proxies and .netrc of the environment would apply here and not to the bulk channel.
            trust_env=False,
            verify=ssl.create_default_context() if url.startswith("https:") else False,
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
    ) -> bytes:
        """The body of a successful answer; `body` is sent as JSON. Every call here is idempotent: if `patient`, it is retried.

        Raises what the node said, or Unreachable.
        """
        cancellation = current_cancellation(self._cancellation)
        attempt = 0
        while True:
            cancellation.check()
            try:
                return self._once(method, path, params, body, accept)
            except DfcError as error:
                retries = self._policy.retries if patient else 0
                if isinstance(error, Unreachable) and not self._was_reached:
                    retries = min(retries, FIRST_CONTACT_RETRIES)
                if not is_worth_retrying(error) or attempt >= retries:
                    raise
                delay_s = self._policy.delay_s(attempt, retry_after_s(error))
            cancellation.wait(delay_s)
            attempt += 1

    def lines(self, path: str) -> Iterator[str]:
        """The lines of an answer that comes bit by bit, each when it is there. Unreachable when it breaks off; no retries."""
        cancellation = current_cancellation(self._cancellation)
        what = f"GET {self._url}{path}"
        try:
            with self._http.stream("GET", path, headers={"Accept": "text/event-stream"}) as answer:
                if not answer.is_success:
                    raise error_from_answer(answer.status_code, answer.headers, answer.read(), what)
                for line in answer.iter_lines():
                    cancellation.check()
                    yield line
        except httpx.HTTPError as problem:
            raise Unreachable(f"{what}: {problem or type(problem).__name__}") from None

    def pause(self, seconds: float) -> None:
        """Sleep, unless what the caller does is cancelled."""
        current_cancellation(self._cancellation).wait(seconds)

    def _once(self, method: str, path: str, params: Mapping[str, str | int] | None, body: Any, accept: str) -> bytes:
        content = None if body is None else msgspec.json.encode(body)
        headers = {"Accept": accept}
        if content is not None:
            headers["Content-Type"] = JSON
        what = f"{method} {self._url}{path}"
        try:
            answer = self._http.request(method, path, params=params, content=content, headers=headers)
        except httpx.HTTPError as problem:
            raise Unreachable(f"{what}: {problem or type(problem).__name__}") from None
        except httpx.InvalidURL as problem:
            raise BadRequest(f"{what}: {problem}") from None
        self._was_reached = True
        if answer.is_success:
            return answer.content
        raise error_from_answer(answer.status_code, answer.headers, answer.content, what)
