"""Errors of other nodes, when to try again, and how whoever waits is cut off."""

from __future__ import annotations

import random
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import msgspec

from dfc import errors
from dfc.errors import DfcError
from dfc.wire import ITEM_HEADER, LOST_HEADER, MAP_HEADER

# --- Turn error answers of nodes back into exceptions, by the `code` in their JSON body.
#
# Clients get the matching class of `dfc.errors` (`error_from_answer`), nodes a `RemoteError` with the same status and code. For
# a code that `dfc.errors` does not know, the status decides the class, and the code is kept.

# Statuses to retry: the node, or a gateway before it, cannot serve now. A 500 is final: it is about the object or its disk.
RETRY_STATUSES: Final = frozenset((408, 429, 502, 503, 504))
# For answers without a body (HEAD) or from something that is not DFC.
_BY_STATUS: Final[Mapping[int, type[DfcError]]] = {
    400: errors.BadRequest,
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.ObjectNotFound,
    405: errors.MethodNotAllowed,
    408: errors.BodyTimeout,
    409: errors.Conflict,
    410: errors.NotFound,
    412: errors.PreconditionFailed,
    413: errors.TooLarge,
    416: errors.RangeNotSatisfiable,
    421: errors.Misdirected,
    422: errors.ChecksumMismatch,
    507: errors.NoSpace,
}


class Headers(Protocol):
    """Headers of an answer, with names in any case, as in http.client and httpx."""

    def get(self, name: str, /) -> str | None: ...


class ErrorBody(msgspec.Struct):
    """The code and message in the body of an error; empty if the body is not from a DFC node."""

    code: str = ""
    message: str = ""


class _Body(msgspec.Struct):
    error: ErrorBody


# Only classes of `dfc.errors`: which other modules with errors are loaded differs from process to process.
_BY_CODE: Final[Mapping[str, type[DfcError]]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, DfcError) and "code" in vars(kind)
}


def decode_error_body(body: bytes) -> ErrorBody:
    """Decode the body of an error answer."""
    try:
        return msgspec.json.decode(body, type=_Body).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ErrorBody()


class RemoteError(DfcError):
    """Another node answered with an error; status and code are the ones it sent."""

    def __init__(self, status: int, body: bytes, url: str) -> None:
        said = decode_error_body(body)
        super().__init__(said.message or f"{url} answered with status {status}")
        # A status that HTTP does not have is not passed on.
        self.status = status if 400 <= status <= 599 else 502  # type: ignore[misc]
        self.code = said.code or "bad_gateway"  # type: ignore[misc]


def error_from_answer(status: int, headers: Headers, body: bytes, what: str) -> DfcError:
    """Make the exception for an answer of status 300 or more; `what` (method and URL) is for answers without a message."""
    problem = decode_error_body(body)
    kind = _BY_STATUS.get(status)
    if kind is None or kind.code != problem.code:
        kind = _BY_CODE.get(problem.code, kind)
    if status == errors.NotThePrimary.status and headers.get(MAP_HEADER):
        kind = errors.NotThePrimary  # an answer to HEAD has no body with a code
    if kind is None and status in RETRY_STATUSES:
        kind = errors.Unavailable
    elif kind is None:
        kind = errors.ServerTrouble if status >= 500 else errors.BadRequest
    # Some classes build their message from other arguments; here the message is the one the node sent.
    error = kind.__new__(kind)
    DfcError.__init__(error, problem.message or f"{what} was answered with status {status}", headers=_kept(headers))
    if problem.code and problem.code != kind.code:
        error.code = problem.code  # type: ignore[misc]  # unknown here: show it as the node sent it
    return error


def _kept(headers: Headers) -> dict[str, str]:
    names = ("Retry-After", "Content-Range", "Allow", "WWW-Authenticate", "X-Request-Id", ITEM_HEADER, LOST_HEADER, MAP_HEADER)
    return {name: value for name in names if (value := headers.get(name))}


def is_worth_retrying(error: DfcError) -> bool:
    """Whether the same request may succeed a little later."""
    return isinstance(error, errors.Unavailable | errors.Unreachable | errors.BodyTimeout)


def retry_after_s(error: DfcError) -> float | None:
    """Return the node's Retry-After in seconds. Dates are ignored; DFC does not send them."""
    value = error.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() else None


# --- Retry policy with backoff, and cancellation of transfers that run in other threads.

T = TypeVar("T")


class Cancelled(DfcError):
    """The caller cancelled the operation; what a download has stored so far is kept for resuming."""

    status = 499
    code = "cancelled"

    def __init__(self, message: str = "cancelled") -> None:
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff: half of each delay is random, so that many clients do not retry in lockstep.

    The default waits about 12 s in all, longer than a cluster needs to recover after losing a process.
    """

    retries: int = 7
    first_delay_s: float = 0.25
    delay_max_s: float = 4.0
    retry_after_max_s: float = 30.0
    random: random.Random = field(default_factory=random.Random, compare=False)

    def delay_s(self, attempt: int, retry_after_s: float | None) -> float:
        """Return the seconds to wait before try `attempt` + 2: at least what the node asked for, up to `retry_after_max_s`."""
        delay: float = min(self.first_delay_s * 2**attempt, self.delay_max_s) * (0.5 + 0.5 * self.random.random())
        return max(delay, min(retry_after_s or 0.0, self.retry_after_max_s))


class Retries:
    """Counts failed tries. `worth` says which errors are worth a retry."""

    def __init__(self, policy: RetryPolicy, worth: Callable[[DfcError], bool] = is_worth_retrying) -> None:
        self.policy = policy
        self.number = 0
        self._worth = worth

    def delay_s(self, problem: DfcError, *, useful: bool = False) -> float | None:
        """Return the seconds to wait before another try, or None to give up. A try that was `useful`, because part of the work
        is done, resets the count."""
        if useful:
            self.number = 0
        if self.number >= self.policy.retries or not self._worth(problem):
            return None
        self.number += 1
        return self.policy.delay_s(self.number - 1, retry_after_s(problem))

    def again(self, problem: DfcError, wait: Callable[[float], None], *, useful: bool = False) -> bool:
        """Wait before another try and return True; False to give up."""
        delay_s = self.delay_s(problem, useful=useful)
        if delay_s is not None:
            wait(delay_s)
        return delay_s is not None


def retried(
    attempt: Callable[[], T],
    policy: RetryPolicy,
    wait: Callable[[float], None],
    worth: Callable[[DfcError], bool] = is_worth_retrying,
    check: Callable[[], None] = lambda: None,
) -> T:
    """Call `attempt` until it succeeds, with a `wait` after each error that is worth a retry; return its result. Blocking.

    `worth` is asked only while there are tries left; `check` is called before each try and on its error, and raises when the
    caller has given up.
    """
    retries = Retries(policy, worth)
    while True:
        check()
        try:
            return attempt()
        except DfcError as problem:
            check()
            delay_s = retries.delay_s(problem)
            if delay_s is None:
                raise  # not in a helper function: the traceback would then refer to the error itself, a reference cycle
        wait(delay_s)


class Cancellation:
    """Cancels all transfers that run under it, from any thread, by shutting down their sockets."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._actions: list[Callable[[], None]] = []

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def cancel(self) -> None:
        """Make running transfers raise `Cancelled` soon, and later ones right away."""
        if sys.is_finalizing():
            return  # other threads are frozen and may hold the lock; the sockets are closed with the process
        self._event.set()
        with self._lock:
            for sock in self._sockets:
                _shut_down(sock)
            actions = list(self._actions)
        for action in actions:
            action()

    def check(self) -> None:
        if self._event.is_set():
            raise Cancelled

    def wait(self, seconds: float) -> None:
        """Sleep; Cancelled if it is or gets cancelled."""
        if self._event.wait(seconds):
            raise Cancelled

    def track(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.add(sock)
        if self._event.is_set():
            _shut_down(sock)

    def add(self, action: Callable[[], None]) -> None:
        """Call `action` on cancellation, or now if already cancelled: for anything that is not a socket."""
        with self._lock:
            self._actions.append(action)
        if self._event.is_set():
            action()

    def remove(self, action: Callable[[], None]) -> None:
        with self._lock:
            if action in self._actions:
                self._actions.remove(action)

    def untrack(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(sock)


def _shut_down(sock: socket.socket) -> None:
    with suppress(OSError):  # it was no longer connected
        # The method of the base class: the one of a TLS socket would remove its state while a thread is reading.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


_CURRENT: Final[ContextVar[Cancellation | None]] = ContextVar("dfc_cancellation", default=None)


@contextmanager
def cancelled_by(cancellation: Cancellation) -> Iterator[None]:
    """Put transfers that this thread begins inside the context under this cancellation instead of the client's own."""
    token = _CURRENT.set(cancellation)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_cancellation(default: Cancellation) -> Cancellation:
    return _CURRENT.get() or default
